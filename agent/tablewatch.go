package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/source"
)

const (
	tablePoll = 2 * time.Second // how often the publication is looked at
	// pollShare bounds the part of the time that is spent with looking, as
	// one in so many: a publication of thousands of tables is looked at less often.
	pollShare = 20
)

// tableWatch looks at what a publisher publishes, for all of its subscriptions
// in this process: one connection and one query, however many they are.
type tableWatch struct {
	pub *config.Publisher

	mu   sync.Mutex // also serialises the use of conn
	conn *pgconn.PgConn
	last look
}

// look is what was published at one moment. The tables must not be changed.
type look struct {
	number  int // of the look, from 1
	version int // rises when tables differ from those of the look before
	tables  []source.TableID
	at      time.Time
	took    time.Duration
}

// fresh says that there is no need to look again.
func (l *look) fresh() bool {
	return l.number > 0 && time.Since(l.at) < max(tablePoll-tablePoll/8, pollShare*l.took)
}

// look returns the last look, after a new one when that is due.
func (w *tableWatch) look(ctx context.Context) (look, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.fresh() {
		return w.last, nil
	}
	began := time.Now()
	tables, err := w.ask(ctx)
	if err != nil {
		closeConn(w.conn)
		w.conn = nil
		return look{}, err
	}
	next := look{number: w.last.number + 1, version: w.last.version, tables: tables, at: time.Now(), took: time.Since(began)}
	if next.number == 1 || !slices.Equal(tables, w.last.tables) {
		next.version++
	}
	w.last = next
	return next, nil
}

func (w *tableWatch) ask(ctx context.Context) ([]source.TableID, error) {
	if w.conn == nil {
		var err error
		if w.conn, err = connect(ctx, w.pub.URL, "agent"); err != nil {
			return nil, err
		}
	}
	return source.PublishedIDs(ctx, w.conn, publications(w.pub))
}

func (w *tableWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	closeConn(w.conn)
	w.conn = nil
}

package holes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Each transaction adds a row to a table with a key, changes one row of
// another and adds one to a table without a key, so that a transaction that is
// left out, doubled, reordered or torn shows.
const (
	tables = `CREATE TABLE log (n int PRIMARY KEY, v text NOT NULL);
		CREATE TABLE last (id int PRIMARY KEY, v text NOT NULL);
		CREATE TABLE heap (v text NOT NULL); ALTER TABLE heap REPLICA IDENTITY FULL`
	stateOf = `SELECT coalesce((SELECT string_agg(v, ',' ORDER BY n) FROM log), '') || '|' ||
		coalesce((SELECT v FROM last WHERE id = 1), '') || '|' || (SELECT count(*) FROM heap)`
)

func transaction(n int, v string) string {
	return fmt.Sprintf(`INSERT INTO log VALUES (%d, '%s');
		INSERT INTO last VALUES (1, '%[2]s') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
		INSERT INTO heap VALUES ('%[2]s')`, n, v)
}

// history knows every state that the publisher has had.
type history struct {
	mu     sync.Mutex
	branch string
	labels []string // of the current branch
	states map[string]bool
}

func newHistory() *history { return &history{branch: "a", states: map[string]bool{"||0": true}} }

// next is the transaction to commit now.
func (h *history) next() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.labels) + 1
	v := fmt.Sprintf("%d%s", n, h.branch)
	h.labels = append(h.labels, v)
	h.states[h.state()] = true
	return transaction(n, v)
}

// state needs mu.
func (h *history) state() string {
	last := ""
	if n := len(h.labels); n > 0 {
		last = h.labels[n-1]
	}
	return fmt.Sprintf("%s|%s|%d", strings.Join(h.labels, ","), last, len(h.labels))
}

func (h *history) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.labels)
}

// fork goes another way after n transactions.
func (h *history) fork(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.labels = append([]string(nil), h.labels[:n]...)
	h.branch = string(h.branch[0] + 1)
}

func (h *history) had(state string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.states[state]
}

// watch looks at a subscriber until the test ends.
type watch struct {
	off atomic.Bool // a copy runs: tables become equal one after another
}

func startWatch(t *testing.T, h *history, name, url string) *watch {
	w := new(watch)
	w.off.Store(true) // until the first copy is there
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	check := func(conn **pgx.Conn) bool {
		off := w.off.Load()
		state, err := look(context.Background(), conn, url)
		if err != nil || off || w.off.Load() || h.had(state) {
			return true
		}
		t.Errorf("subscriber %s shows a state that the publisher never had: %s", name, state)
		return false
	}
	go func() {
		defer close(done)
		var conn *pgx.Conn
		defer func() { closeConn(conn) }()
		for check(&conn) && ctx.Err() == nil { // once more at the end
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// look reads a state; the server may be away.
func look(ctx context.Context, conn **pgx.Conn, url string) (state string, err error) {
	if *conn == nil || (*conn).IsClosed() {
		if *conn, err = pgx.Connect(ctx, url); err != nil {
			*conn = nil
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err = (*conn).QueryRow(ctx, stateOf).Scan(&state); err != nil {
		closeConn(*conn)
		*conn = nil
	}
	return state, err
}

func closeConn(conn *pgx.Conn) {
	if conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // given up in any case
	}
}

package soak

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgtest"
)

// invariants of schema: a line for each that does not hold, and the number of
// transactions. The locks come first, on all tables but scratch: TRUNCATE empties a
// table for snapshots that are older than itself.
var invariants = fmt.Sprintf(`BEGIN; LOCK TABLE %s IN ACCESS SHARE MODE;
SELECT (SELECT sum(n) FROM counter), concat_ws(E'\n',
	(SELECT 'balances: '||sum(balance)||' in '||count(*) FROM account HAVING (sum(balance), count(*)) IS DISTINCT FROM (%d::numeric, %d)),
	(SELECT 'history of writer '||c.id||': '||count(h.n)||' rows up to '||coalesce(max(h.n), 0)||', counter '||c.n FROM counter c LEFT JOIN hist h ON h.writer = c.id
	  GROUP BY c.id, c.n HAVING count(h.n) <> c.n OR coalesce(max(h.n), 0) <> c.n LIMIT 1),
	(SELECT 'journal of writer '||c.id||': '||count(j.n)||' rows, '||count(DISTINCT j.n)||' different, '||coalesce(min(j.n), 1)||' to '||coalesce(max(j.n), 0)||', counter '||c.n
	  FROM counter c LEFT JOIN journal j ON j.writer = c.id
	  GROUP BY c.id, c.n HAVING count(j.n) <> c.n OR count(DISTINCT j.n) <> c.n OR coalesce(max(j.n), 0) <> c.n OR coalesce(min(j.n), 1) <> 1 LIMIT 1),
	(SELECT 'counters: '||count(*) FROM counter HAVING count(*) <> %d),
	(SELECT 'bag of writer '||c.id||': '||count(b.k)||' rows, sum '||coalesce(sum(b.k), 0)||', counter '||c.bag FROM counter c LEFT JOIN bag b ON b.writer = c.id
	  GROUP BY c.id, c.bag HAVING count(b.k) <> c.bag OR coalesce(sum(b.k), 0) <> 0 LIMIT 1),
	(SELECT 'permutation: '||count(*)||' from '||min(slot)||' to '||max(slot) FROM tag HAVING (count(*), min(slot), max(slot)) IS DISTINCT FROM (%[5]d, 1, %[5]d)),
	(SELECT 'places: '||count(*)||', sum '||sum(v)||', '||count(DISTINCT v)||' different' FROM place HAVING (count(*), count(DISTINCT v), min(v), max(v)) IS DISTINCT FROM (%[6]d, %[6]d, 1, %[6]d)),
	(SELECT 'pages: '||(SELECT count(*) FROM page)||', leaves '||(SELECT count(*) FROM leaf)||', counter '||n FROM page_count
	  WHERE n <> (SELECT count(*) FROM page) OR n <> (SELECT count(*) FROM leaf)),
	(SELECT 'large transaction of writer '||c.writer||': '||count(b.i)||' rows, counter '||c.n FROM big_count c LEFT JOIN big b ON b.writer = c.writer
	  GROUP BY c.writer, c.n HAVING count(b.i) <> c.n LIMIT 1));
COMMIT`, strings.Join(tables[:len(tables)-1], ", "), accounts*balance, accounts, writers, tags, places)

// watcher reads the invariants on the subscriber all the time.
type watcher struct {
	url   string
	looks atomic.Int64
	lost  atomic.Int64 // kills of the subscriber, which may lose its last commits

	seen atomic.Int64 // transactions at the last look

	topLost int64 // kills before the last look
}

// run returns the first state that never was, or nil when ctx ends.
func (w *watcher) run(ctx context.Context) error {
	for ctx.Err() == nil {
		conn, err := pgconn.Connect(ctx, w.url)
		if err != nil {
			pause(ctx, 50*time.Millisecond)
			continue
		}
		err = w.look(ctx, conn)
		_ = conn.Close(context.Background())
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) look(ctx context.Context, conn *pgconn.PgConn) error {
	for ctx.Err() == nil {
		lost := w.lost.Load()
		n, wrong, err := readInvariants(ctx, conn)
		if err != nil {
			return nil //nolint:nilerr // the connection fell to a fault
		}
		if wrong != "" {
			return fmt.Errorf("the subscriber shows a state that never was:\n%s", wrong)
		}
		if before := w.seen.Load(); lost == w.topLost && n < before {
			return fmt.Errorf("the subscriber went back from %d transactions to %d", before, n)
		}
		w.topLost = lost
		w.seen.Store(n)
		w.looks.Add(1)
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func readInvariants(ctx context.Context, conn *pgconn.PgConn) (transactions int64, wrong string, err error) {
	results, err := conn.Exec(ctx, invariants).ReadAll()
	if err != nil {
		return 0, "", err
	}
	for _, r := range results {
		for _, row := range r.Rows {
			_, err = fmt.Sscan(string(row[0]), &transactions)
			return transactions, string(row[1]), err
		}
	}
	return 0, "", fmt.Errorf("no row of the invariants")
}

// compare fails for each table that is not equal on both sides.
func compare(t *testing.T, pub, sub string) {
	t.Helper()
	for _, table := range tables {
		q := fmt.Sprintf(`SELECT count(*), md5(string_agg(md5(r::text), '' ORDER BY md5(r::text))) FROM %s r`, table)
		if p, s := pgtest.QueryString(t, pub, q), pgtest.QueryString(t, sub, q); p != s {
			t.Errorf("table %s differs (rows|digest): publisher %s, subscriber %s", table, p, s)
		}
	}
}

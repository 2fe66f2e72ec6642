package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// A job is what one transaction does.
type job func(ctx context.Context, w *writer) error

// writer is one connection that writes. Each of its transactions also counts its
// rows in demo.ledger, so what the subscriber shows there is what has arrived.
type writer struct {
	id   int
	conn *pgx.Conn
	rand *rand.Rand
	rows int64 // of the transaction under way
}

// workers are the writers: what each of them does again and again, and the longest
// pause after a transaction. Only one writes to staging, and only one moves seats,
// so that they do not wait for each other.
var workers = []struct {
	jobs  []job
	pause time.Duration
}{
	{[]job{transfer, transfer, transfer, placeOrders, shipOrders}, 20 * time.Millisecond},
	{[]job{swapSeats, swapHolders, transfer, forgetOrders, logEvents}, 20 * time.Millisecond},
	{[]job{editDocument, tagDocuments, tryAndTakeBack, placeOrders, forgetEvents}, 20 * time.Millisecond},
	{[]job{fillStaging, changeStaging, fillStaging, shrinkStaging, emptyStaging}, time.Second},
}

// write runs the workload until ctx ends, which is no error.
func write(ctx context.Context, url string) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, worker := range workers {
		g.Go(func() error {
			conn, err := connect(ctx, url)
			if err != nil {
				return ignoreEnd(ctx, err)
			}
			defer closeConn(conn)
			w := &writer{id: i + 1, conn: conn, rand: rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))}
			for n := 0; ctx.Err() == nil; n++ {
				if err := w.transaction(ctx, worker.jobs[n%len(worker.jobs)]); err != nil {
					return ignoreEnd(ctx, err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(w.rand.Int64N(int64(worker.pause)))):
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// ignoreEnd is nil when the end of ctx is why something failed.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("write to the publisher: %w", err)
}

func (w *writer) transaction(ctx context.Context, do job) error {
	w.rows = 0
	if _, err := w.conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := do(ctx, w); err != nil {
		return err // the connection is given up, and the transaction with it
	}
	err := w.exec(ctx, "UPDATE demo.ledger SET rows = rows + $1, transactions = transactions + 1, at = clock_timestamp() WHERE writer = $2", w.rows+1, w.id)
	if err != nil {
		return err
	}
	_, err = w.conn.Exec(ctx, "COMMIT")
	return err
}

// exec runs a statement and counts its rows.
func (w *writer) exec(ctx context.Context, sql string, args ...any) error {
	tag, err := w.conn.Exec(ctx, sql, args...)
	if err != nil {
		return err
	}
	w.rows += tag.RowsAffected()
	return nil
}

// all runs statements without parameters.
func (w *writer) all(ctx context.Context, sql ...string) error {
	for _, s := range sql {
		if err := w.exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func transfer(ctx context.Context, w *writer) error {
	from, to := 1+w.rand.IntN(1000), 1+w.rand.IntN(1000)
	if from == to {
		to = from%1000 + 1
	}
	amount := 1 + w.rand.IntN(50)
	// The lower number first: writers that lock in one order do not deadlock.
	first, second, sign := from, to, -1
	if to < from {
		first, second, sign = to, from, 1
	}
	const move = "UPDATE demo.accounts SET balance = balance + $2, changed = clock_timestamp() WHERE id = $1"
	if err := w.exec(ctx, move, first, sign*amount); err != nil {
		return err
	}
	return w.exec(ctx, move, second, -sign*amount)
}

func placeOrders(ctx context.Context, w *writer) error {
	return w.exec(ctx, `INSERT INTO demo.orders (account, items, state, placed)
		SELECT 1 + (random() * 999)::int, jsonb_build_object('item', i, 'text', E'quote '' " \\ \n end', 'price', random()), 'new', clock_timestamp()
		FROM generate_series(1, $1) i`, 1+w.rand.IntN(40))
}

func shipOrders(ctx context.Context, w *writer) error {
	return w.exec(ctx, `UPDATE demo.orders SET state = 'shipped', items = items || '{"shipped": true}'
		WHERE id IN (SELECT id FROM demo.orders WHERE state = 'new' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)`, 1+w.rand.IntN(30))
}

func forgetOrders(ctx context.Context, w *writer) error {
	return w.exec(ctx, `DELETE FROM demo.orders
		WHERE id IN (SELECT id FROM demo.orders WHERE state = 'shipped' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)`, 1+w.rand.IntN(30))
}

// swapSeats exchanges the primary keys of two rows.
func swapSeats(ctx context.Context, w *writer) error {
	a := 1 + w.rand.IntN(100)
	b := 101 + w.rand.IntN(100)
	for _, move := range [][2]int{{a, -1}, {b, a}, {-1, b}} {
		if err := w.exec(ctx, "UPDATE demo.seats SET number = $2 WHERE number = $1", move[0], move[1]); err != nil {
			return err
		}
	}
	return nil
}

// swapHolders exchanges the values of a unique column.
func swapHolders(ctx context.Context, w *writer) error {
	a, b := 1+w.rand.IntN(100), 101+w.rand.IntN(100)
	var first, second *string
	if err := w.conn.QueryRow(ctx, "SELECT (SELECT holder FROM demo.seats WHERE number = $1), (SELECT holder FROM demo.seats WHERE number = $2)", a, b).Scan(&first, &second); err != nil {
		return err
	}
	const set = "UPDATE demo.seats SET holder = $2, price = price + 0.25 WHERE number = $1"
	for _, step := range []struct {
		number int
		holder *string
	}{{a, nil}, {b, first}, {a, second}} {
		if err := w.exec(ctx, set, step.number, step.holder); err != nil {
			return err
		}
	}
	return nil
}

// editDocument writes a new body, which is stored out of line.
func editDocument(ctx context.Context, w *writer) error {
	return w.exec(ctx, `UPDATE demo.documents SET revision = revision + 1, body = repeat(md5(random()::text), $2) WHERE id = $1`, 1+w.rand.IntN(100), 100+w.rand.IntN(900))
}

// tagDocuments leaves the bodies as they are: the log does not hold them.
func tagDocuments(ctx context.Context, w *writer) error {
	return w.exec(ctx, `UPDATE demo.documents SET revision = revision + 1, tags = tags[1:3] || clock_timestamp()::text WHERE id % 20 = $1`, w.rand.IntN(20))
}

// tryAndTakeBack rolls back to savepoints.
func tryAndTakeBack(ctx context.Context, w *writer) error {
	if err := w.all(ctx, "INSERT INTO demo.events VALUES (clock_timestamp(), 'kept', decode('00ff', 'hex'))", "SAVEPOINT a"); err != nil {
		return err
	}
	kept := w.rows
	if err := w.all(ctx,
		"INSERT INTO demo.events SELECT clock_timestamp(), 'taken back', NULL FROM generate_series(1, 20)",
		"UPDATE demo.documents SET tags = NULL",
		"ROLLBACK TO SAVEPOINT a",
	); err != nil {
		return err
	}
	w.rows = kept
	return w.all(ctx, "SAVEPOINT b", "INSERT INTO demo.events VALUES (clock_timestamp(), 'kept too', NULL)", "RELEASE SAVEPOINT b")
}

func logEvents(ctx context.Context, w *writer) error {
	return w.exec(ctx, "INSERT INTO demo.events SELECT clock_timestamp(), 'kind ' || i, decode(md5(random()::text), 'hex') FROM generate_series(1, $1) i", 5+w.rand.IntN(20))
}

// forgetEvents deletes rows of a table that has no key.
func forgetEvents(ctx context.Context, w *writer) error {
	return w.exec(ctx, "DELETE FROM demo.events WHERE ctid = ANY (ARRAY(SELECT ctid FROM demo.events LIMIT 5))")
}

// fillStaging is one transaction with thousands of rows.
func fillStaging(ctx context.Context, w *writer) error {
	batch := w.rand.Int32()
	return w.exec(ctx, "INSERT INTO demo.staging SELECT $1, i, 'line ' || i FROM generate_series(1, $2) i", batch, 2000+w.rand.IntN(3000))
}

func changeStaging(ctx context.Context, w *writer) error {
	return w.exec(ctx, "UPDATE demo.staging SET note = note || '!' WHERE line % 3 = 0")
}

func shrinkStaging(ctx context.Context, w *writer) error {
	return w.exec(ctx, "DELETE FROM demo.staging WHERE line % 2 = 0")
}

// emptyStaging mixes TRUNCATE, which counts as one row, with rows of the same
// transaction.
func emptyStaging(ctx context.Context, w *writer) error {
	w.rows++
	return w.all(ctx,
		"INSERT INTO demo.staging VALUES (0, 0, 'gone in a moment')",
		"TRUNCATE demo.staging",
		"INSERT INTO demo.staging VALUES (0, 1, 'first of the next')",
	)
}

package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/faultnet"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/queue"
)

func openQueue(t testing.TB, nc *nats.Conn) *queue.Queue {
	t.Helper()
	q, err := queue.Open(context.Background(), nc, queue.Options{Name: "test", MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// readAll reads the stream from a position to its end, as an applier does.
func readAll(t testing.TB, q *queue.Queue, from change.LSN) []memBatch {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tail, err := q.Tail(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r, err := q.NewReader(ctx, from, queue.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []memBatch
	for {
		d, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, memBatch{d.Header, bytes.Clone(d.Body)})
		if d.Seq == tail.Seq {
			return out
		}
	}
}

// The reader, its connections to the publisher and to NATS are killed at
// random moments while one writer commits numbered rows in transactions of
// very different sizes. The queue must hold each once, in order, whole.
func TestCB014_KilledAtRandomQueuesEverythingOnce(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming=%v", stream), func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			c := pgtest.Shared(t)
			db := c.DB(t)
			p := faultnet.Start(t, fmt.Sprintf("127.0.0.1:%d", c.Port()))
			ns := natstest.Start(t)
			o := options(t, db, nil)
			if stream {
				o = streaming(t, db, nil)
			}
			o.Conn = strings.Replace(o.Conn, fmt.Sprintf(":%d/", c.Port()), fmt.Sprintf(":%d/", p.Port()), 1)
			o.BatchBytes = 8 << 10
			start := func() (*running, *nats.Conn, *queue.Queue) {
				nc, err := ns.Connect()
				if err != nil {
					t.Fatal(err)
				}
				q := openQueue(t, nc)
				o.Queue = UseQueue(q, queue.AppenderOptions{})
				return run(t, o), nc, q
			}
			reader, nc, q := start()
			awaitStreaming(t, reader)
			tail, err := q.Tail(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			var rows, txns atomic.Int64
			stop, done := make(chan struct{}), make(chan struct{})
			w := connect(t, db)
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					default:
					}
					n := int64(1)
					if txns.Load()%17 == 5 {
						n = 2000
					}
					first := rows.Load() + 1
					w.exec(t, fmt.Sprintf(`INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(%d, %d) g`, first, first+n-1))
					rows.Add(n)
					txns.Add(1)
				}
			}()
			for range 8 {
				time.Sleep(time.Duration(r.IntN(250)) * time.Millisecond)
				// As a kill does: nothing is flushed, nothing is said to the server.
				switch r.IntN(3) {
				case 0:
					nc.Close()
					p.Reset()
				case 1:
					p.Reset()
					nc.Close()
				case 2:
					p.CutAfterBytes(int64(r.IntN(200_000)))
					time.Sleep(20 * time.Millisecond)
					nc.Close()
					p.Reset()
				}
				p.Heal()
				reader.cancel()
				_ = reader.wait(t)
				nc.Close()
				reader, nc, q = start()
			}
			close(stop)
			<-done
			target, err := change.ParseLSN(pgtest.QueryString(t, db, `SELECT pg_current_wal_lsn()`))
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, db, `INSERT INTO t VALUES (-1)`)
			pgtest.Eventually(t, 60*time.Second, func() error {
				tail, err := q.Tail(context.Background())
				if err != nil {
					return err
				}
				if tail.Header.End <= target {
					return fmt.Errorf("queue ends at %v, log at %v", tail.Header.End, target)
				}
				return nil
			})
			reader.stop(t)
			txs, err := transactions(readAll(t, q, tail.Header.End))
			if err != nil {
				t.Fatal(err)
			}
			if got := int64(len(txs)); got != txns.Load()+1 {
				t.Errorf("%d transactions are queued, %d were committed", got, txns.Load()+1)
			}
			next, again := int64(1), 0
			for _, tx := range txs {
				again += tx.attempts - 1
				for _, m := range tx.msgs {
					if m == "I -1 " {
						continue
					}
					if m != fmt.Sprintf("I %d #50", next) {
						t.Fatalf("row %q where %d is due", m, next)
					}
					next++
				}
			}
			if next-1 != rows.Load() {
				t.Errorf("%d rows are queued, %d were committed", next-1, rows.Load())
			}
			t.Logf("%d transactions, %d rows, %d transactions begun anew", len(txs), next-1, again)
		})
	}
}

func TestRun_NATSRestartLosesNothing(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	ns := natstest.StartRestartable(t)
	nc := ns.Connect()
	defer nc.Close()
	q := openQueue(t, nc)
	o := options(t, db, UseQueue(q, queue.AppenderOptions{}))
	r := run(t, o)
	awaitStreaming(t, r)
	tail, err := q.Tail(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, 2*i))
		ns.Stop()
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, 2*i+1))
		ns.Start()
	}
	pgtest.Eventually(t, 40*time.Second, func() error {
		now, err := q.Tail(context.Background())
		if err != nil {
			return err
		}
		if now.Header.IsMark() {
			return errors.New("a mark is last")
		}
		txs, err := transactions(readAll(t, q, tail.Header.End))
		if err != nil {
			return err
		}
		if len(txs) < 6 {
			return fmt.Errorf("%d transactions", len(txs))
		}
		return nil
	})
	r.stop(t)
}

// A row that is larger than a message of NATS passes.
func TestCB125_HugeRowSpansBatches(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	ns := natstest.Start(t, natstest.WithMaxPayload(256<<10))
	nc, err := ns.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	q := openQueue(t, nc)
	o := options(t, db, UseQueue(q, queue.AppenderOptions{}))
	o.BatchBytes = 1 << 20 // more than the server takes
	r := run(t, o)
	awaitStreaming(t, r)
	tail, err := q.Tail(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db, `BEGIN; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2, repeat('x', 12000000)); INSERT INTO t VALUES (3); COMMIT`)
	pgtest.Eventually(t, 30*time.Second, func() error {
		now, err := q.Tail(context.Background())
		if err != nil {
			return err
		}
		if now.Header.Txns == 0 {
			return errors.New("not there")
		}
		return nil
	})
	r.stop(t)
	txs, err := transactions(readAll(t, q, tail.Header.End))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(txs[0].msgs, ","); got != "I 1 ,I 2 #12000000,I 3 " {
		t.Errorf("rows %s", got)
	}
}

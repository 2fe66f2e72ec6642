package source

import (
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
	m "github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

// walsender is a scripted server: it knows the statements of the reader and
// then sends what the script writes.
type walsender struct {
	t       testing.TB
	l       net.Listener
	script  func(w *walsender, conn net.Conn)
	flushed atomic.Uint64 // of the last status update
	status  atomic.Int64  // how many came
	wg      sync.WaitGroup
}

func startWalsender(t testing.TB, script func(w *walsender, conn net.Conn)) *walsender {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &walsender{t: t, l: l, script: script}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { defer c.Close(); w.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); w.wg.Wait() })
	return w
}

func (w *walsender) url() string { return "postgres://u@" + w.l.Addr().String() + "/d?sslmode=disable" }

func (w *walsender) serve(c net.Conn) {
	be := pgproto3.NewBackend(c, c)
	if _, err := be.ReceiveStartupMessage(); err != nil {
		return
	}
	be.Send(&pgproto3.AuthenticationOk{})
	be.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.4"})
	be.Send(&pgproto3.ParameterStatus{Name: "server_encoding", Value: "UTF8"})
	be.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	be.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		if err := be.Flush(); err != nil {
			return
		}
		msg, err := be.Receive()
		if err != nil {
			return
		}
		q, ok := msg.(*pgproto3.Query)
		if !ok {
			return
		}
		var rows [][]string
		switch s := q.String; {
		case s == "IDENTIFY_SYSTEM":
			rows = [][]string{{"7", "1", "0/7FFFFFFF", "d"}}
		case strings.Contains(s, "wal_level"):
			rows = [][]string{{"logical", "", "", "16384"}}
		case strings.Contains(s, "pg_replication_slots"):
			rows = [][]string{{"pgoutput", "d", "false", "false", "", "0/64", "0/64", "reserved", "", "", "logical"}}
		case strings.HasPrefix(s, "SELECT pubname FROM pg_catalog.pg_publication"):
			rows = [][]string{{"p"}}
		case strings.HasPrefix(s, "START_REPLICATION"):
			be.Send(&pgproto3.CopyBothResponse{})
			if be.Flush() != nil {
				return
			}
			w.wg.Go(func() { w.read(be) })
			w.script(w, c)
			return
		}
		if rows != nil {
			f := make([]pgproto3.FieldDescription, len(rows[0]))
			for i := range f {
				f[i] = pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: 25, DataTypeSize: -1}
			}
			be.Send(&pgproto3.RowDescription{Fields: f})
		}
		for _, r := range rows {
			vals := make([][]byte, len(r))
			for i, v := range r {
				vals[i] = []byte(v)
			}
			be.Send(&pgproto3.DataRow{Values: vals})
		}
		be.Send(&pgproto3.CommandComplete{CommandTag: []byte("OK")})
		be.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

// read takes status updates until the reader leaves.
func (w *walsender) read(be *pgproto3.Backend) {
	for {
		msg, err := be.Receive()
		if err != nil {
			return
		}
		if d, ok := msg.(*pgproto3.CopyData); ok && len(d.Data) == 34 && d.Data[0] == 'r' {
			flush := binary.BigEndian.Uint64(d.Data[9:])
			if apply := binary.BigEndian.Uint64(d.Data[17:]); apply != flush || flush == 0 {
				w.t.Errorf("status update has flush %d, apply %d", flush, apply)
			}
			if flush < w.flushed.Load() {
				w.t.Errorf("flush position fell from %d to %d", w.flushed.Load(), flush)
			}
			w.flushed.Store(flush)
			w.status.Add(1)
		}
	}
}

func be32(b []byte, v int) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// xlogData frames messages as the server does.
func xlogData(dst []byte, msgs ...[]byte) []byte {
	for _, msg := range msgs {
		dst = be32(append(dst, 'd'), 4+25+len(msg))
		dst = append(dst, 'w')
		dst = append(dst, make([]byte, 24)...)
		dst = append(dst, msg...)
	}
	return dst
}

func keepalive(end change.LSN, reply byte) []byte {
	b := append(be32([]byte{'d'}, 4+18), 'k')
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	b = append(b, make([]byte, 8)...)
	return append(b, reply)
}

func scripted(w *walsender, q Queue) Options {
	return Options{Name: "x", Conn: w.url(), Slot: "s", Publications: []string{"p"}, Queue: q}
}

// nullQueue stores nothing at once.
type nullQueue struct {
	memQueue
	end     atomic.Uint64
	batches atomic.Int64
	rows    atomic.Int64
	c       chan struct{}
}

func (q *nullQueue) Tail(context.Context) (queue.Tail, error)                  { return queue.Tail{Empty: true}, nil }
func (q *nullQueue) NewAppender(context.Context, queue.Tail) (Appender, error) { return q, nil }
func (q *nullQueue) Show(*change.BatchHeader, []byte)                          {}
func (q *nullQueue) Durable() (change.LSN, uint64)                             { return change.LSN(q.end.Load()), 0 }
func (q *nullQueue) InFlight() int                                             { return 0 }
func (q *nullQueue) Progress() <-chan struct{}                                 { return q.c }
func (q *nullQueue) Err() error                                                { return nil }
func (q *nullQueue) Flush(context.Context) error                               { return nil }
func (q *nullQueue) Close() error                                              { return nil }
func (q *nullQueue) Append(_ context.Context, h *change.BatchHeader, _ []byte) error {
	q.end.Store(uint64(h.End))
	q.rows.Add(int64(h.Rows))
	q.batches.Add(1)
	select {
	case q.c <- struct{}{}:
	default:
	}
	return nil
}

func newNullQueue() *nullQueue {
	return &nullQueue{memQueue: memQueue{limit: 1 << 20}, c: make(chan struct{}, 1)}
}

// allocsPerRow counts the allocations of the whole process while a reader takes
// transactions of so many rows.
func allocsPerRow(t testing.TB, rowsPerTx int) float64 {
	const total = 400_000
	row := m.Insert(1, m.Row{"1234567", "some text of a usual length, about forty bytes", nil, "2026-01-01 00:00:00+00"})
	var before, after runtime.MemStats
	q := newNullQueue()
	count := func(n int64) {
		for q.rows.Load() < n {
			time.Sleep(time.Millisecond)
		}
	}
	w := startWalsender(t, func(_ *walsender, c net.Conn) {
		lsn := change.LSN(200)
		buf := make([]byte, 0, 4<<20)
		sent := int64(0)
		send := func(txns int) {
			buf = buf[:0]
			for range txns {
				buf = xlogData(buf, m.Begin(lsn, at, 1))
				if lsn == 200 {
					buf = xlogData(buf, table(1, "a", "t", 4))
				}
				for range rowsPerTx {
					buf = xlogData(buf, row)
					sent++
				}
				buf = xlogData(buf, m.Commit(lsn, lsn+8, at))
				lsn += 8
			}
		}
		per := max(1, 10_000/rowsPerTx)
		send(per) // warm up
		if _, err := c.Write(buf); err != nil {
			return
		}
		count(sent)
		var pieces [][]byte
		for sent < total {
			send(per)
			pieces = append(pieces, slices.Clone(buf))
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		for _, p := range pieces {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
		count(sent)
		runtime.ReadMemStats(&after)
		_, _ = c.Write(keepalive(lsn, 1))
	})
	r := run(t, scripted(w, q))
	deadline := time.Now().Add(30 * time.Second)
	for q.rows.Load() < total && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	r.stop(t)
	if q.rows.Load() < total {
		t.Fatalf("%d rows arrived", q.rows.Load())
	}
	return float64(after.Mallocs-before.Mallocs) / (total - 10_000)
}

func TestReader_RowsAllocateNothingFromSocketToQueue(t *testing.T) {
	for _, n := range []int{1, 10, 10_000} {
		a := allocsPerRow(t, n)
		t.Logf("%d rows a transaction: %.4f allocations a row", n, a)
		if a > 0.02 {
			t.Errorf("%d rows a transaction: %.4f allocations a row", n, a)
		}
	}
}

func BenchmarkReader(b *testing.B) {
	row := m.Insert(1, m.Row{"1234567", "some text of a usual length, about forty bytes", nil, "2026-01-01 00:00:00+00"})
	begin := xlogData(nil, m.Begin(1000, at, 1), table(1, "a", "t", 4))
	piece := []byte{}
	for range 1000 {
		piece = xlogData(piece, row)
	}
	for b.Loop() {
		const rows = 500_000
		q := newNullQueue()
		w := startWalsender(b, func(_ *walsender, c net.Conn) {
			_, _ = c.Write(begin)
			for range rows / 1000 {
				if _, err := c.Write(piece); err != nil {
					return
				}
			}
			_, _ = c.Write(xlogData(nil, m.Commit(1000, 1008, at)))
		})
		b.SetBytes(rows * int64(len(row)))
		began := time.Now()
		r := run(b, scripted(w, q))
		for q.end.Load() < 1008 {
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(rows/time.Since(began).Seconds(), "rows/s")
		r.stop(b)
	}
}

// A transaction that comes alone leaves at once; under load they are packed.
func TestReader_LoneTransactionsLeaveAtOnceAndLoadIsPacked(t *testing.T) {
	var mu sync.Mutex
	sentAt := map[change.LSN]time.Time{}
	var lat []time.Duration
	var batches, txns int
	queued := func() int { mu.Lock(); defer mu.Unlock(); return txns }
	// phase sends n transactions in bursts. A burst of one waits until the one
	// before it is queued, so that it is alone however late this test is woken.
	phase := func(lsn *change.LSN, c net.Conn, n, burst int) (fast time.Duration, nb, nt int) {
		mu.Lock()
		lat, batches, txns = nil, 0, 0
		mu.Unlock()
		next := time.Now()
		for sent := 0; sent < n; sent += burst {
			for range burst {
				b := xlogData(nil, m.Begin(*lsn, at, 1))
				if *lsn == 200 {
					b = xlogData(b, table(1, "a", "t", 1))
				}
				_, _ = c.Write(b)
				_, _ = c.Write(xlogData(nil, m.Insert(1, m.Row{"1"}))) // as the server: one write a message
				mu.Lock()
				sentAt[*lsn+8] = time.Now()
				mu.Unlock()
				_, _ = c.Write(xlogData(nil, m.Commit(*lsn, *lsn+8, at)))
				*lsn += 8
			}
			for burst == 1 && queued() <= sent {
				time.Sleep(100 * time.Microsecond)
			}
			next = next.Add(5 * time.Millisecond)
			time.Sleep(time.Until(next))
		}
		for queued() < n {
			time.Sleep(time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(lat)
		return lat[len(lat)/10], batches, txns
	}
	done := make(chan struct{})
	w := startWalsender(t, func(_ *walsender, c net.Conn) {
		defer close(done)
		lsn := change.LSN(200)
		// Waiting on purpose would delay every transaction, a busy machine some of them.
		fast, nb, nt := phase(&lsn, c, 200, 1)
		t.Logf("200 tx/s: %d batches for %d transactions, the fastest tenth within %v from commit to queue", nb, nt, fast)
		if nb != nt || fast > shortPause/2 {
			t.Errorf("200 tx/s: %d batches for %d transactions, the fastest tenth within %v", nb, nt, fast)
		}
		fast, nb, nt = phase(&lsn, c, 20_000, 100)
		t.Logf("20000 tx/s: %d batches for %d transactions, the fastest tenth within %v from commit to queue", nb, nt, fast)
		if nb > nt/4 {
			t.Errorf("20000 tx/s: %d batches for %d transactions", nb, nt)
		}
	})
	q := newNullQueue()
	o := scripted(w, q)
	o.Events.OnQueued = func(b Queued) {
		mu.Lock()
		defer mu.Unlock()
		if b.Txns == 0 {
			return
		}
		batches++
		txns += b.Txns
		lat = append(lat, time.Since(sentAt[b.End]))
	}
	r := run(t, o)
	<-done
	r.stop(t)
}

// A message of the server that is cut in the middle is continued, whatever the
// read deadline does meanwhile.
func TestReader_MessagesInDribbles(t *testing.T) {
	q := newMemQueue()
	w := startWalsender(t, func(_ *walsender, c net.Conn) {
		var all []byte
		lsn := change.LSN(200)
		for range 10 {
			all = xlogData(all, tx(lsn, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}))...)
			lsn += 8
		}
		for len(all) > 0 {
			n := min(len(all), 37)
			if _, err := c.Write(all[:n]); err != nil {
				return
			}
			all = all[n:]
			time.Sleep(3 * time.Millisecond)
		}
	})
	r := run(t, scripted(w, q))
	if rows := awaitRows(t, q, 10); len(rows) != 10 {
		t.Errorf("%d rows", len(rows))
	}
	_ = r
}

// A keepalive's position is confirmed when nothing is pending, and only then.
func TestReader_MarkOnlyBetweenTransactions(t *testing.T) {
	q := newMemQueue()
	inside := make(chan struct{})
	w := startWalsender(t, func(w *walsender, c net.Conn) {
		_, _ = c.Write(xlogData(nil, m.Begin(200, at, 1), table(1, "a", "t", 1), m.Insert(1, m.Row{"1"})))
		_, _ = c.Write(keepalive(5000, 1))
		for w.status.Load() < 2 { // the keepalive is answered
			time.Sleep(time.Millisecond)
		}
		if f := w.flushed.Load(); f > 200 {
			t.Errorf("%d is confirmed inside of a transaction", f)
		}
		close(inside)
		_, _ = c.Write(xlogData(nil, m.Commit(200, 208, at)))
		_, _ = c.Write(keepalive(6000, 1))
		for w.flushed.Load() < 6000 {
			time.Sleep(time.Millisecond)
		}
	})
	o := scripted(w, q)
	o.StatusInterval = 10 * time.Millisecond
	r := run(t, o)
	<-inside
	awaitRows(t, q, 1)
	deadline := time.Now().Add(10 * time.Second)
	for q.end() < 6000 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	r.cancel()
	if q.end() != 6000 {
		t.Errorf("the queue ends at %d, want a mark at 6000", q.end())
	}
}

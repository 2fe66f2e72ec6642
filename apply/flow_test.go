package apply

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/pgoutput"
)

// flow carries the log of a publisher's database into an in-memory queue, and
// applies that to a subscriber's database.
type flow struct {
	t        testing.TB
	pub, sub string
	slot     string
	conn     *pgconn.PgConn
	opts     Options
	chunk    int // messages of a chunk; 0: whole transactions
	pack     int // transactions of a batch; 0: all that one pull returns

	mu      sync.Mutex
	batches []batch
	grown   chan struct{}
	rels    map[change.OID][]byte
	end     change.LSN

	stop   context.CancelFunc
	result chan error

	cards      []*ErrorCard
	commits    []Commit
	exceptions []string
	waits      []string
}

type batch struct {
	header change.BatchHeader
	body   []byte
}

// newFlow makes both databases. setup runs on both, then pubSetup and subSetup.
func newFlow(t testing.TB, setup, pubSetup, subSetup string) *flow {
	t.Helper()
	c := pgtest.Shared(t)
	f := &flow{t: t, pub: c.DB(t), sub: c.DB(t), grown: make(chan struct{}), rels: map[change.OID][]byte{}}
	for _, x := range []struct{ url, sql string }{{f.pub, setup}, {f.sub, setup}, {f.pub, pubSetup}, {f.sub, subSetup}} {
		if x.sql != "" {
			pgtest.Exec(t, x.url, x.sql)
		}
	}
	if pgtest.QueryString(t, f.pub, "SELECT count(*) FROM pg_publication") == "0" {
		pgtest.Exec(t, f.pub, "CREATE PUBLICATION p FOR ALL TABLES")
	}
	f.slot = "s" + strings.NewReplacer("-", "_").Replace(pgtest.QueryString(t, f.pub, "SELECT oid FROM pg_database WHERE datname = current_database()"))
	pgtest.Exec(t, f.pub, "SELECT pg_create_logical_replication_slot('"+f.slot+"', 'pgoutput')")
	start, err := change.ParseLSN(pgtest.QueryString(t, f.pub, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+f.slot+"'"))
	if err != nil {
		t.Fatal(err)
	}
	f.end = start
	f.conn = dial(t, f.pub)
	sub := dial(t, f.sub)
	if err := sqlw.EnsureSchema(t.Context(), sub); err != nil {
		t.Fatal(err)
	}
	name := "t" + f.slot
	if err := SetPosition(t.Context(), sub, name, start, 0); err != nil {
		t.Fatal(err)
	}
	level := slog.LevelError + 4
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	f.opts = Options{
		Subscription: name, Publisher: "p", Conn: f.sub, OnUnknown: Apply, OpenReader: f.openReader,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
		Events: Events{
			OnError:   func(c *ErrorCard) { f.mu.Lock(); defer f.mu.Unlock(); f.cards = append(f.cards, c) },
			OnCommit:  func(c Commit) { f.mu.Lock(); defer f.mu.Unlock(); f.commits = append(f.commits, c) },
			OnWaiting: func(s string) { f.mu.Lock(); defer f.mu.Unlock(); f.waits = append(f.waits, s) },
			OnException: func(c, tb string, p Policy) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.exceptions = append(f.exceptions, c+" "+tb+" "+string(p))
			},
		},
	}
	t.Cleanup(func() {
		f.halt()
		pgtest.DropOrigin(t, f.sub, OriginName(name))
	})
	return f
}

func dial(t testing.TB, url string) *pgconn.PgConn {
	t.Helper()
	cfg, err := pgconnect.Parse(url, "test")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// publish runs SQL on the publisher and puts what it logged into the queue.
func (f *flow) publish(sql ...string) {
	f.t.Helper()
	pgtest.Exec(f.t, f.pub, sql...)
	f.pull()
}

func (f *flow) pull() {
	f.t.Helper()
	pubs := pgtest.QueryString(f.t, f.pub, "SELECT string_agg(quote_ident(pubname), ',') FROM pg_publication")
	r := f.conn.ExecParams(f.t.Context(), "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', $2, 'messages', 'true')",
		[][]byte{[]byte(f.slot), []byte(pubs)}, nil, nil, []int16{1}).Read()
	if r.Err != nil {
		f.t.Fatal(r.Err)
	}
	var msgs [][]byte
	for _, row := range r.Rows {
		msgs = append(msgs, append([]byte{}, row[0]...))
	}
	f.add(msgs)
}

// add puts messages of whole transactions into the queue.
func (f *flow) add(msgs [][]byte) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	w := batchWriter{f: f}
	for _, m := range msgs {
		w.message(m)
	}
	w.flush(false)
	close(f.grown)
	f.grown = make(chan struct{})
}

type batchWriter struct {
	f     *flow
	body  []byte
	h     change.BatchHeader
	seen  map[change.OID]bool
	chunk int
	count int // messages in this chunk
	inTx  bool
}

func (w *batchWriter) need(oid change.OID) {
	if w.seen == nil {
		w.seen = map[change.OID]bool{}
	}
	if !w.seen[oid] && w.f.rels[oid] != nil {
		w.seen[oid] = true
		w.body = change.AppendRecord(w.body, w.f.rels[oid])
	}
}

func (w *batchWriter) message(m []byte) {
	switch m[0] {
	case 'R':
		oid, _ := pgoutput.RelationOID(m)
		w.f.rels[oid] = m
		delete(w.seen, oid)
		return
	case 'I', 'U', 'D':
		oid, _ := pgoutput.RelationOID(m)
		w.need(oid)
		w.h.Rows++
	case 'T':
		n := binary.BigEndian.Uint32(m[1:])
		for i := range n {
			w.need(change.OID(binary.BigEndian.Uint32(m[6+4*i:])))
		}
		w.h.Rows++
	case 'B':
		w.inTx, w.chunk = true, 0
		if w.f.chunk > 0 {
			w.flush(false)
		}
		c := change.LSN(binary.BigEndian.Uint64(m[1:]))
		if w.h.First == 0 {
			w.h.First = c
		}
		w.h.Last = c
	}
	w.body = change.AppendRecord(w.body, m)
	w.count++
	if m[0] == 'C' {
		w.inTx = false
		w.h.Txns++
		w.h.End = change.LSN(binary.BigEndian.Uint64(m[10:]))
		if w.f.chunk > 0 || w.f.pack > 0 && w.h.Txns >= w.f.pack {
			w.flush(false)
		}
		return
	}
	if w.f.chunk > 0 && w.count >= w.f.chunk {
		w.flush(true)
	}
}

func (w *batchWriter) flush(open bool) {
	if len(w.body) == 0 {
		return
	}
	h := w.h
	h.Version, h.Prev = change.FormatVersion, w.f.end
	if open || w.chunk > 0 {
		h.Chunked, h.Chunk, h.Open = true, w.chunk, open
		w.chunk++
	}
	if open {
		h.End = w.f.end
	}
	w.f.batches = append(w.f.batches, batch{h, w.body})
	w.f.end = h.End
	last := w.h.Last
	w.body, w.seen, w.count, w.h = nil, nil, 0, change.BatchHeader{}
	if open {
		w.h.First, w.h.Last = last, last
	}
}

// openReader is the queue's part.
func (f *flow) openReader(_ context.Context, from change.LSN) (Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &memReader{f: f}
	for r.next < len(f.batches) && (f.batches[r.next].header.Last < from || f.batches[r.next].header.IsMark() && f.batches[r.next].header.End <= from) {
		r.next++
	}
	return r, nil
}

type memReader struct {
	f    *flow
	next int
	last change.BatchHeader
}

func (r *memReader) Ready() bool {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return r.next < len(r.f.batches)
}

func (r *memReader) Next(ctx context.Context) (*queue.Delivery, error) {
	for {
		r.f.mu.Lock()
		grown := r.f.grown
		if r.next < len(r.f.batches) {
			b := r.f.batches[r.next]
			r.f.mu.Unlock()
			r.next++
			restart := r.last.Open && !(b.header.Chunked && b.header.Chunk == r.last.Chunk+1)
			r.last = b.header
			return &queue.Delivery{Seq: uint64(r.next), Header: b.header, Body: b.body, Restart: restart}, nil
		}
		r.f.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-grown:
		}
	}
}

func (r *memReader) Close() error { return nil }

// run starts the applier.
func (f *flow) run() {
	ctx, stop := context.WithCancel(context.Background())
	f.stop, f.result = stop, make(chan error, 1)
	go func() { f.result <- Run(ctx, f.opts) }()
}

// halt stops the applier and returns how it ended.
func (f *flow) halt() error {
	if f.stop == nil {
		return nil
	}
	f.stop()
	f.stop = nil
	select {
	case err := <-f.result:
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	case <-time.After(20 * time.Second):
		f.t.Fatal("the applier does not stop")
	}
	return nil
}

// applied waits until everything in the queue is applied.
func (f *flow) applied() {
	f.t.Helper()
	f.mu.Lock()
	end := f.end
	f.mu.Unlock()
	pgtest.Eventually(f.t, 20*time.Second, func() error {
		select {
		case err := <-f.result:
			f.result <- err
			return fmt.Errorf("the applier ended: %w", err)
		default:
		}
		if got := pgtest.QueryString(f.t, f.sub, "SELECT position >= '"+end.String()+"' FROM walferry.subscription"); got != "t" {
			return fmt.Errorf("position %s, want %s; last card %v; waits %v", pgtest.QueryString(f.t, f.sub, "SELECT position FROM walferry.subscription"), end, f.card(), f.waits)
		}
		return nil
	})
}

// through publishes and waits.
func (f *flow) through(sql ...string) {
	f.t.Helper()
	f.publish(sql...)
	f.applied()
}

func (f *flow) card() *ErrorCard {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cards) == 0 {
		return nil
	}
	return f.cards[len(f.cards)-1]
}

// stopped waits for an error card that mentions text.
func (f *flow) stopped(text string) *ErrorCard {
	f.t.Helper()
	var c *ErrorCard
	pgtest.Eventually(f.t, 15*time.Second, func() error {
		if c = f.card(); c == nil {
			return errors.New("no error card")
		}
		if !strings.Contains(fmt.Sprintf("%v %v %v", c, c.Constraint, c.Detail), text) {
			return fmt.Errorf("card %v does not mention %q", c, text)
		}
		return nil
	})
	return c
}

// want compares the result of a query on the subscriber.
func (f *flow) want(query, want string) {
	f.t.Helper()
	if d := cmp.Diff(want, pgtest.QueryString(f.t, f.sub, query)); d != "" {
		f.t.Errorf("%s (-want +got):\n%s", query, d)
	}
}

// same compares the result of a query on both sides.
func (f *flow) same(query string) {
	f.t.Helper()
	f.want(query, pgtest.QueryString(f.t, f.pub, query))
}

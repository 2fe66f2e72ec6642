package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/source/pgoutput"
)

// reader is what survives from one session to the next.
type reader struct {
	o      *Options
	anew   bool // begin the open transaction of the queue with chunk 0
	ready  bool // a session has streamed
	made   bool // the publication
	beat   *heartbeat
	warned bool // of an empty queue with a slot
	moved  bool // the last session has stored something
}

// session is one connection, from setup to its end.
type session struct {
	*reader
	w      *wire
	app    Appender
	fb     *feedback
	b      *batcher
	dec    pgoutput.Decoder
	spool  *spool // nil without streaming
	server server
	target change.LSN // Once: done when this is durable

	walEnd    change.LSN // highest position the server has named
	keepalive change.LSN // of the last keepalive, if nothing came after it
	prompt    bool       // that keepalive asked for a reply

	now      time.Time // about now: read at most once per read from the socket
	deadline time.Time // of reads
	nextTick time.Time
	sent     time.Time // when the last small batch was sent
	marked   time.Time // when the last mark was sent, or the stream began
	heard    time.Time // when the server was heard last
	asked    bool      // a reply was asked for since
	coalesce coalescer
	age      time.Duration // of the transaction that came last, when the server sent it

	serverTime uint64 // of the last message of the log; see microsecondsSince2000
	got        int    // messages since the last tick
	gotBytes   int64
}

// run makes one session. It returns nil when ctx ends and errDone when
// Options.Once is fulfilled.
func (r *reader) run(ctx context.Context) error {
	s := &session{reader: r}
	if err := s.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r.ready = true
	r.o.Events.state(Streaming, fmt.Sprintf("from %v", s.b.prev))
	began, _ := s.app.Durable()
	err := s.stream(ctx)
	if end, _ := s.app.Durable(); end > began {
		r.moved = true
	}
	if cerr := s.close(ctx, err); cerr != nil && (ctx.Err() != nil || errors.Is(err, errDone)) {
		r.o.Logger.Warn("stop was not clean: what was not stored is read again at the next start", "error", cerr)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// open goes from a connection string to a running stream.
func (s *session) open(ctx context.Context) (err error) {
	o := s.o
	o.Events.state(Connecting, "")
	cfg, err := pgconnect.Parse(o.Conn, pgconnect.Replication)
	if err != nil {
		return &Error{Kind: ErrUnsupported, Err: err, Hint: "correct the publisher's url"}
	}
	name := o.Slot
	if !strings.HasPrefix(name, "walferry") {
		name = "walferry_" + name
	}
	cfg.RuntimeParams["application_name"] = name // for synchronous_standby_names
	in := new(readAhead)
	in.use(cfg)
	nearby(cfg)
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to publisher: %w", err)
	}
	defer func() {
		if err == nil {
			return
		}
		if s.app != nil {
			_ = s.app.Close()
		}
		if s.w != nil {
			_ = s.w.conn.Close()
			return
		}
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(cctx)
	}()
	st, slot, sit, err := s.prepare(ctx, conn)
	if err != nil {
		return err
	}
	if s.w, err = startReplication(ctx, conn, in, s.command(st.from)); err != nil {
		if sqlstate(err) == "55006" { // object_in_use
			return errSlotBusy
		}
		return err
	}
	// The slot is ours now. Another reader may have appended until a moment
	// ago.
	tail, err := o.Queue.Tail(ctx)
	if err != nil {
		return fmt.Errorf("read end of queue: %w", err)
	}
	if tail.Seq != sit.tail.Seq {
		return errMoved
	}
	if s.app, err = o.Queue.NewAppender(ctx, tail); err != nil {
		return fmt.Errorf("open queue: %w", err)
	}
	if err := s.begin(st); err != nil {
		return err
	}
	s.fb = &feedback{
		w: s.w, app: s.app, applied: o.ConfirmApplied, interval: o.StatusInterval, confirmed: o.Events.OnConfirmed,
		kick: make(chan struct{}, 1), flush: slot.confirmed,
	}
	if !s.server.sync {
		s.fb.gap = statusGap
	}
	s.fb.received.Store(uint64(s.b.prev))
	s.fb.held.Store(st.seam != nil)
	if tail.Empty {
		// Say where the queue begins, so that it is never empty again.
		if err := s.b.mark(ctx, st.at); err != nil {
			return err
		}
	}
	return nil
}

// begin sets up the state of the stream.
func (s *session) begin(st start) error {
	s.dec.Protocol = 1
	limit := min(s.o.BatchBytes, s.o.Queue.MaxBatch())
	s.b = &batcher{
		sink: s.append, shows: s.app.Show, limit: limit, cache: newCatalog(), body: make([]byte, 0, limit),
		system: s.server.system, timeline: s.server.timeline, prev: st.at, resume: st.resume, seam: st.seam,
	}
	if st.seam != nil {
		st.seam.slot = s.o.Slot
	}
	if s.o.Streaming {
		s.dec.Protocol = 2
		var err error
		if s.spool, err = openSpool(s.o.SpoolDir); err != nil {
			return err
		}
	}
	s.coalesce.near = s.w.sock.near
	s.walEnd, s.target = st.at, s.server.flushed
	s.now = time.Now()
	s.heard, s.marked = s.now, s.now
	return nil
}

// prepare verifies the publisher and finds, or makes, publication, slot and
// stream.
func (s *session) prepare(ctx context.Context, conn *pgconn.PgConn) (st start, slot slotState, sit situation, err error) {
	o := s.o
	if s.server, err = identify(ctx, conn); err != nil {
		return
	}
	if slot, err = readSlot(ctx, conn, o.Slot); err != nil {
		return
	}
	// The slot is read before the queue: a reader that is active now may move
	// both, the queue first.
	sit = situation{server: s.server, slot: slot}
	if sit.absent, err = s.createStream(ctx); err != nil {
		return
	}
	if sit.tail, err = s.tail(ctx, slot); err != nil {
		return
	}
	h := &sit.tail.Header
	if !sit.tail.Empty && h.System == s.server.system && h.Timeline < s.server.timeline {
		if sit.forked, sit.related, err = switchPoint(ctx, conn, s.server.timeline, h.Timeline); err != nil {
			return
		}
	}
	if err = slot.check(o.Slot, s.server.database, h.End); err != nil {
		return
	}
	if sit.tail.Empty || h.System == s.server.system {
		if err = o.Queue.Claim(ctx, fmt.Sprintf("%d/%s", s.server.system, s.server.oid)); err != nil {
			return
		}
	}
	if !sit.tail.Empty && slot.exists && slot.confirmed < h.End {
		if sit.last, err = o.Queue.LastTransaction(ctx, sit.tail); err != nil {
			err = fmt.Errorf("read the last transaction of the queue: %w", err)
			return
		}
	}
	if st, err = decide(o.Slot, sit); s.mayRenew(slot) && errors.Is(err, ErrQueueBehind) {
		if err = s.renew(ctx, slot, err); err == nil {
			err = errMoved
		}
	}
	if err != nil {
		return
	}
	if slot.active {
		err = errSlotBusy
		return
	}
	if o.Make != nil && !s.made {
		var res PublicationResult
		if res, err = EnsurePublication(ctx, conn, *o.Make); err != nil {
			return
		}
		s.made = true
		if len(res.Without) > 0 {
			o.Logger.Warn("tables without replica identity are not added to the publication", "publication", o.Make.Name, "tables", fmt.Sprint(res.Without))
		}
	}
	if err = checkPublications(ctx, conn, o.publications()); err != nil {
		return
	}
	if st.create {
		if slot, err = ensureSlot(ctx, conn, o.Slot, o.Failover); err != nil {
			return
		}
		st.at, st.from = slot.confirmed, slot.confirmed
		o.Logger.Info("replication slot is created", "slot", o.Slot, "position", st.at.String())
	}
	if st.found && !s.warned {
		s.warned = true
		o.Logger.Warn("the queue is empty although the slot exists: the queue is filled from the slot's position; subscriptions that are behind it need a new initial copy",
			"slot", o.Slot, "position", st.at.String(), "stream_absent", sit.absent)
	}
	if s.anew && st.resume != nil {
		st.resume.msgs = 0
	}
	s.anew = false
	return
}

func (s *session) createStream(ctx context.Context) (absent bool, err error) {
	ok, err := s.o.Queue.Exists(ctx)
	if err != nil {
		return false, fmt.Errorf("look for queue: %w", err)
	}
	if ok {
		return false, nil
	}
	if err := s.o.Queue.Create(ctx); err != nil {
		return true, fmt.Errorf("create queue: %w", err)
	}
	return true, nil
}

// command is the START_REPLICATION statement.
func (s *session) command(at change.LSN) string {
	o := s.o
	names := make([]string, 0, 2)
	for _, p := range o.publications() {
		names = append(names, sqlw.QuoteIdent(p))
	}
	proto := 1
	if o.Streaming {
		proto = 2
	}
	opts := []string{
		fmt.Sprintf("proto_version '%d'", proto),
		"publication_names " + sqlw.QuoteLiteral(strings.Join(names, ",")),
		"messages 'true'",
	}
	if o.Streaming {
		opts = append(opts, "streaming 'on'")
	}
	if s.server.version >= 160000 && o.Origin != "" {
		opts = append(opts, "origin "+sqlw.QuoteLiteral(o.Origin))
	}
	return fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %v (%s)", sqlw.QuoteIdent(o.Slot), at, strings.Join(opts, ", "))
}

// append hands a batch to the queue.
func (s *session) append(ctx context.Context, h *change.BatchHeader, body []byte) error {
	began := time.Now()
	if err := s.app.Append(ctx, h, body); err != nil {
		return fmt.Errorf("append to queue: %w", err)
	}
	s.now = time.Now()
	s.sent = s.now
	if s.now.Sub(began) > tick {
		s.heard = s.now // the silence was ours
	}
	if f := s.o.Events.OnQueued; f != nil {
		f(Queued{End: h.End, Total: h.Total, Txns: h.Txns, Rows: h.Rows, Bytes: len(body), CommitTime: h.CommitTime})
	}
	return nil
}

// message takes one CopyData of the stream.
func (s *session) message(ctx context.Context, data []byte) error {
	s.got++
	s.gotBytes += int64(len(data))
	if len(data) == 0 {
		return protocolError("empty CopyData")
	}
	switch data[0] {
	case 'w': // XLogData: start, end, time, message
		if len(data) < 26 {
			return protocolError("XLogData of %d bytes", len(data))
		}
		s.keepalive, s.prompt = 0, false
		s.serverTime = binary.BigEndian.Uint64(data[17:])
		return s.pgoutput(ctx, data[25:])
	case 'k': // primary keepalive: end, time, reply requested
		if len(data) != 18 {
			return protocolError("keepalive of %d bytes", len(data))
		}
		s.keepalive = change.LSN(binary.BigEndian.Uint64(data[1:]))
		s.walEnd = max(s.walEnd, s.keepalive)
		if data[17] != 0 {
			s.prompt = true
			s.fb.wake()
		}
	}
	return nil // other codes are for features that were not asked for
}

// pgoutput takes one message of the output plugin.
func (s *session) pgoutput(ctx context.Context, raw []byte) error {
	if s.dec.InStream() {
		return s.streamed(ctx, raw)
	}
	// Rows are not decoded: the relation is all that must be known.
	if oid, ok := pgoutput.RelationOID(raw); ok && pgoutput.Kind(raw[0]) != pgoutput.Relation {
		return s.b.change(ctx, raw, oid)
	}
	m, err := s.dec.Decode(raw)
	if err != nil {
		return &Error{Kind: ErrProtocol, Err: err, Hint: "please report it with the server's version; nothing was stored"}
	}
	switch m.Kind {
	case pgoutput.Begin:
		s.age = s.ageOf(m.Time)
		return s.b.begin(m, raw)
	case pgoutput.Commit:
		return s.commit(ctx, m, raw)
	case pgoutput.Origin:
		s.b.setOrigin(raw)
	case pgoutput.Relation:
		return s.b.relation(ctx, m, raw)
	case pgoutput.Type:
		return s.b.typ(ctx, m, raw)
	case pgoutput.Truncate:
		return s.b.truncate(ctx, m, raw)
	case pgoutput.Logical:
		return s.b.logical(ctx, m, raw)
	case pgoutput.StreamStart, pgoutput.StreamCommit, pgoutput.StreamAbort:
		return s.streamControl(ctx, m)
	default:
		return protocolError("unexpected message %s", m.Kind)
	}
	return nil
}

// ageOf is how long ago t was by the server's clock.
func (s *session) ageOf(t time.Time) time.Duration {
	return time.Duration(int64(s.serverTime-microsecondsSince2000(t))) * time.Microsecond
}

func (s *session) commit(ctx context.Context, m *pgoutput.Message, raw []byte) error {
	end := m.EndLSN
	if err := s.b.commit(ctx, m, raw); err != nil {
		return err
	}
	s.received(end)
	return nil
}

// received notes that everything before end has been received.
func (s *session) received(end change.LSN) {
	s.walEnd = max(s.walEnd, end)
	s.fb.received.Store(uint64(s.walEnd))
	s.beat.note()
}

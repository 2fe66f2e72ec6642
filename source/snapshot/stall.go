package snapshot

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgquery"
)

const (
	sidePublisher  = "publisher"
	sideSubscriber = "subscriber"

	stallTick   = time.Second
	stallAfter  = 3 * time.Second
	stallRepeat = 10 * time.Second
)

// stall notices that the copy does not move and tells what it waits for. Its
// own goroutine asks both servers over connections of its own.
type stall struct {
	moved  atomic.Int64 // rises with every sign of life
	urls   map[string]string
	report func(Wait)
	log    *slog.Logger

	mu   sync.Mutex
	pids map[backend]bool // of the copy
	what string           // what is waited for, when that is known without asking
}

// backend is a server process of one side.
type backend struct {
	side string
	pid  uint32
}

func newStall(publisher, subscriber string, report func(Wait), log *slog.Logger) *stall {
	return &stall{
		urls:   map[string]string{sidePublisher: publisher, sideSubscriber: subscriber},
		report: report, log: log, pids: map[backend]bool{},
	}
}

func (s *stall) move() { s.moved.Add(1) }

// follow names the backend of a side that may wait.
func (s *stall) follow(side string, pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[backend{side, pid}] = true
	s.move()
}

// leave forgets a backend.
func (s *stall) leave(side string, pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pids, backend{side, pid})
}

// expect is follow for one long command; the returned function ends it.
func (s *stall) expect(side string, pid uint32, what string) func() {
	s.follow(side, pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.what = what
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.what = ""
		delete(s.pids, backend{side, pid})
		s.move()
	}
}

// watch runs until ctx ends.
func (s *stall) watch(ctx context.Context) {
	t := time.NewTicker(stallTick)
	defer t.Stop()
	conns := map[string]*pgconn.PgConn{}
	defer func() {
		for _, c := range conns {
			closeConn(c)
		}
	}()
	last, since := int64(-1), time.Now()
	var told time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if n := s.moved.Load(); n != last {
			last, since, told = n, time.Now(), time.Time{}
			continue
		}
		if time.Since(since) < stallAfter || time.Since(told) < stallRepeat {
			continue
		}
		told = time.Now()
		s.tell(ctx, conns, since)
	}
}

// tell reports what each side waits for.
func (s *stall) tell(ctx context.Context, conns map[string]*pgconn.PgConn, since time.Time) {
	s.mu.Lock()
	pids, what := slices.Collect(maps.Keys(s.pids)), s.what
	s.mu.Unlock()
	slices.SortFunc(pids, func(a, b backend) int { return cmp.Or(cmp.Compare(a.side, b.side), cmp.Compare(a.pid, b.pid)) })
	told := map[string]bool{} // several workers may wait for the same
	for _, b := range pids {
		side := b.side
		reason, err := s.ask(ctx, conns, side, b.pid, what)
		if err != nil {
			s.log.Debug("cannot ask what the copy waits for", "side", side, "error", err)
			continue
		}
		if reason == "" || told[side+reason] {
			continue
		}
		told[side+reason] = true
		s.log.Info("copy is waiting", "side", side, "reason", reason, "for", time.Since(since).Round(time.Second))
		if s.report != nil {
			s.report(Wait{Side: side, Reason: reason, Since: since})
		}
	}
}

// ask returns "" when the backend waits for nothing that a person could end.
func (s *stall) ask(ctx context.Context, conns map[string]*pgconn.PgConn, side string, pid uint32, what string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cancelDeadline)
	defer cancel()
	c := conns[side]
	if c == nil || c.IsClosed() {
		var err error
		if c, err = connect(ctx, s.urls[side], "copy monitor"); err != nil {
			return "", err
		}
		conns[side] = c
	}
	by, err := pgquery.Blockers(ctx, c, strconv.FormatUint(uint64(pid), 10))
	if err != nil {
		return "", err
	}
	switch {
	case len(by) > 0:
		reason := "waiting for " + strings.Join(by, ", ")
		if what != "" {
			reason += " before " + what + " can be reached: end it or wait"
		}
		return reason, nil
	case what != "":
		r, err := pgquery.One(ctx, c, "SELECT pg_catalog.pg_is_in_recovery()")
		if err != nil {
			return "", err
		}
		if r.Bool(0) {
			return "waiting for " + what + " on a standby: SELECT pg_log_standby_snapshot() on its primary speeds it up", nil
		}
		return "waiting for " + what, nil
	}
	return "", nil
}

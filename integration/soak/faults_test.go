package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/internal/faultnet"
)

// step is one fault of a plan.
type step struct {
	pause   time.Duration // before it
	fault   int           // which
	hold    time.Duration // how long it stands
	variant int           // chooses between ways to do it
	overlap bool          // a network fault: it still stands when the next fault comes
}

// plan makes the faults of a run from its seed.
func plan(rng *rand.Rand, rounds, kinds int) []step {
	steps := make([]step, rounds)
	for i := range steps {
		hold := 50 + rng.IntN(2000)
		if rng.IntN(12) == 0 {
			hold = 6000 + rng.IntN(3000) // longer than wal_sender_timeout
		}
		steps[i] = step{
			pause: time.Duration(100+rng.IntN(1100)) * time.Millisecond, fault: rng.IntN(kinds),
			hold: time.Duration(hold) * time.Millisecond, variant: rng.IntN(1 << 20), overlap: rng.IntN(4) == 0,
		}
	}
	return steps
}

// fault is a way to break something.
type fault struct {
	kind string                     // for the summary
	name string                     // kind and what it hits
	do   func(s step) (heal func()) // heal is nil when nothing is left to end
}

// faults are those that the system's layout knows.
func (r *run) faults() []fault {
	s := r.system
	var out []fault
	add := func(kind, what string, do func(s step)) {
		out = append(out, fault{kind, kind + " " + what, func(s step) func() { do(s); return nil }})
	}
	processes := map[string]**process{}
	var names []string // in a fixed order
	if s.walferry != nil {
		processes["walferry"], names = &s.walferry, append(names, "walferry")
	} else {
		processes["the reader"], processes["the applier"] = &s.reader, &s.applier
		names = append(names, "the reader", "the applier")
	}
	for _, name := range names {
		p := processes[name]
		add("kill", name, func(st step) { r.killProcess(*p, st) })
		add("kill twice", name, func(st step) {
			(*p).kill()
			(*p).start()
			time.Sleep(st.hold / 3) // somewhere in its start
			(*p).kill()
			(*p).start()
		})
		add("stop", name, func(step) { (*p).stop(); (*p).start() })
		add("pause", name, func(st step) {
			(*p).freeze()
			time.Sleep(st.hold)
			(*p).signal(syscall.SIGCONT)
		})
	}
	if s.nats != nil {
		add("kill", "NATS", func(st step) { s.nats.Kill(); sleepSometimes(st); s.nats.Start() })
		add("kill twice", "NATS", func(st step) {
			s.nats.Kill()
			s.nats.Start()
			time.Sleep(st.hold / 4)
			s.nats.Kill()
			s.nats.Start()
		})
		add("pause", "NATS", func(st step) { s.nats.Pause(); time.Sleep(st.hold); s.nats.Resume() })
		add("zombie", "applier", func(st step) { r.zombie(&s.applier, st, endApplier) })
		add("zombie", "reader", func(st step) { r.zombie(&s.reader, st, endWalsender) })
	}
	add("kill", "the subscriber", func(st step) { r.killSubscriber(); sleepSometimes(st); s.sub.Start(s.t) })
	add("kill twice", "the subscriber", func(st step) {
		r.killSubscriber()
		s.sub.Start(s.t)
		time.Sleep(st.hold / 4)
		r.killSubscriber()
		s.sub.Start(s.t)
	})
	add("kill", "the publisher", func(st step) { s.pub.Kill(s.t); sleepSometimes(st); s.pub.Start(s.t) })
	add("kill", "everything", func(st step) {
		for _, name := range names {
			(*processes[name]).kill()
		}
		if s.nats != nil {
			s.nats.Kill()
		}
		s.pub.Kill(s.t)
		r.killSubscriber()
		s.sub.Start(s.t)
		s.pub.Start(s.t)
		if s.nats != nil {
			s.nats.Start()
		}
		for _, name := range names {
			(*processes[name]).start()
		}
	})
	add("end", "the walsender", func(step) { tryExec(s.pubURL, endWalsender) })
	add("end", "the applier's backend", func(step) { tryExec(s.subURL, endApplier) })
	add("lock", "a table of the subscriber", func(st step) {
		tryExec(s.subURL, fmt.Sprintf(`BEGIN; LOCK TABLE account IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(%.3f); COMMIT`, st.hold.Seconds()))
	})
	for _, l := range s.links {
		network := func(kind string, do func(p *faultnet.Proxy, variant int)) {
			out = append(out, fault{kind, kind + " the link to " + l.name, func(st step) func() {
				do(l.proxy, st.variant)
				time.Sleep(st.hold)
				return l.proxy.Heal
			}})
		}
		network("cut", func(p *faultnet.Proxy, _ int) { p.Cut() })
		network("half-open", func(p *faultnet.Proxy, _ int) { p.Stall() })
		network("stranded", func(p *faultnet.Proxy, _ int) { p.Strand() })
		network("cut in a message", func(p *faultnet.Proxy, n int) { p.CutAfterBytes(int64(n) % 100_000) })
		network("slow", func(p *faultnet.Proxy, n int) {
			p.Throttle(20_000 + n)
			p.Delay(time.Duration(n%60) * time.Millisecond)
		})
	}
	// The machine of a process is gone: nobody tells its peers.
	hosts := map[string][]link{"walferry": s.links}
	if s.walferry == nil { // in the order in which newSystem makes them
		hosts["the reader"], hosts["the applier"] = []link{s.links[0], s.links[2]}, []link{s.links[1], s.links[3]}
	}
	for _, name := range names {
		p := processes[name]
		out = append(out, fault{"lost host", "lost host of " + name, func(st step) func() {
			for _, l := range hosts[name] {
				l.proxy.Strand()
			}
			(*p).kill()
			(*p).start()
			time.Sleep(st.hold)
			return func() {
				for _, l := range hosts[name] {
					l.proxy.Heal()
				}
			}
		}})
	}
	return out
}

const (
	endWalsender = `SELECT pg_terminate_backend(pid) FROM pg_stat_replication`
	endApplier   = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walferry applier%'`
)

func sleepSometimes(st step) {
	if st.variant%2 == 0 {
		time.Sleep(st.hold / 2)
	}
}

func (r *run) killProcess(p *process, st step) {
	p.kill()
	sleepSometimes(st)
	p.start()
}

// killSubscriber may lose the commits of the last moment: the applier does not wait
// until they are on disk, and applies them again.
func (r *run) killSubscriber() {
	r.system.sub.Kill(r.system.t)
	r.watcher.lost.Add(1)
}

// zombie pauses a process, starts a second one that takes over, lets the first
// wake up beside it, and ends one of the two. In some variants the server ends
// the session of the paused one first, so that the second is at work when it
// wakes up.
func (r *run) zombie(p **process, st step, end string) {
	first := *p
	second := r.system.another(first)
	first.freeze()
	second.start()
	if st.variant%4 > 0 {
		time.Sleep(st.hold / 4)
		tryExec(map[bool]string{true: r.system.subURL, false: r.system.pubURL}[end == endApplier], end)
	}
	time.Sleep(st.hold)
	first.signal(syscall.SIGCONT)
	time.Sleep(st.hold / 2)
	first.check()
	second.check()
	if st.variant&4 > 0 {
		first, second = second, first
	}
	first.kill()
	*p = second
}

// tryExec runs SQL on a server that may be down.
func tryExec(url, sql string) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return
	}
	_, _ = conn.Exec(ctx, sql) // the fault may hit this session too
	_ = conn.Close(ctx)
}

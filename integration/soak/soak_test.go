package soak

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/internal/pgtest"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "seed of the faults and the load; 0: a new one")
	roundsFlag = flag.Int("rounds", 12, "faults of each layout")
	logsFlag   = flag.String("logs", "", "folder to keep walferry's logs in, one a run; empty: they are shown if the test fails")
	layoutFlag = flag.String("layout", "both", "embedded, split or both")
)

func TestMain(m *testing.M) {
	natstest.Serve()
	flag.Parse()
	os.Exit(pgtest.Run(m))
}

// TestSoak_FaultsLoseNothingAndDoubleNothing runs a load whose every transaction
// keeps the invariants of schema, breaks something every moment, and reads the
// invariants on the subscriber all the time.
func TestSoak_FaultsLoseNothingAndDoubleNothing(t *testing.T) {
	layouts := []string{embedded, split}
	switch *layoutFlag {
	case embedded, split:
		layouts = []string{*layoutFlag}
	case "both":
	default:
		t.Fatalf("-layout %q: want embedded, split or both", *layoutFlag)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) { soak(t, layout, seed, *roundsFlag) })
	}
}

// run is one soak.
type run struct {
	t       *testing.T
	system  *system
	load    *load
	watcher *watcher
	broken  chan error // of the watcher

	began    time.Time
	heal     func() // ends a network fault that still stands
	done     map[string]int
	advanced int   // pauses in which the subscriber went on
	seen     int64 // transactions on the subscriber at the last pause
}

// early is how many of the faults come while the tables are copied.
const early = 3

func soak(t *testing.T, layout string, seed uint64, rounds int) {
	t.Logf("replay with: make soak SEED=%d ROUNDS=%d LAYOUT=%s", seed, rounds, layout)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newSystem(t, layout, seed, rng)
	pgtest.Exec(t, s.pubURL, schema)
	pgtest.Exec(t, s.subURL, schema)
	fill(t, s.pubURL)

	ctx, cancel := context.WithCancel(t.Context())
	r := &run{
		t: t, system: s, began: time.Now(), done: map[string]int{}, heal: func() {},
		load: &load{url: s.pubURL}, watcher: &watcher{url: s.subURL}, broken: make(chan error, 1),
	}
	var watching sync.WaitGroup
	defer func() { cancel(); r.load.finish(); watching.Wait() }()
	r.load.start(ctx, seed)
	faults := r.faults()
	steps := plan(rng, rounds, len(faults))
	s.start()
	first := min(early, rounds/3)
	for i, st := range steps[:first] {
		r.step(i, faults, st)
	}
	r.mend()
	s.wait(2 * time.Minute)
	pgtest.Exec(t, s.subURL, "CHECKPOINT") // a killed subscriber does not go back behind the end of the copy
	watching.Go(func() { r.broken <- r.watcher.run(ctx) })
	for i, st := range steps[first:] {
		r.step(first+i, faults, st)
	}
	r.mend()
	r.load.finish()
	s.check()
	s.wait(5 * time.Minute)
	pgtest.Eventually(t, 30*time.Second, func() error { // one look at the last state
		if n := pgtest.QueryString(t, s.pubURL, "SELECT sum(n) FROM counter"); n != fmt.Sprint(r.watcher.seen.Load()) {
			return fmt.Errorf("the publisher has %s transactions, the watcher saw %d", n, r.watcher.seen.Load())
		}
		return nil
	})
	cancel()
	if err := <-r.broken; err != nil {
		t.Fatal(err)
	}
	s.healthy()
	compare(t, s.pubURL, s.subURL)
	if n := pgtest.QueryString(t, s.subURL, "SELECT count(*) FROM walferry.exceptions"); n != "0" {
		t.Errorf("walferry.exceptions has %s rows, want none", n)
	}
	s.end()
	r.summary(layout, seed, rounds)
}

// step does one fault after its pause.
func (r *run) step(i int, faults []fault, st step) {
	r.t.Helper()
	select {
	case err := <-r.broken:
		r.t.Fatalf("after %d faults: %v", i, err)
	case <-time.After(st.pause):
	}
	r.system.check()
	if n := r.watcher.seen.Load(); n > r.seen {
		r.seen = n
		r.advanced++
	}
	f := faults[st.fault]
	r.t.Logf("%7.2fs fault %d: %s (%v, variant %d, overlap %t)", time.Since(r.began).Seconds(), i+1, f.name, st.hold, st.variant, st.overlap)
	r.done[f.kind]++
	heal := f.do(st)
	r.heal()
	r.heal = func() {}
	switch {
	case heal == nil:
	case st.overlap:
		r.heal = heal
	default:
		heal()
	}
}

// mend ends what still stands.
func (r *run) mend() {
	r.heal()
	r.heal = func() {}
}

// summary ends the run with one line.
func (r *run) summary(layout string, seed uint64, rounds int) {
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(r.done)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", k, r.done[k]))
	}
	l, w := r.load, r.watcher
	r.t.Logf("summary: layout %s, seed %d, %d faults (%s), %d transactions committed (%d large, %d rolled back, %d broken off), "+
		"subscriber read %d times and ahead after %d of the faults, %v",
		layout, seed, rounds, strings.Join(kinds, ", "), l.committed.Load(), l.large.Load(), l.rolledBack.Load(), l.retried.Load(),
		w.looks.Load(), r.advanced, time.Since(r.began).Round(time.Second))
	errors := map[string]int{}
	for _, p := range r.system.all {
		p.errors(errors)
	}
	for _, text := range slices.Sorted(maps.Keys(errors)) {
		r.t.Logf("logged as an error %d times: %s", errors[text], text)
	}
	if l.committed.Load() == 0 || w.looks.Load() == 0 || rounds > 10 && r.advanced == 0 {
		r.t.Error("nothing was written or nothing was read: the run proves nothing")
	}
}

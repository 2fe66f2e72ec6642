// Package soak breaks every part of a running replication at random instants
// and proves that nothing is lost, doubled or seen in a state that the
// publisher never had (invariants I1, I3 and I5).
//
// Model: a run is a seed and a layout. The layout says which processes there
// are: "embedded" is one walferry with the queue inside, "split" a reader, an
// applier and a nats-server in a process of its own. Every link between two of
// them goes through a proxy of internal/faultnet. The seed gives the settings of
// the run, the plan of its faults (kind, instant, how long it stands, whether it
// still stands when the next one comes) and the statements of each writer.
//
// Writers commit transactions of which each keeps all invariants of the tables
// (see schema); a watcher reads the invariants on the subscriber in one snapshot
// all the time. Afterwards all tables are equal on both sides, no change was left
// out, status shows nothing wrong, and nothing is left behind.
//
// `make soak SEED=.. ROUNDS=.. LAYOUT=..` replays a run. What the faults hit at
// their instants is as random as the scheduling of the machine.
package soak

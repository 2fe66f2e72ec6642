// Package soak kills every part of a running replication at random instants
// and proves that nothing is lost, doubled or seen in a state that the
// publisher never had (invariants I1, I3 and I5).
package soak

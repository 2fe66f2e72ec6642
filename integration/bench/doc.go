// Package bench measures walferry against the logical replication inside
// PostgreSQL, on one machine and in one run: the same workload, written once, is
// drained by every method from a copy of the same replication slot into fresh
// copies of the same subscriber database.
//
// Modes:
//
//	slot   walferry was stopped during the workload: time from its start until the
//	       last row is visible on the subscriber
//	queue  only the applier was stopped: the backlog lies in the queue
//	live   latency from commit to visibility at a fixed rate of transactions
//
// The native method has no queue, so its slot drain is the peer of both.
package bench

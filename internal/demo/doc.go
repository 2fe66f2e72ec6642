// Package demo shows walferry at work: two real PostgreSQL servers on this
// machine, a mixed workload on one, walferry between them, and a comparison of both
// at the end.
//
// [Run] goes through these stages, each of which a cancelled context ends:
//
//	servers    found, installed or run by Docker, in a temporary folder
//	copy       `walferry reader` and `walferry applier` as two processes, which meet in
//	           a queue on loopback; the rows that exist are copied
//	workload   several writers for the given time; the applier is killed in the
//	           middle and started again
//	catch-up   `walferry wait`
//	compare    every table: number of rows and a hash, computed by the servers
//
// Whatever happens, the processes are ended and the folder is removed before Run
// returns.
package demo

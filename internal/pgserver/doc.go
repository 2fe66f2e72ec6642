// Package pgserver runs a throw-away PostgreSQL server on this machine.
//
// It finds the programs of a server ([Find]), or installs them where that is
// possible ([Install]), makes a data directory and runs the server on a port of
// 127.0.0.1 ([Start]), as another user when this process is root, which PostgreSQL
// refuses. [StartContainer] does the same with Docker.
//
// Invariants: nothing but 127.0.0.1 is listened on; a server ends with this process
// where the system allows it (Linux, without Docker), and everything of it is below
// the folder it was given.
package pgserver

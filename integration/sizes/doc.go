// Package sizes proves invariant I6 on real servers: the memory of walferry is
// bounded, whatever the size of a transaction, of a row, of a table, of the
// publication, and however many subscriptions read one queue.
//
// Every test runs the program itself, compares both sides, and reads the peak of
// its resident memory (VmHWM of /proc/<pid>/status): [bound] plus three times the
// largest row is the most that it may be. Without -sizes.full the sizes are scaled
// down so that the package takes less than a minute; make sizes runs the full ones.
package sizes

// Package progress shows the initial copy to a person: bars on a terminal,
// a line every few seconds elsewhere.
//
// A [View] hangs on [snapshot.Events]. It is told about tables by the copy and
// may be told about several at the same time.
package progress

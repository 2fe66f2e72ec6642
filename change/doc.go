// Package change is the vocabulary of walferry: log positions, relations,
// column values, transactions, and the batch format of the distribution
// queue. It does no I/O and depends on nothing but the standard library.
//
// # Positions
//
// Two positions belong to every transaction. Its commit LSN is the start of
// the commit record in the publisher's WAL (Begin.final_lsn of pgoutput); its
// end LSN is the first byte after that record (Commit.end_lsn). In commit
// order both rise strictly, and the end LSN of one transaction is at most the
// commit LSN of the next.
//
// The position of a subscriber is an end LSN P. A transaction with commit LSN
// c has been applied, or was part of the initial copy, if and only if c < P.
//
// # Batches
//
// One queue message holds one batch: a [BatchHeader] and a body. The body is
// pgoutput messages of protocol version 1, verbatim, each in one or more
// records (see [AppendRecord]). docs/queue-format.md has the byte tables.
package change

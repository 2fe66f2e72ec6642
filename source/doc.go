// Package source is the log reader agent: it turns the write-ahead log of one
// published database into batches of the distribution queue.
//
// # Model
//
// [Run] owns one logical replication slot and one stream. A session connects,
// compares publisher, slot and queue, starts the stream at the End of the
// last stored batch, and copies what the server sends into batches. Whatever
// breaks, the session is given up as a whole and the next one begins again
// from the queue's tail, which is the only state there is.
//
// One goroutine reads the socket and appends; a second one writes to it: the
// feedback goroutine sends the positions, by itself and at once when the
// queue's durable end moves, so neither a huge transaction nor a full window
// of the queue keeps the server waiting for an answer.
//
// # Invariants
//
//  1. Whole transactions, in commit order, each once. A transaction is a
//     duplicate if and only if its commit LSN is before the queue's End;
//     nothing else is compared, and no position is computed from lengths.
//  2. The flush position that is sent is the End of a batch that is durable,
//     or the position where the slot stood. It never falls and is never 0.
//     The position of a keepalive becomes End only through a mark, a batch
//     without transactions, and only when nothing is in flight.
//     So a slot that is ahead of the queue proves that the queue lost batches.
//  3. A slot is created only for a queue without batches. It is never created
//     again to mend an error: what it would skip is lost.
//  4. Where the slot still has what the queue has, the publisher must send the
//     queue's last transaction once more before anything is appended or
//     confirmed: see seam.
//  5. Changes are copied as they came. Only non-transactional messages and
//     changes of walferry's own tables are left out, and transactions in which
//     nothing remains.
//
// # Large transactions
//
// A transaction that does not fit one batch becomes chunks. When the reader is
// restarted between them, the server sends the transaction from its
// beginning; the reader counts and sums the changes it has stored, compares
// the sum with the one in the last chunk, and continues with the next chunk.
// If they differ, or the last chunk may end inside a message (it completes no
// row), it begins the transaction anew with chunk 0, and readers of the queue
// discard the first attempt.
//
// With Options.Streaming the server sends transactions before they commit.
// Those wait in files under Options.SpoolDir, and go the same way at commit.
package source

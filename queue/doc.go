// Package queue is the distribution queue: batches of transactions in a NATS
// JetStream stream, appended by one log reader and read by any number of
// appliers. docs/queue-format.md describes what is stored.
//
// # Model
//
// One publisher has one stream, WALFERRY_<name>, with one subject. Its
// messages are batches (see package change), and JetStream's sequence numbers
// are their order. Only [Queue.Create] makes the stream: a stream that is
// missing later has been lost, and an empty one in its place would hide that.
//
// # Invariants
//
//  1. One writer. Every append names the sequence number before it, and the
//     server stores nothing that does not follow it. Two appenders cannot
//     interleave, and a pipelined append that overtakes a lost one is refused.
//  2. [Appender.Durable] is the End of a batch all of whose predecessors are
//     acknowledged. After the first failure an appender never moves again.
//  3. A [Reader] returns a batch only when its sequence number is the next
//     one, its checksum is right and its Prev is the End of the batch before.
//     Whatever is missing, changed or foreign is an [*Error] that names where
//     and what mends it; nothing is skipped.
//  4. Only [Queue.Trim] removes batches, up to the position that the slowest
//     registered subscription has flushed, and never inside a transaction.
//
// A reader in the process of the appender gets the batches that were appended
// last from memory, once they are acknowledged (docs/adr/0008), or before if it
// reads ahead (docs/adr/0009).
//
// The position of a subscriber is in its own database. Nothing that JetStream
// keeps about consumers is relied on.
package queue

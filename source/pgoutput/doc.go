// Package pgoutput decodes the messages of PostgreSQL's logical decoding
// plugin pgoutput, protocol versions 1 to 4. It does no I/O.
//
// The layouts are those of src/backend/replication/logical/proto.c; the
// documentation has them under "Logical Replication Message Formats".
//
// A [Decoder] returns one [Message] that it reuses: tuples, texts and contents
// borrow the bytes of the input and live as long as those, and all but
// [Message.Relation] is overwritten by the next call. Decoding Begin, Commit,
// Insert, Update and Delete allocates nothing once the tuples have reached
// their greatest width.
//
// Whatever the input, the decoder returns a message or an error and never
// panics; nothing it allocates is larger than in proportion to the input. It is
// strict: a message with bytes left over is an error, and so is a kind that
// the protocol version does not have. There is one exception. PostgreSQL 18
// can send a Stream Abort although streaming was not asked for; it is decoded
// under every version and counted in [Decoder.StrayAborts], and outside a
// streamed transaction it means nothing.
package pgoutput

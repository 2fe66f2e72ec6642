// Package sqlw writes to a subscriber: sessions with pipelined statements, the
// subscriber's catalog, and the SQL of one replicated table.
//
// # Model
//
// A [Session] is one connection driven with the extended query protocol. Work
// is queued as steps; every step is answered in order, and the answers are read
// one window behind the requests, so that both sides work at the same time and
// neither waits for the other with full buffers. A [Table] is what the catalog
// of the subscriber says about a table. A [Target] joins a [change.Relation] of
// the publisher with a Table and makes the statements that apply changes of the
// one to the other.
//
// # Invariants
//
//   - Every identifier is quoted, every object and operator is named with its
//     schema, every parameter has the type OID of its column: what a statement
//     means depends on no setting, and on no object that somebody made in a
//     schema of the search path.
//   - Values are never part of the SQL text. They travel as parameters or COPY
//     data in the bytes that the publisher sent.
//   - An error belongs to the step that the server was executing. After an error
//     nothing that was queued behind it has been executed.
//   - The way of a row from a decoded message to the socket allocates nothing.
//   - A session that failed in another way than by an SQL error is broken for
//     good and only good to be closed.
package sqlw

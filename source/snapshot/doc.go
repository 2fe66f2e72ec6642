// Package snapshot brings the initial copy of published tables from a
// publisher to a subscriber.
//
// # Handover
//
// A temporary logical slot on the publisher gives a consistent point S and a
// snapshot that holds exactly the transactions whose commit LSN is below S
// (PostgreSQL: CREATE_REPLICATION_SLOT ... SNAPSHOT 'export'). The tables are
// read in that snapshot. A subscriber therefore skips the changes of a copied
// table up to S and applies those from S on; walferry.subscription_table keeps
// S for each table, written in the transaction that holds the rows.
//
// # Steps
//
//  1. replication connection: identify the server, create the slot, keep the
//     connection idle (its next command would end the exported snapshot);
//  2. SQL connection: the same server? then import the snapshot;
//  3. plan: compare the tables of both sides, refuse what cannot work;
//  4. make the schema of absent tables, if asked, without indexes and constraints;
//  5. copy the tables, several at a time, COPY TO piped into COPY FROM;
//  6. begin again with the tables that were truncated or rewritten between 1 and
//     their turn in 5, for which the snapshot no longer holds, one by one;
//  7. let go of the snapshot, and make indexes, constraints and statistics. What is
//     not made yet is in walferry.subscription_pending, for whoever comes after.
//
// Nothing is changed on the subscriber before step 4.
//
// # Invariants
//
//   - A table is copied whole or not at all, and its ledger row says which.
//   - The rows sent by the publisher, the rows forwarded and the rows stored by
//     the subscriber are counted, and differing counts roll the table back;
//     only a BEFORE trigger of the subscriber may drop rows.
//   - A table whose ledger row says ready is never copied a second time.
//   - On the publisher no table is locked but the one that is being copied.
//   - After the end of Run, in whatever way it ends, no slot, snapshot or open
//     transaction is left on either side.
//
// Values travel in COPY's binary format where both servers have the same major
// version and every column a type of which that is known to be exact, else in its
// text format, which holds no type OIDs and is what the stream carries too.
package snapshot

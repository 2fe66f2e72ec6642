// Package apply is the distribution agent: it applies the transactions of a
// queue to one subscriber, in the publisher's order.
//
// # Model
//
// Transactions are collected into a group until a bound is reached or the queue
// is empty, and a group is one transaction on the subscriber. It ends with a
// compare-and-set of the position in walferry.subscription. That row is the
// truth: the agent begins where it says, and a second agent, or one whose
// commit was not confirmed, finds out there. Replication origins only mark the
// commits; their progress is not used, because the server also moves it forward
// when a transaction is rolled back (seen with PostgreSQL 15 and 17).
//
// # Attempts
//
// Rows are pipelined and runs of inserts go as COPY; nothing is remembered of
// them but their place. When something fails, the group is rolled back, reading
// begins again at the position, and the same transactions are applied with more
// care:
//
//	fast    groups, COPY
//	single  one transaction each, so that all before the culprit are committed
//	swap    the culprit, when a unique index refused it: see sqlw.Swap
//	rows    the culprit, a savepoint for each row, when a policy allows to go on
//
// What still fails stops the subscription: the error card names transaction,
// table and key, nothing of the transaction is visible, and it is tried again
// after a pause of at most five seconds, because the cause may have been removed.
//
// # Invariants
//
//   - Rows and position are committed together.
//   - A transaction of the publisher is never split over two commits.
//   - Every update and delete finds exactly one row; anything else is an error or
//     is recorded in walferry.exceptions by the user's policy.
//   - Memory is bounded by the bounds of the reader, whatever the size of a
//     transaction.
//   - The position that is reported is flushed to the subscriber's disk.
//
// # Privileges
//
// A superuser needs nothing else. Another role needs, on the subscriber:
//
//	GRANT CREATE ON DATABASE db TO role;                 -- or: CREATE SCHEMA walferry AUTHORIZATION role
//	GRANT USAGE ON SCHEMA s TO role;
//	GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA s TO role;
//	ALTER ROLE role BYPASSRLS;                           -- only for tables with row-level security
//	GRANT SET ON PARAMETER session_replication_role TO role;  -- 15+, so that triggers and foreign keys do not act again
//	GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_session_setup(text),
//	  pg_replication_origin_xact_setup(pg_lsn, timestamptz), pg_replication_origin_oid(text) TO role;  -- to mark the commits
//
// Without the last two grants the agent works, says what it cannot do, and
// ordinary triggers and foreign keys act on replicated rows.
package apply

// Package agent builds the agents of walferry from a configuration, starts
// and stops them in order, and answers the operator's questions about them.
//
// One process runs any of these roles:
//
//   - log reader: one for each publisher (package source), fills the queue;
//   - distribution agent: one for each subscription (package apply). It brings
//     the initial copy first (package source/snapshot), then applies the queue;
//   - queue: the embedded server when no url is configured, and the cleanup
//     job that removes delivered batches.
//
// A subscription moves through these states; only its own worker moves it:
//
//	initial   -> copying    the queue exists and tables wait for their copy
//	initial   -> streaming  nothing to copy
//	copying   -> streaming  all tables are ready
//	streaming -> copying    the publication has a table that is not ready
//	any       -> error      a cause that needs a person; retried with backoff
//	error     -> copying, streaming
//
// Failures stay where they are: a reader that cannot go on and a subscription
// that cannot go on are reported and retried, and nothing else stops for them.
// The process ends only on its context, or when it could not start at all.
//
// Order of shutdown: appliers finish or roll back their transaction; readers
// stop reading, wait for the queue's acknowledgements and send the last flush
// position; then the connections to the queue close, then the embedded server.
package agent

// Package monitor holds what the agents of one process report, and shows it:
// as a status document, metrics, health and a progress line.
//
// Agents call methods of [Publisher] and [Subscription] from their callbacks;
// each is short and safe for concurrent use. Everything that is shown is
// computed from the same [State], so that a metric, the document and the
// health answer never contradict each other.
//
// Health follows progress, not connections: a reader that hears nothing, a
// subscription in error and pending work that stands still are unhealthy even
// when every socket is open.
//
// A process listens on a socket control-<pid>.sock in its data folder, where
// [Query] finds it; nothing in a document is secret.
package monitor

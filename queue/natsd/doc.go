// Package natsd runs a nats-server with JetStream inside the walferry process.
//
// It makes the distribution queue work with nothing else installed. Every
// message is synced to disk before it is acknowledged, the store directory
// belongs to one process at a time, and by default no port is opened: clients
// connect through [Server.Connect].
package natsd

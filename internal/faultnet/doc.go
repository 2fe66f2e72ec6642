// Package faultnet is a TCP proxy for tests that breaks connections on purpose.
//
// Model: a [Proxy] listens on a port of 127.0.0.1 and carries every connection to
// one target address. A fault stands until [Proxy.Heal]:
//
//   - [Proxy.Cut] resets every connection and refuses new ones: a network that is gone.
//   - [Proxy.Stall] keeps connections open and carries nothing: a half-open peer.
//     New connections are accepted and get no answer.
//   - [Proxy.Strand] leaves the open connections half-open for good, while new ones
//     work: what a firewall does that forgot its connections.
//   - [Proxy.Delay] makes every piece of data wait, in each direction.
//   - [Proxy.Throttle] bounds the bytes a second.
//   - [Proxy.CutAfterBytes] ends a connection in the middle of a message, after an
//     exact number of bytes from the target. It works once.
//
// Invariant: bytes are never changed, reordered or dropped while their connection
// lives, so what a peer received before a fault is a prefix of what was sent.
package faultnet

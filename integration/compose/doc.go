// Package compose proves docker-compose.yml: the stack comes up from a clean
// checkout, carries a row from the publisher to the subscriber, and goes away with
// its volumes.
package compose

// Package isolation proves invariant I7 on real servers: what happens to one
// subscription changes nothing for the others and for the publisher's slot.
package isolation

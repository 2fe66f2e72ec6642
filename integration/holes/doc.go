// Package holes proves invariant I4 end to end: what is lost, doubled or put
// back behind walferry's back, in the queue, at the publisher or at a
// subscriber, is noticed before a wrong row is applied. Either it heals by
// itself, or the status names what happened and a remedy, and the remedy, typed
// as it is printed, makes both sides equal again.
//
// A subscriber is watched all the time: it may only ever show a state that the
// publisher had after some commit, of one history or, after a publisher was put
// back and went another way, of the other.
package holes

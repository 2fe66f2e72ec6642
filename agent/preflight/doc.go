// Package preflight checks whether the servers of a configuration can do what
// the configuration asks of them.
//
// It changes nothing. All requirements are looked at, also after one was found
// unmet; only what needs a connection is left out where there is none. Each
// finding names the object, the problem, and the SQL or setting that mends it.
//
// An error keeps a reader or subscription from working or would lose or loop
// rows. A warning works today and is likely to hurt. An info is worth knowing.
package preflight

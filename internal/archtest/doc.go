// Package archtest keeps the import directions of the design: a folder is a layer,
// imports point down, and each outside library has its place.
//
//	cmd -> agent -> {source, apply, merge, monitor} -> {queue, hvar, apply/sqlw} -> {change, source/pgoutput}
//
// The rules are the tables in rules.go; the test lists the packages with go list
// and fails on every edge that no rule allows, with the reason. A new top folder
// is a failure too, until it has a row.
package archtest

// Package scenarios runs the scenario folders of integration/testdata/scenarios
// (format: the README there) through the walferry binary, between two private
// PostgreSQL servers.
//
// Model: a [Suite] has two servers and a binary. [Suite.Run] takes one [Scenario]:
// it makes a database on both sides, writes a walferry.yaml for it, starts
// `walferry run` and does the steps; at the end it compares what check.sql says on
// the subscriber with what it must say, stops walferry, and removes everything.
// Only the command line is used, as an operator would: run, wait, status, skip, drop.
//
// Scenarios may run beside each other on the same servers, except those that
// restart a server ([Scenario.RestartsServer]).
//
// The suite itself is checked by the control mode, in which nothing is replicated:
// there every scenario must fail, or it proves nothing.
package scenarios

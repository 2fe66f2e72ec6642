// Package pgtest starts real PostgreSQL servers for tests.
//
// Model: a [Cluster] is one server with its own data directory. [Shared] gives
// one cluster to a whole test process, [New] a private one that a test may stop,
// restart and kill. Inside a shared cluster every test takes its own database
// with [Cluster.DB], which is dropped, with the slots, subscriptions and prepared
// transactions in it, when the test ends. Replication origins and roles belong to
// the whole cluster: a test that makes them in a shared cluster uses unique names.
//
// A version is served by local binaries when they are found, else, if the test
// package imports pgcontainer, by an image postgres:<major> that exists on this
// machine (nothing is pulled). Local binaries are looked up in PGTEST_BIN_<major>, what integration/images/binaries.sh
// made (in WALFERRY_CACHE, /var/cache/walferry or the user's cache folder),
// /usr/lib/postgresql/*/bin, PATH and `pg_config --bindir`.
//
// PGTEST_VERSION chooses the version of tests that do not name one (default 15).
// A version that cannot be had skips the test with the reason; with CI=true the
// required versions, 15 and 17, fail it instead.
//
// Invariants: every cluster listens on 127.0.0.1 only, has a system identifier of
// its own, and is gone when the process ends, also when the process is killed.
package pgtest

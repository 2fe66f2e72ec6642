// Package pgcontainer lets pgtest run PostgreSQL versions, for which this machine has
// no binaries, from container images: a test package that wants this imports it for
// its effect, as one does with a database/sql driver. It is a package of its own
// because the Docker client is far larger than all the rest of a test program.
//
// An image must be on the machine already (postgres:<major>); nothing is pulled.
// [Option] asks for a container even where binaries exist.
//
// The server is the container's first process and its data lies in the container's
// volume. So a signal to the container is a signal to the postmaster, SIGKILL takes
// all server processes at once, and the data outlives both until the cluster is
// removed.
package pgcontainer

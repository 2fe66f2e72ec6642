// Package containers runs the real walferry binary against PostgreSQL 17 servers
// that testcontainers-go starts, as a user's own test suite would. The wide suites
// run against local servers (package scenarios); this one proves that nothing in
// them depends on these.
package containers

// Package pgconnect turns a connection string into the settings of a walferry
// connection.
//
// Every connection of walferry is opened through it, because what a session
// prints and reads depends on its settings: a publisher that prints dates as
// DMY and a subscriber that reads MDY would exchange days and months without
// an error. The settings are startup parameters, so no row is read or written
// before they hold, and neither the user's role nor the connection string can
// change them. The environment variables, service file and password file of
// libpq work.
//
// Invariants:
//   - a pinned setting wins over PGOPTIONS, over "options" in the connection
//     string and over ALTER ROLE ... SET;
//   - a connection notices a vanished peer within about a minute
//     (TCP keepalive, TCP_USER_TIMEOUT), and so does the server;
//   - no error of this package contains the connection string or a password.
package pgconnect

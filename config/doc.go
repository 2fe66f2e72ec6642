// Package config reads walferry.yaml, fills in defaults and checks it.
//
// A configuration that loads is one that the agents can start with; whether
// the databases agree is the business of `walferry check`. Rules:
//
//   - nothing is guessed: an unknown key, a value of the wrong kind and a table
//     name without a schema are errors;
//   - all problems are reported at once, each with file, line, column, path, the
//     allowed values and the nearest known key;
//   - ${NAME} in a value is replaced from the environment, ${NAME:-text} has a
//     default, $$ is a dollar sign. A missing variable is an error;
//   - names of tables and schemas are compared exactly as PostgreSQL stores them;
//   - no error of this package contains a connection string, and what [Config.YAML]
//     prints has the secrets replaced.
//
// The defaults stand in defaults.go and nowhere else.
package config

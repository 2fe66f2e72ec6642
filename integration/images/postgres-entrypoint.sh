#!/bin/bash
# Entrypoint of the locally built postgres images. It understands what walferry's
# tests and compose file use of the official image's interface: POSTGRES_USER,
# POSTGRES_PASSWORD, POSTGRES_DB, POSTGRES_HOST_AUTH_METHOD, POSTGRES_INITDB_ARGS,
# /docker-entrypoint-initdb.d/*.sql and *.sh, and server arguments as the command.
set -euo pipefail

[ "${1:0:1}" != - ] || set -- postgres "$@"
[ "${1:-}" = postgres ] || exec "$@"

if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA" /var/run/postgresql
	chown -R postgres:postgres "$PGDATA" /var/run/postgresql
	chmod 700 "$PGDATA"
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

user=${POSTGRES_USER:-postgres}
db=${POSTGRES_DB:-$user}
method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}

initialise() {
	if [ -z "${POSTGRES_PASSWORD:-}" ] && [ "$method" != trust ]; then
		echo "set POSTGRES_PASSWORD, or POSTGRES_HOST_AUTH_METHOD=trust" >&2
		exit 1
	fi
	local args=(--pgdata="$PGDATA" --username="$user" --encoding=UTF8 --locale=C.UTF-8)
	if [ -n "${POSTGRES_PASSWORD:-}" ]; then
		initdb "${args[@]}" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") ${POSTGRES_INITDB_ARGS:-}
	else
		initdb "${args[@]}" ${POSTGRES_INITDB_ARGS:-}
	fi
	printf "\nlisten_addresses = '*'\n" >>"$PGDATA/postgresql.conf"
	printf '\nhost all all all %s\nhost replication all all %s\n' "$method" "$method" >>"$PGDATA/pg_hba.conf"
}

# first_run starts the server on its socket only, so that no client sees it before
# the database and the init scripts are there.
first_run() {
	shift # the word postgres
	local args='-c listen_addresses='
	[ $# = 0 ] || args+=$(printf ' %q' "$@")
	pg_ctl -D "$PGDATA" -w -o "$args" start
	local psql=(psql -v ON_ERROR_STOP=1 --no-psqlrc --username "$user")
	if [ "$db" != postgres ]; then
		"${psql[@]}" --dbname postgres -v db="$db" <<<'CREATE DATABASE :"db";'
	fi
	local f
	for f in /docker-entrypoint-initdb.d/*; do
		case $f in
		*.sql) "${psql[@]}" --dbname "$db" -f "$f" ;;
		*.sh) bash "$f" ;;
		esac
	done
	pg_ctl -D "$PGDATA" -m fast -w stop
}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	initialise
	first_run "$@"
fi
exec "$@"

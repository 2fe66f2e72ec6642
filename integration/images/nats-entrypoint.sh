#!/bin/sh
# Entrypoint of the locally built nats image: arguments go to nats-server.
case "${1:-}" in -*) set -- nats-server "$@" ;; esac
exec "$@"

#!/usr/bin/env bash
# run.sh
#
# Brings docker-compose.yml up from a clean checkout of HEAD under a project name of
# its own, inserts a row on the publisher, waits for it on the subscriber, and takes
# everything down with its volumes. Environment: WALFERRY_IMAGE to test an image that
# exists, PUBLISHER_PORT and SUBSCRIBER_PORT (54321, 54322).
set -euo pipefail
repo=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
work=$(mktemp -d)
project=walferry-compose-$$
own_image=

if docker compose version >/dev/null 2>&1; then
	compose=(docker compose)
else
	compose=(docker-compose)
fi
compose+=(-p "$project")

finish() {
	local code=$?
	trap - EXIT
	if [ $code != 0 ]; then
		"${compose[@]}" ps || true
		"${compose[@]}" logs --no-color --tail=40 || true
	fi
	"${compose[@]}" down --volumes --timeout 20 || code=1
	[ -z "$own_image" ] || docker image rm "$own_image" >/dev/null || code=1
	rm -rf "$work"
	left=$(docker volume ls -q --filter "name=$project"; docker ps -aq --filter "name=$project")
	if [ -n "$left" ]; then
		echo "left behind: $left"
		code=1
	fi
	exit $code
}

git -C "$repo" archive HEAD | tar -x -C "$work"
cd "$work"
trap finish EXIT

"${compose[@]}" config -q
integration/images/build.sh postgres:17 nats:2-alpine
if [ -z "${WALFERRY_IMAGE:-}" ]; then
	export WALFERRY_IMAGE=walferry:$project
	integration/images/build.sh "$WALFERRY_IMAGE"
	own_image=$WALFERRY_IMAGE
fi

"${compose[@]}" up -d --no-build

sql() { "${compose[@]}" exec -T "$1" psql -U postgres -d app -v ON_ERROR_STOP=1 -qAt -c "$2"; }

# until_equal WANT SERVICE QUERY: polls for two minutes at most.
until_equal() {
	local got='' i
	for ((i = 0; i < 240; i++)); do
		got=$(sql "$2" "$3" 2>&1) || true
		[ "$got" != "$1" ] || return 0
		sleep 0.5
	done
	echo "$2: $3: got '$got', want '$1'"
	return 1
}

until_equal 0 publisher 'SELECT count(*) FROM orders'
sql publisher "INSERT INTO orders (id, item) VALUES (1, 'tea')"
until_equal '1|tea' subscriber 'SELECT id, item FROM orders'
sql publisher "UPDATE orders SET item = 'coffee' WHERE id = 1"
until_equal '1|coffee' subscriber 'SELECT id, item FROM orders'

# What was committed while walferry was away arrives after its return.
"${compose[@]}" stop walferry
sql publisher "INSERT INTO orders (id, item) VALUES (2, 'milk')"
"${compose[@]}" start walferry
until_equal '1|coffee
2|milk' subscriber 'SELECT id, item FROM orders ORDER BY id'

# The healthcheck of walferry itself turns healthy.
container=$("${compose[@]}" ps -q walferry)
for ((i = 0; i < 120; i++)); do
	health=$(docker inspect --format '{{.State.Health.Status}}' "$container")
	[ "$health" != healthy ] || break
	sleep 0.5
done
if [ "$health" != healthy ]; then
	docker inspect --format '{{json .State.Health}}' "$container"
	exit 1
fi
echo "compose: rows arrived, walferry is healthy"

#!/usr/bin/env bash
# build.sh NAME...    NAME is postgres:<major>, nats:2-alpine or walferry:<tag>
#
# Makes the container images that the tests and docker-compose.yml name on a machine
# that can pull none: PostgreSQL from a Debian tree, NATS and walferry from Go source.
# An image that exists is left alone, if it came from elsewhere or was made by the
# recipe as it is now; walferry is always rebuilt.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# recipe: a hash of the files that say how an image is made.
recipe() { cat "$here"/*.sh "$here"/*.Dockerfile | sha256sum | cut -c1-16; }

# current NAME: whether the image needs no build.
current() {
	local label
	label=$(docker image inspect --format '{{index .Config.Labels "walferry.recipe"}}' "$1" 2>/dev/null) || return 1
	[ -z "$label" ] || [ "$label" = "$(recipe)" ]
}

# layer_from DIR: a tar stream of the folder.
layer_from() {
	tar --numeric-owner --exclude=./.complete --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -C "$1" -c .
}

postgres() {
	local tag=$1 major=${1#postgres:} src data volume base
	src=$(rootfs "$major")
	data=/var/lib/postgresql/data volume=/var/lib/postgresql/data
	if [ "$major" -ge 18 ]; then # the official image moved its data with 18
		data=/var/lib/postgresql/$major/docker volume=/var/lib/postgresql
	fi
	base=walferry-rootfs:postgres-$major
	layer_from "$src" | docker import - "$base" >/dev/null
	# The old builder works with the images of the daemon alone; its advice is not needed.
	DOCKER_BUILDKIT=0 docker build -q -t "$tag" --label "walferry.recipe=$(recipe)" -f "$here/postgres.Dockerfile" \
		--build-arg BASE="$base" --build-arg MAJOR="$major" --build-arg DATA="$data" \
		--build-arg VOLUME_PATH="$volume" "$here" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
	docker image rm "$base" >/dev/null
}

nats() {
	local over=$work/nats
	command -v busybox >/dev/null || die "busybox is not installed (apt-get install busybox-static)"
	mkdir -p "$over"/{bin,etc,tmp,data} "$over/usr/local/bin"
	cp "$(command -v busybox)" "$over/bin/busybox"
	for applet in sh wget cat ls; do ln -s busybox "$over/bin/$applet"; done
	install -m 755 "$here/nats-entrypoint.sh" "$over/usr/local/bin/docker-entrypoint.sh"
	(cd "$repo" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' \
		-o "$over/usr/local/bin/nats-server" github.com/nats-io/nats-server/v2)
	layer_from "$over" | docker import \
		--change 'ENV PATH=/usr/local/bin:/bin' \
		--change 'ENTRYPOINT ["docker-entrypoint.sh"]' \
		--change 'CMD ["nats-server"]' \
		--change 'EXPOSE 4222 8222' \
		--change "LABEL walferry.recipe=$(recipe)" \
		- "$1" >/dev/null
}

# walferry makes what the last stage of the Dockerfile makes.
walferry() {
	local over=$work/walferry
	mkdir -p "$over/etc/ssl/certs" "$over/usr/bin" "$over/var/lib/walferry" "$over/tmp"
	cp /etc/ssl/certs/ca-certificates.crt "$over/etc/ssl/certs/"
	chmod 1777 "$over/tmp"
	chown 65532:65532 "$over/var/lib/walferry"
	if [ -n "${WALFERRY_BINARY:-}" ]; then
		cp "$WALFERRY_BINARY" "$over/usr/bin/walferry"
	else
		(cd "$repo" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$over/usr/bin/walferry" ./cmd/walferry)
	fi
	layer_from "$over" | docker import \
		--change 'ENV PATH=/usr/bin' \
		--change 'USER 65532:65532' \
		--change 'WORKDIR /var/lib/walferry' \
		--change 'VOLUME /var/lib/walferry' \
		--change 'ENTRYPOINT ["/usr/bin/walferry"]' \
		--change 'CMD ["run", "-c", "/etc/walferry.yaml"]' \
		- "$1" >/dev/null
}

[ $# -gt 0 ] || die "usage: build.sh NAME... (postgres:17, nats:2-alpine, walferry:local)"
command -v docker >/dev/null || die "docker is not installed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
for name; do
	case $name in
	walferry:*) ;;
	*) if current "$name"; then continue; fi ;;
	esac
	case $name in
	postgres:[0-9]*) postgres "$name" ;;
	nats:2*) nats "$name" ;;
	walferry:*) walferry "$name" ;;
	*) die "unknown image $name" ;;
	esac
	say "built $name"
	rm -rf "${work:?}"/*
done

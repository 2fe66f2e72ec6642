#!/usr/bin/env bash
# binaries.sh MAJOR...
#
# Makes the programs of a PostgreSQL major that this machine's Debian does not have
# runnable on it, for internal/pgtest: takes them from the release that has them,
# together with that release's C library, and points each program at its own loader
# and libraries. Result: <cache>/pgtest/<major>/usr/lib/postgresql/<major>/bin.
# Does nothing when they exist already.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

binaries() {
	local major=$1 dst=$cache/pgtest/$1 src work bin
	bin=usr/lib/postgresql/$major/bin
	if [ -x "$dst/$bin/postgres" ] || [ -x "/$bin/postgres" ]; then
		return
	fi
	command -v patchelf >/dev/null || die "patchelf is not installed (apt-get install patchelf)"
	src=$(rootfs "$major")
	work=$dst.new
	rm -rf "$work"
	mkdir -p "$work"
	# Only what the programs open: themselves, their modules and data, the libraries.
	tar -C "$src" -c usr/lib/postgresql "usr/share/postgresql/$major" usr/lib/x86_64-linux-gnu usr/lib64 |
		tar -C "$work" -x
	for f in "$work/$bin"/*; do
		if [ "$(head -c 4 "$f")" = $'\x7fELF' ]; then
			patchelf --set-interpreter "$dst/usr/lib64/ld-linux-x86-64.so.2" \
				--force-rpath --set-rpath "$dst/usr/lib/x86_64-linux-gnu" "$f"
		fi
	done
	chmod -R a+rX "$work"
	rm -rf "$dst"
	mv "$work" "$dst"
	say "$("$dst/$bin/postgres" --version)"
}

[ $# -gt 0 ] || die "usage: binaries.sh MAJOR..."
for major; do binaries "$major"; done

# Shared by build.sh and binaries.sh; sourced, not run.
#
# A rootfs is a minimal Debian tree with one PostgreSQL major, made once by
# debootstrap and kept in the cache folder. The Debian mirror is the one that apt
# on this machine already uses.

cache=${WALFERRY_CACHE:-/var/cache/walferry}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
	say "$*"
	exit 1
}

mirror() {
	apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }'
}

# suite_of MAJOR: the Debian release whose own archive has this PostgreSQL.
suite_of() {
	case $1 in
	13) echo bullseye ;;
	15) echo bookworm ;;
	17) echo trixie ;;
	18) echo forky ;;
	*) die "no Debian release known for PostgreSQL $1" ;;
	esac
}

# rootfs MAJOR: prints the folder of the tree, making it if it is missing.
rootfs() {
	local major=$1 suite dir url script
	suite=$(suite_of "$major")
	dir=$cache/rootfs/postgres-$major
	if [ ! -e "$dir/.complete" ]; then
		[ "$(id -u)" = 0 ] || die "debootstrap needs root"
		command -v debootstrap >/dev/null || die "debootstrap is not installed (apt-get install debootstrap)"
		url=$(mirror)
		[ -n "$url" ] || die "apt has no Debian archive configured"
		script=/usr/share/debootstrap/scripts/$suite
		[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
		rm -rf "$dir"
		mkdir -p "$dir"
		say "debootstrap $suite with PostgreSQL $major"
		if ! debootstrap --variant=minbase --include="postgresql-$major" \
			"$suite" "$dir" "$url" "$script" >"$dir.log" 2>&1; then
			tail -n 15 "$dir.log" >&2
			die "debootstrap of $suite did not succeed"
		fi
		rm -rf "$dir"/var/cache/apt/* "$dir"/var/lib/apt/lists/* "$dir"/usr/share/{doc,man,locale,info}/* \
			"$dir"/var/lib/postgresql/* "$dir"/etc/postgresql/*
		touch "$dir/.complete"
	fi
	echo "$dir"
}

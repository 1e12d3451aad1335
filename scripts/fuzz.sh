#!/bin/bash
# Runs every fuzz target of the module for a while, as many packages side by side as there are cores. Inputs that are new
# aren't made smaller: that takes the time that is for finding them. With KEEP=N the N smallest inputs that reached
# something new are copied from the build cache to the target's testdata, where every later test runs them.
# usage: [KEEP=N] fuzz.sh TIME (as in -fuzztime)
set -euo pipefail
export FUZZTIME=${1:-10s} GO=${GO:-go} KEEP=${KEEP:-0}
cd "$(dirname "$(readlink -f "$0")")/.."

# one builds a package's test binary and runs its targets.
one() {
	local package=$1 binary cache out failed=0
	binary=$(mktemp -d)
	trap 'rm -rf "$binary"' RETURN
	cache=$("$GO" env GOCACHE)/fuzz/$("$GO" list "./$package")
	"$GO" test -c -fuzz . -o "$binary/test" "./$package" || return 1
	for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$package"/*_test.go | cut -d' ' -f2 | sort); do
		out=$(cd "$package" && "$binary/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$FUZZTIME" \
			-test.fuzzminimizetime 0s -test.parallel 1 -test.fuzzcachedir "$cache" 2>&1) ||
			# An input that is running when the time is over may be reported as a failure without one (golang/go#48591).
			{ grep -q 'context deadline exceeded' <<<"$out" && ! grep -qE 'Failing input|panic|_test.go:' <<<"$out"; } ||
			{ printf '%s %s FAILED\n%s\n' "$package" "$target" "$out"; failed=1; }
		printf 'fuzz %s %s: %s\n' "$package" "$target" "$(grep -oE 'execs: [0-9]+' <<<"$out" | tail -1)"
		[ "$KEEP" = 0 ] || keep "$cache/$target" "$package/testdata/fuzz/$target"
	done
	return $failed
}

# keep copies the smallest inputs.
keep() {
	[ -d "$1" ] || return 0
	mkdir -p "$2"
	find "$1" -type f -size -2 -printf '%s %p\n' | sort -n | head -"$KEEP" | cut -d' ' -f2- | xargs -rI{} cp {} "$2"
}
export -f one keep

packages=$(git ls-files -co --exclude-standard '*_test.go' | xargs grep -lE '^func Fuzz' | xargs -n1 dirname | sort -u)
[ -n "$packages" ]
echo "$packages" | xargs -P "$(nproc)" -L 1 bash -c 'one "$0"'

#!/bin/bash
# Runs every fuzz target of the module for a while, as many side by side as there are cores. With BUDGET none is begun
# after that time, and each day begins with another one: a few that are looked at for long find more than all of them for
# a moment. Inputs that are new aren't made smaller: that takes the time that is for finding them. With KEEP=N the N
# smallest inputs that reached something new are copied from the build cache to the target's testdata, where every later
# test runs them.
# usage: [KEEP=N] fuzz.sh TIME [BUDGET]
#   TIME    for each target, as in -fuzztime
#   BUDGET  in seconds
set -euo pipefail
export FUZZTIME=${1:-10s} BUDGET=${2:-0} GO=${GO:-go} KEEP=${KEEP:-0}
cd "$(dirname "$(readlink -f "$0")")/.."
WORK=$(mktemp -d)
export WORK
trap 'rm -rf "$WORK"' EXIT

# one runs a target. Its package is built by the first that needs it.
one() {
	local package=$1 target=$2 dir cache out failed=0
	if [ "$BUDGET" != 0 ] && [ $(($(date +%s) - BEGAN)) -ge "$BUDGET" ]; then
		echo "$package $target" >>"$WORK/later"
		return 0
	fi
	dir=$WORK/$package
	mkdir -p "$dir"
	flock "$dir" sh -c '[ -e "$1/test" ] || "$GO" test -c -fuzz . -o "$1/test" "./$2"' - "$dir" "$package" || return 1
	cache=$("$GO" env GOCACHE)/fuzz/$("$GO" list "./$package")
	out=$(cd "$package" && "$dir/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$FUZZTIME" \
		-test.fuzzminimizetime 0s -test.parallel 1 -test.fuzzcachedir "$cache" 2>&1) ||
		# An input that is running when the time is over may be reported as a failure without one (golang/go#48591).
		{ grep -q 'context deadline exceeded' <<<"$out" && ! grep -qE 'Failing input|panic|_test.go:' <<<"$out"; } ||
		{ printf '%s %s FAILED\n%s\n' "$package" "$target" "$out"; failed=1; }
	printf 'fuzz %s %s: %s\n' "$package" "$target" "$(grep -oE 'execs: [0-9]+' <<<"$out" | tail -1)"
	[ "$KEEP" = 0 ] || keep "$cache/$target" "$package/testdata/fuzz/$target"
	return $failed
}

# keep copies the smallest inputs.
keep() {
	[ -d "$1" ] || return 0
	mkdir -p "$2"
	find "$1" -type f -size -2 -printf '%s %p\n' | sort -n | head -"$KEEP" | cut -d' ' -f2- | xargs -rI{} cp {} "$2"
}
export -f one keep

# Every package and target, by name. The step of a day is no divisor of what they can be.
list=$(git ls-files -co --exclude-standard '*_test.go' | xargs grep -oHE '^func Fuzz[A-Za-z0-9_]+' |
	sed -E 's|/[^/]*_test.go:func | |' | sort)
mapfile -t targets <<<"$list"
all=${#targets[@]}
first=$(($(date +%s) / 86400 * 17 % all))
[ "$BUDGET" != 0 ] || first=0
BEGAN=$(date +%s)
export BEGAN
printf '%s\n' "${targets[@]:first}" "${targets[@]:0:first}" | grep . | xargs -P "$(nproc)" -L 1 bash -c 'one "$0" "$1"'
if [ -e "$WORK/later" ]; then
	echo "fuzz: $(wc -l <"$WORK/later") of $all targets are left to other days: make fuzz runs them all"
fi

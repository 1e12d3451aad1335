#!/bin/bash
# Runs every fuzz target of the module for a while, as many side by side as there are cores. Inputs that are new aren't
# made smaller: that takes the time that is for finding them. usage: fuzz.sh TIME (as in -fuzztime)
set -euo pipefail
export FUZZTIME=${1:-10s} GO=${GO:-go}
cd "$(dirname "$(readlink -f "$0")")/.."

one() {
	local out
	out=$("$GO" test -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 0 -parallel 1 "./$(dirname "$1")" 2>&1) ||
		# An input that is running when the time is over may be reported as a failure without one (golang/go#48591).
		{ grep -q 'context deadline exceeded' <<<"$out" && ! grep -qE 'Failing input|panic|_test.go:' <<<"$out"; } ||
		{ printf '%s %s FAILED\n%s\n' "$(dirname "$1")" "$2" "$out"; return 1; }
	printf 'fuzz %s %s: %s\n' "$(dirname "$1")" "$2" "$(grep -oE 'execs: [0-9]+' <<<"$out" | tail -1)"
}
export -f one

targets=$(git ls-files -co --exclude-standard '*_test.go' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func / /')
[ -n "$targets" ]
echo "$targets" | xargs -P "$(nproc)" -L 1 bash -c 'one "$0" "$1"'
echo "$(wc -l <<<"$targets") fuzz targets"

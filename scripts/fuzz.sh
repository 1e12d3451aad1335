#!/bin/bash
# Runs every fuzz target of the module for a while, one after the other. usage: fuzz.sh TIME (as in -fuzztime)
set -euo pipefail
time=${1:-10s}; go=${GO:-go}
cd "$(dirname "$(readlink -f "$0")")/.."
count=0
while IFS=: read -r file name; do
  echo "fuzz $(dirname "$file") $name"
  "$go" test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "./$(dirname "$file")"
  count=$((count + 1))
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
echo "$count fuzz targets"
[ "$count" -gt 0 ]

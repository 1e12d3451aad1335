#!/bin/bash
# The programs of the previous release, built once into DIR: edges and nodes of both must work with each other.
# usage: previous.sh DIR   prints a line and ends with 3 where the history doesn't reach so far back.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
commit=$(cat "$here/previous")
cd "$here/.."
git cat-file -e "$commit^{commit}" 2>/dev/null || { echo "skipped: the previous release $commit isn't in this clone's history"; exit 3; }
dir=$(mkdir -p "$1" && cd "$1" && pwd)
[ "$(cat "$dir/commit" 2>/dev/null)" != "$commit" ] || exit 0
source=$(mktemp -d); trap 'rm -rf "$source"' EXIT
git archive "$commit" | tar -x -C "$source"
(cd "$source" && go build -trimpath -buildvcs=false -o "$dir/" ./apps/edge/cmd/iop-edge ./apps/node/cmd/iop-node)
echo "$commit" >"$dir/commit"

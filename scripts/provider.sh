#!/bin/bash
# A real llama-server and two tiny models with known text, made once and kept in DIR.
# usage: provider.sh DIR   then: DIR/llama-server -m DIR/tiny.gguf …   (slow.gguf: 45 to 130 ms a token)
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(dirname "$(readlink -f "$0")")
"$dir/llama-server" --version >/dev/null 2>&1 || "$here/install-llama-server.sh" "$dir"
cd "$here/.."
[ -s "$dir/tiny.gguf" ] || go run ./scripts/gengguf -o "$dir/tiny.gguf"
[ -s "$dir/slow.gguf" ] || go run ./scripts/gengguf -ffn 131072 -o "$dir/slow.gguf"

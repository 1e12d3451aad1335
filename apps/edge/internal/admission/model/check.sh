#!/bin/bash
# Checks the model of admission with spin, and that it fails when a rule is taken away. Needs gcc and spin; without spin
# it says that it checks nothing.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
command -v spin >/dev/null || { echo "skipped: the model of admission, since there is no spin (apt-get install spin)"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check FLAGS: runs the verifier; 0 = no error in any state
check() {
	(cd "$work" && spin "$@" -a "$OLDPWD/admission.pml" >spin.log && gcc -w -O2 -DSAFETY -o pan pan.c && ./pan -E -m200000 -w24 >pan.log)
	grep -q 'errors: 0$' "$work/pan.log" && ! grep -q 'max search depth too small' "$work/pan.log"
}

check || { cat "$work/pan.log"; echo "FAIL: the model breaks a rule"; exit 1; }
grep -E 'states, stored|errors' "$work/pan.log"
for bug in $(grep -oE 'BUG_[A-Z_]+' admission.pml | grep -v '^BUG_$' | sort -u); do
	if check -D"$bug"; then echo "FAIL: the model doesn't notice $bug"; exit 1; fi
	echo "$bug is noticed"
done

#!/bin/bash
# dist.sh DIRECTORY [package]: builds what is given to others, the same bytes from the same source each time:
#   root/   the two programs, linked statically; manual pages, completions, units and examples, as packages install them
#   image/  what packaging/Dockerfile copies: the programs and this machine's CA roots
#   iop-VERSION-linux-ARCH.tar.gz, and with "package" the deb and the rpm; SHA256SUMS of them
# GOARCH=arm64 CC=aarch64-linux-gnu-gcc builds for another machine; then HOST_BIN names a directory of programs that run
# on this one, for manual pages and completions.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
dist=$(realpath -m "${1:?usage: dist.sh DIRECTORY [package]}") package=${2-}
root=$dist/root image=$dist/image
arch=${GOARCH:-$(go env GOARCH)}
export GOARCH=$arch CGO_ENABLED=1 SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
umask 022
rm -rf "$root" "$image" "$dist"/iop[-_]* "$dist"/SHA256SUMS
mkdir -p "$root"/usr/bin "$root"/usr/share/man/man1 "$root"/usr/share/doc/iop/examples \
  "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}

# With it the runtime erases what cryptography leaves of a provider's key in memory.
shield=$(GOEXPERIMENT=runtimesecret go version >/dev/null 2>&1 && echo runtimesecret || true)
# The network and user lookups of libc would need its shared parts at run time; SQLite's extensions would, too.
GOEXPERIMENT=$shield go build -trimpath -buildvcs=auto -tags 'netgo osusergo sqlite_omit_load_extension' \
  -ldflags '-s -w -buildid= -linkmode external -extldflags "-static -Wl,--build-id=none"' \
  -o "$root/usr/bin/" ./apps/edge/cmd/iop-edge ./apps/node/cmd/iop-node
for program in iop-edge iop-node; do # PT_INTERP = it asks for a dynamic linker
  if LC_ALL=C readelf -lW "$root/usr/bin/$program" | grep INTERP >/dev/null; then echo "$program isn't static"; exit 1; fi
done

bin=${HOST_BIN:-$root/usr/bin}
version=$(go version -m "$root/usr/bin/iop-edge" | awk '$1 == "mod" { sub(/^v/, "", $3); print $3 }')
case $version in [0-9]*) ;; *) version=0.0.0-dev ;; esac # the source has no history
for program in iop-edge iop-node; do
  "$bin/$program" describe | (cd scripts/manpages && GOARCH= CC= go run . "$root/usr/share/man/man1" "$version" "$SOURCE_DATE_EPOCH")
  "$bin/$program" completion bash >"$root/usr/share/bash-completion/completions/$program"
  "$bin/$program" completion zsh >"$root/usr/share/zsh/vendor-completions/_$program"
  "$bin/$program" completion fish >"$root/usr/share/fish/vendor_completions.d/$program.fish"
done
gzip -9nf "$root"/usr/share/man/man1/*.1
cp -r packaging/files/. "$root/"
cp configs/edge.yaml configs/node.yaml "$root/usr/share/doc/iop/examples/"
cp README.md "$root/usr/share/doc/iop/"
cp -r docs "$root/usr/share/doc/iop/docs"

mkdir -p "$image"/iop/{ca,edge,local,callers} "$image"/var/lib/iop "$image"/tmp
cp "$root"/usr/bin/iop-* "$image/"
cp -L /etc/ssl/certs/ca-certificates.crt "$image/"
for dir in "$image"/iop/* "$image"/var/lib/iop "$image"/tmp; do : >"$dir/.keep"; done # git and Docker forget what is empty

name=iop-$version-linux-$arch
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --transform "s,^\.,$name," \
  -C "$root" -cf - . | gzip -9n >"$dist/$name.tar.gz"
if [ "$package" = package ]; then
  export IOP_VERSION=$version IOP_ROOT=$root IOP_ARCH=$arch
  for kind in deb rpm; do
    GOARCH= CC= go tool -modfile=scripts/nfpm/go.mod nfpm package -f packaging/nfpm.yaml -p "$kind" -t "$dist/" >/dev/null
  done
fi
(cd "$dist" && sha256sum iop[-_]* | tee SHA256SUMS)

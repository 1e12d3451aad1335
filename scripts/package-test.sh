#!/bin/bash
# package-test.sh [DIRECTORY of a root file system]: makes deb and rpm and looks into both; then, where systemd-nspawn and
# debootstrap are and this is root, installs the deb in a fresh Debian whose first process is systemd, runs it under its
# units, upgrades and removes it. DIRECTORY keeps that Debian for the next time. Nothing on this machine is changed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
work=$(mktemp -d /tmp/iop-package.XXXXXX)
base=${1:-$work/debian}
trap 'rm -rf "$work"' EXIT

scripts/dist.sh "$work/dist" package
deb=$(echo "$work"/dist/*.deb) rpm=$(echo "$work"/dist/*.rpm)
dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles | sort | tr '\n' ' ' | grep -x '/etc/iop/edge.yaml /etc/iop/node.yaml ' >/dev/null
dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | sed 's,^\./,/,' | sort >"$work/files"
grep -q '/usr/lib/systemd/system/iop-edge.socket' "$work/files"
if command -v rpm >/dev/null; then
  rpm -qpl --nosignature "$rpm" | sort | comm -13 - "$work/files" | (! grep .) || { echo "the rpm lacks files of the deb"; exit 1; }
  [ "$(rpm -qpc --nosignature "$rpm" | tr '\n' ' ')" = '/etc/iop/edge.yaml /etc/iop/node.yaml ' ]
else
  echo "skipped: what is in the rpm, since there is no rpm here"
fi

if [ "$(id -u)" != 0 ] || ! command -v systemd-nspawn >/dev/null || ! command -v debootstrap >/dev/null; then
  echo "skipped: the deb under systemd; root, systemd-nspawn (systemd-container) and debootstrap are needed"
  exit 0
fi
if [ ! -e "$base/usr/bin/curl" ]; then
  debootstrap --variant=minbase --include=systemd,systemd-sysv,curl,ca-certificates,procps bookworm "$base" >"$work/debootstrap.log" 2>&1 ||
    { echo "skipped: the deb under systemd; no Debian can be fetched: $(tail -1 "$work/debootstrap.log")"; exit 0; }
fi
cp -a "$base" "$work/root"
cp "$deb" "$work/root/root/iop.deb"
cp packaging/test/inside.sh "$work/root/root/"
cat >"$work/root/etc/systemd/system/package-test.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/bin/bash /root/inside.sh >/root/log 2>&1; systemctl poweroff --no-block'
UNIT
mkdir -p "$work/root/etc/systemd/system/default.target.wants"
ln -s ../package-test.service "$work/root/etc/systemd/system/default.target.wants/"
timeout 300 systemd-nspawn -q -D "$work/root" --register=no --keep-unit --private-network --capability=CAP_IPC_LOCK --system-call-filter=memfd_secret -b </dev/null >"$work/console" 2>&1 || true
[ -s "$work/root/root/log" ] || { echo "skipped: the deb under systemd, which doesn't start here: $(tail -1 "$work/console")"; exit 0; }
grep -vE '^\+|^\(Reading' "$work/root/root/log" || true
grep -q '^package-test: all of it$' "$work/root/root/log" || { echo "the trace:"; tail -40 "$work/root/root/log"; exit 1; }

#!/bin/bash
# What scripts/package-test.sh runs inside a fresh Debian whose first process is systemd: install the deb, configure as
# docs/install.md says, run under the units, restart without a refused caller, upgrade, remove, purge.
set -euxo pipefail
fails() { if "$@"; then echo "that should have failed: $*"; exit 1; fi; }
until_ok() { for _ in $(seq 120); do "$@" && return 0; sleep 0.5; done; echo "never: $*"; return 1; }

dpkg -i /root/iop.deb
fails systemctl is-enabled iop-edge iop-node
[ "$(stat -c '%U:%G %a' /etc/iop/edge)" = 'root:iop-edge 750' ]
systemctl start iop-edge iop-node # nothing is configured: the units' conditions don't hold
fails systemctl is-active iop-edge
systemd-analyze verify --man=no /usr/lib/systemd/system/iop-{edge,node}.service /usr/lib/systemd/system/iop-edge.socket
for unit in iop-edge iop-node; do systemd-analyze security --no-pager "$unit" | tail -1; done

# What the documentation says, from /root/site to running programs: systemctl returns once they are ready (Type=notify).
awk '/^```sh systemd/{on=1;next} /^```/{on=0} on' /usr/share/doc/iop/docs/install.md >/root/doc.sh
grep -q 'enable --now' /root/doc.sh
. /root/doc.sh
until_ok iop-node health --ready
systemctl status --no-pager iop-edge iop-node | grep -E 'Status: "(callers|ready at)'
set +x
key=$(iop-edge setup --dir /root/site --show-key)
ask() {
  curl -sS -m 60 http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d '{"model":"loopback","messages":[{"role":"user","content":"hi"}]}' | grep 'No model ran' >/dev/null
}
set +x; ask; set -x
ps -o user=,comm= -C iop-edge,iop-node | sort | tr -s ' ' >/tmp/users
[ "$(tr '\n' ';' </tmp/users)" = 'iop-edge iop-edge;iop-node iop-node;' ]

# Callers while the Edge restarts: none is refused.
set +x
: >/root/refused
(while [ ! -e /root/stop ]; do ask || echo refused >>/root/refused; done) &
loop=$!
systemctl restart iop-edge
systemctl reload iop-edge
ask
touch /root/stop
wait "$loop"
set -x
fails test -s /root/refused

echo '# mine' >>/etc/iop/edge.yaml
dpkg -i /root/iop.deb # an upgrade, of what runs
grep -q '# mine' /etc/iop/edge.yaml
systemctl is-active iop-edge iop-node
until_ok iop-node health --ready
set +x; ask; set -x
journalctl --no-pager -u iop-node -o cat | grep -c '"message":"ready"'
journalctl --no-pager -u iop-node -o cat | grep -E '"pages":"(memfd_secret|locked)"'

dpkg -r iop
fails systemctl is-active iop-edge iop-node
test -e /etc/iop/edge.yaml
dpkg -P iop
for path in /etc/iop /var/lib/iop-edge /var/lib/iop-node /usr/bin/iop-edge; do fails test -e "$path"; done
echo 'package-test: all of it'

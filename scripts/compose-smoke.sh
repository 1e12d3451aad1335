#!/bin/bash
# compose-smoke.sh [DIRECTORY that dist.sh filled]: builds the image, brings docker-compose.yaml up in mode managed, asks through it, restarts the edge, takes everything
# down. It uses the Docker engine that answers, or, as root and where dockerd is installed, one of its own for as long as it
# runs. Where no engine can run, it says so and ends well: that isn't IOP's fault.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
work=$(mktemp -d /tmp/iop-compose.XXXXXX)
engine='' bridge=''
export COMPOSE_DOCKER_CLI_BUILD=0 DOCKER_BUILDKIT=0 # the plain builder: it needs no plugin
export COMPOSE_PROJECT_NAME=iopsmoke$$ IOP_IMAGE=iop-smoke:$$ IOP_PORT=0

skip() { echo "skipped: compose-smoke: $*"; exit 0; }
compose() { (cd "$work" && timeout 150 "${compose[@]}" "$@"); }
cleanup() {
  status=$?
  set +e
  if [ -f "$work/up" ]; then
    [ $status = 0 ] || compose logs --no-color 2>&1 | tail -60
    compose down -v -t 5 >/dev/null 2>&1
    timeout 60 docker rmi -f "$IOP_IMAGE" >/dev/null 2>&1
  fi
  if [ -n "$engine" ]; then
    kill "$engine" 2>/dev/null && wait "$engine"
    [ -n "$bridge" ] || ip link del docker0 2>/dev/null
    grep -s " $work" /proc/self/mounts | cut -d' ' -f2 | xargs -r umount -l
  fi
  rm -rf "$work"
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if docker compose version >/dev/null 2>&1; then compose=(docker compose)
elif command -v docker-compose >/dev/null; then compose=(docker-compose)
else skip "there is no docker-compose"; fi
if ! timeout 20 docker info >/dev/null 2>&1; then
  [ "$(id -u)" = 0 ] && command -v dockerd >/dev/null || skip "no Docker engine answers, and none can be started (root and dockerd are needed)"
  bridge=$(ip link show docker0 2>/dev/null || true) # the engine makes one and leaves it
  export DOCKER_HOST=unix://$work/docker.sock
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" -H "$DOCKER_HOST" --storage-driver vfs \
    --iptables=false --ip6tables=false >"$work/dockerd.log" 2>&1 &
  engine=$!
  for _ in $(seq 60); do timeout 5 docker info >/dev/null 2>&1 && break; kill -0 "$engine" 2>/dev/null || break; sleep 0.5; done
  timeout 5 docker info >/dev/null 2>&1 || skip "dockerd doesn't come up: $(tail -1 "$work/dockerd.log")"
fi

mkdir "$work/dist"
if [ $# -gt 0 ]; then cp -r "$1/image" "$work/dist/"; else scripts/dist.sh "$work/dist" >/dev/null; fi
cp -r docker-compose.yaml .dockerignore packaging "$work/"
touch "$work/up"
compose build >"$work/build.log" 2>&1 || skip "this engine can't build: $(tail -1 "$work/build.log")"
timeout 60 docker run --rm -p 127.0.0.1:0:8080 "$IOP_IMAGE" iop-edge version >"$work/run.log" 2>&1 ||
  skip "this engine can't run a container with a network: $(tail -1 "$work/run.log")"

healthy() { # healthy SERVICE
  for _ in $(seq 240); do
    case $(docker inspect -f '{{.State.Health.Status}}' "$(compose ps -q "$1")" 2>/dev/null) in healthy) return 0 ;; esac
    sleep 0.5
  done
  echo "$1 isn't healthy"; return 1
}
asks() {
  local key at
  key=$(compose run --rm -T key 2>/dev/null)
  at=$(compose port edge 8080)
  [ "$(curl -s -o /dev/null -w '%{http_code}' "http://$at/v1/models")" = 401 ] || { echo "somebody without a key was let in"; return 1; }
  curl -sS -m 30 "http://$at/v1/chat/completions" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d '{"model":"loopback","messages":[{"role":"user","content":"hi"}]}' | grep 'No model ran' >/dev/null
}
compose up -d >"$work/up.log" 2>&1 || { tail -20 "$work/up.log"; exit 1; }
healthy edge; healthy node; asks
# What docs/install.md says, at this site's port.
docker() { if [ "$1" = compose ]; then compose "${@:2}"; else command docker "$@"; fi; }
awk '/^```sh compose/{on=1;next} /^```/{on=0} on' docs/install.md | sed "s/127.0.0.1:8080/$(compose port edge 8080)/" >"$work/doc.sh"
(set -e; . "$work/doc.sh") >"$work/doc.log" 2>&1 || { tail -20 "$work/doc.log"; exit 1; }
compose up -d >"$work/up.log" 2>&1 || { tail -20 "$work/up.log"; exit 1; } # again: nothing is made anew
compose logs --no-color setup | grep 'nothing to do' >/dev/null
compose stop edge >/dev/null 2>&1
[ "$(docker inspect -f '{{.State.ExitCode}}' "$(compose ps -a -q edge)")" = 0 ] || { echo "the edge didn't stop in order"; exit 1; }
compose start edge >/dev/null 2>&1
healthy edge; healthy node; asks
echo "compose-smoke: edge and node came up in mode managed, answered, and did so again after a restart"

#!/bin/sh
# A private Docker daemon below the data folder, for tests and for machines without one:
#   docker.sh start | own | stop | status | run COMMAND...
# `start` uses a daemon that answers already (DOCKER_HOST, ours, the system's); else it does what `own` does: as
# root install Debian's docker.io and start one that listens on a unix socket only, without bridges and packet
# filters: sandboxes have no network. Its data lies in an XFS file with project quotas where the kernel can mount one,
# because only there Docker can limit what a container writes. `run` stops what it started.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
home=${TRAINYARD_HOME:-.trainyard}
mkdir -p "$home"
folder=$(cd "$home" && pwd)/docker
socket=$folder/docker.sock
disk=$folder/data.xfs
data=$folder/data
size=${TRAINYARD_DOCKER_DISK:-64G} # sparse: what is not used takes no room

answers() { command -v docker >/dev/null 2>&1 && timeout 20 docker "$@" version >/dev/null 2>&1; }

ours() { [ -S "$socket" ] && answers -H "unix://$socket"; }

say() { echo "Docker: $*" >&2; }

mount_disk() {
    mkdir -p "$data"
    if grep -q " $data " /proc/mounts; then return 0; fi
    if [ -r /proc/config.gz ] && ! zcat /proc/config.gz | grep -q '^CONFIG_XFS_QUOTA=y'; then return 1; fi
    "$here/system.sh" mkfs.xfs:xfsprogs || return 1
    made=no
    if [ ! -e "$disk" ]; then truncate -s "$size" "$disk" && mkfs.xfs -q -n ftype=1 "$disk" && made=yes || return 1; fi
    mount -o loop,pquota,discard "$disk" "$data" 2>/dev/null && return 0
    if [ $made = yes ]; then rm -f "$disk"; fi # an older one holds images
    return 1
}

launch() { # launch DRIVER: start the daemon and wait until it answers
    : >"$folder/dockerd.log"
    setsid dockerd -H "unix://$socket" --data-root "$data" --exec-root "$folder/exec" --pidfile "$folder/dockerd.pid" \
        --storage-driver "$1" --bridge none --iptables=false --ip6tables=false --ip-forward=false \
        --userland-proxy=false </dev/null >"$folder/dockerd.log" 2>&1 &
    pid=$!
    for _ in $(seq 120); do
        if ours; then return 0; fi
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.5
    done
    kill "$pid" 2>/dev/null && wait "$pid" || true
    return 1
}

start() {
    if answers || ours; then return 0; fi
    if [ -n "${DOCKER_HOST:-}" ]; then say "nothing answers at DOCKER_HOST=$DOCKER_HOST"; return 1; fi
    own
}

own() {
    if ours; then return 0; fi
    if [ "$(id -u)" != 0 ]; then say "no daemon answers, and only root can start one"; return 1; fi
    if [ ${#folder} -gt 70 ]; then say "$folder is too long for unix sockets; set TRAINYARD_HOME"; return 1; fi
    "$here/system.sh" dockerd:docker.io docker:docker.io || return 1
    mkdir -p "$folder"
    mount_disk || say "this kernel has no XFS quotas: what a container writes is watched, not limited"
    for driver in overlay2 vfs; do
        if launch "$driver"; then say "started on $socket ($driver)"; return 0; fi
    done
    say "the daemon does not start here:"
    tail -n 5 "$folder/dockerd.log" >&2
    stop
    return 1
}

stop() {
    if [ -s "$folder/dockerd.pid" ]; then
        pid=$(cat "$folder/dockerd.pid")
        if kill "$pid" 2>/dev/null; then
            for _ in $(seq 60); do kill -0 "$pid" 2>/dev/null || break; sleep 0.5; done
        fi
    fi
    rm -f "$folder/dockerd.pid" "$socket"
    # Its disk, and what containers that died with it left mounted.
    awk -v folder="$folder/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount
}

case ${1:-} in
start) start ;;
own) own ;;
stop) stop ;;
status) if ours; then echo "unix://$socket"; elif answers; then docker context inspect -f '{{.Endpoints.docker.Host}}'; else echo "no daemon"; exit 1; fi ;;
run)
    shift
    if ! answers && ! ours; then
        trap 'stop || true' EXIT # however the command ends, Ctrl-C included
        trap 'exit 130' HUP INT TERM
        start || { trap - EXIT HUP INT TERM; say "the tests that need it are skipped"; }
    fi
    status=0
    "$@" || status=$?
    exit $status
    ;;
*) echo "usage: $0 start | own | stop | status | run COMMAND..." >&2; exit 2 ;;
esac

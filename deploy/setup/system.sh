#!/bin/sh
# Makes sure that system commands exist: system.sh COMMAND:PACKAGE ...
# As root the missing packages are installed, otherwise the exact command is printed.
set -eu

missing=""
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing system packages:$missing …"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # shellcheck disable=SC2086
    if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        echo "Could not install$missing. Install them by hand: apt-get install$missing" >&2
        exit 1
    fi
    rm -f "$log"
else
    echo "Missing system packages. Install them with: sudo apt-get install$missing" >&2
    exit 1
fi

#!/bin/sh
# Installs pinned packages into the virtual environment, made where there is none: python.sh PYTHON FOLDER LIST…
# PIP_OPTIONS are passed to pip.
set -eu

folder=$2
"$(dirname "$0")/venv.sh" "$1" "$folder"
shift 2
log=$(mktemp)
for list in "$@"; do
    echo "Installing requirements/$list.txt (the first time takes a few minutes) …"
    # shellcheck disable=SC2086
    if ! "$folder/bin/python" -m pip install --disable-pip-version-check --quiet ${PIP_OPTIONS:-} -r "requirements/$list.txt" -c requirements/constraints.txt >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "Installing requirements/$list.txt failed. Is the package index reachable?" >&2
        exit 1
    fi
done
rm -f "$log"

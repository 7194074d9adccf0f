#!/bin/sh
# Makes the virtual environment and installs the pinned packages: python.sh PYTHON FOLDER
set -eu

python=$1
folder=$2
if ! command -v "$python" >/dev/null 2>&1; then
    python=python3
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "Trainyard needs Python 3.11; found: $("$python" --version 2>&1 || echo none)." >&2
    echo "Install it (Debian 12: apt-get install python3.11 python3.11-venv) or name it: make PYTHON=/path/to/python3.11" >&2
    exit 1
fi
if [ ! -x "$folder/bin/pip" ]; then
    rm -rf "$folder"
    if ! "$python" -m venv "$folder"; then
        echo "Python's venv module is missing. Debian: apt-get install python3.11-venv" >&2
        exit 1
    fi
fi
log=$(mktemp)
for list in web engine dev; do
    echo "Installing requirements/$list.txt (the first time takes a few minutes) …"
    if ! "$folder/bin/python" -m pip install --disable-pip-version-check --quiet -r "requirements/$list.txt" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "Installing requirements/$list.txt failed. Is the package index reachable?" >&2
        exit 1
    fi
done
rm -f "$log"

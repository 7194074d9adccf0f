#!/bin/sh
# Makes the virtual environment and installs the pinned packages: python.sh PYTHON FOLDER
set -eu

folder=$2
"$(dirname "$0")/venv.sh" "$1" "$folder"
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

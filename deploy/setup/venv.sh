#!/bin/sh
# Makes an empty virtual environment with Python 3.11 where there is none: venv.sh PYTHON FOLDER
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

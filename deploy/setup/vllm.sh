#!/bin/sh
# Makes the virtual environment of vLLM for machines without GPU: vllm.sh PYTHON FOLDER
set -eu

python=$1
folder=$2
list=requirements/vllm.txt
if ! command -v "$python" >/dev/null 2>&1; then
    python=python3
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "vLLM's environment needs Python 3.11; found: $("$python" --version 2>&1 || echo none)." >&2
    echo "Install it (Debian 12: apt-get install python3.11 python3.11-venv) or name it: make vllm PYTHON=/path/to/python3.11" >&2
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
install() {
    if ! "$folder/bin/python" -m pip install --disable-pip-version-check --quiet "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "Installing vLLM failed. Is the package index reachable?" >&2
        rm -f "$log"
        exit 1
    fi
}
echo "Installing $list into $folder (about 1.8 GB, the first time takes a few minutes) …"
install "$(grep '^torch==' "$list")"
install --no-deps -r "$list"
rm -f "$log"
if ! "$folder/bin/python" -c 'import vllm' >/dev/null 2>&1; then
    echo "vLLM does not start on this machine: run $folder/bin/python -c 'import vllm' to see why." >&2
    exit 1
fi

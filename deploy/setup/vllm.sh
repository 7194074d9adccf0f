#!/bin/sh
# Makes the virtual environment of vLLM for machines without GPU: vllm.sh PYTHON FOLDER
set -eu

folder=$2
list=requirements/vllm.txt
"$(dirname "$0")/venv.sh" "$1" "$folder"
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

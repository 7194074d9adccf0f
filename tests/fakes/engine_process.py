"""A tiny engine: ``python engine_process.py RUN_DIR`` writes its spool as told by ``config.json``.

``config["name"]`` has a word per attempt (the last is repeated): ``finish`` ends in
order, ``crash`` exits 1 after one event, ``sleep`` beats nothing and waits, ``stubborn`` ignores
SIGTERM. No web server is needed: what it spools is ingested when it is gone.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    folder = Path(sys.argv[1])
    launch = json.loads((folder / "launch.json").read_text())
    words = json.loads((folder / "config.json").read_text())["name"].split()
    word = words[min(launch["epoch"], len(words)) - 1]
    spool = folder / "events.jsonl"
    seq = sum(1 for _ in spool.open()) if spool.exists() else 0
    events = [{"type": "run_started", "host": "h", "pid": 1, "total_iterations": 1}]
    if word == "finish":
        events.append({"type": "run_finished", "state": "succeeded"})
    if word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with spool.open("a") as stream:
        for event in events:
            seq += 1
            stream.write(
                json.dumps(event | {"seq": seq, "epoch": launch["epoch"], "time": time.time()}) + "\n"
            )
    if word in ("sleep", "stubborn"):
        (folder / "ready").touch()
        time.sleep(120)
    print("the fake engine ends:", word, flush=True)
    return 1 if word == "crash" else 0


if __name__ == "__main__":
    raise SystemExit(main())

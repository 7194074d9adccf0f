"""A page process never loads the machine-learning stack and stays small (DESIGN §2, §8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROBE = """
import json, os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
import django
django.setup()
import webapp.urls, webapp.asgi
heavy = sorted({"torch", "ray", "vllm", "transformers"} & set(sys.modules))
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps({"heavy": heavy, "mb": peak / 1024}))
"""


def test_the_web_process_has_no_torch_in_memory_and_is_small() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["heavy"] == []
    assert found["mb"] <= 200

"""Web and command processes load no machine-learning libraries and stay small (DESIGN §2, §8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROBE = """
import importlib, json, os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
import django
django.setup()
for name in sys.argv[1:]:
    importlib.import_module(name)
heavy = sorted({"torch", "ray", "vllm", "transformers"} & set(sys.modules))
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps({"heavy": heavy, "mb": peak / 1024}))
"""


@pytest.mark.parametrize("modules", [["webapp.urls", "webapp.asgi"], ["webapp.cli"]], ids=["web", "command"])
def test_process_loads_no_machine_learning_libraries_and_stays_small(modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *modules],
        capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["heavy"] == []
    assert report["mb"] <= 200

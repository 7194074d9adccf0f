"""A wheel built from this checkout contains all parts and runs without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from webapp.supervisor.home import PROJECT

PARTS = {
    "engine": "engine", "webapp": "webapp", "workers": "workers",
    "templates": "webapp/templates", "static": "webapp/static",
}  # fmt: skip
"""Folders of the checkout and their paths in the wheel."""
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
SHOW = """
import django; django.setup()
from django.contrib.staticfiles import finders
from django.template.loader import get_template
print(get_template("base.html").origin.name, finders.find("favicon.svg"))
"""


def python(*arguments: str, folder: Path, **environment: str) -> str:
    outer = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TRAINYARD_HOME")}
    completed = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=outer | environment, capture_output=True, text=True,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_wheel_contains_all_parts_and_runs_outside_the_checkout(tmp_path: Path) -> None:
    source, site, home = tmp_path / "source", tmp_path / "site", tmp_path / "home"
    for part in (*PARTS, "requirements"):
        shutil.copytree(PROJECT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(PROJECT / name, source)
    wheel = python("-c", BUILD, str(tmp_path), folder=source).splitlines()[-1]
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        archive.extractall(site)
    (metadata,) = site.glob("*.dist-info")
    assert "trainyard = webapp.cli:main" in (metadata / "entry_points.txt").read_text()
    required = (metadata / "METADATA").read_text()
    for dependency in ("Requires-Dist: Django==", "Provides-Extra: engine", "Provides-Extra: ray"):
        assert dependency in required
    for part, target in PARTS.items():
        copied = [path.relative_to(source / part) for path in (source / part).rglob("*") if path.is_file()]
        assert [str(path) for path in copied if not (site / target / path).is_file()] == []
    variables = {"PYTHONPATH": str(site), "HOME": str(home), "DJANGO_SETTINGS_MODULE": "webapp.settings"}
    assert "launch" in python("-m", "webapp", "run", "--help", folder=tmp_path, **variables)
    page, icon = python("-c", SHOW, folder=tmp_path, **variables).split()
    assert (Path(page), Path(icon)) == (
        site / "webapp/templates/base.html",
        site / "webapp/static/favicon.svg",
    )
    assert [path.name for path in home.iterdir()] == [".trainyard"]

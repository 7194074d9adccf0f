"""Calls of npm: what it is told, and whose fault its errors are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.datasets.commits.languages.javascript.environments import resolve
from engine.errors import DatasetError, PreflightError


def install_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program named npm before all others."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_npm_sees_requirements_only_and_runs_no_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""cp package.json {tmp_path}/seen.json; echo "$@" > {tmp_path}/options
env | grep ^npm_config_allow_ | sort > {tmp_path}/sources
echo '{{"packages": {{"": {{}}, "node_modules/ms": {{"version": "2.1.3"}}}}}}' > package-lock.json"""
    install_npm(tmp_path, monkeypatch, script)
    resolution = resolve(("ms@^2.0.0", "ms@1"), ("fsevents@*", "ms@3"), before=None, home=tmp_path)
    assert resolution.pins == ("ms@2.1.3",)
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        "name": "tests",
        "version": "1.0.0",
        "private": True,
        "dependencies": {"ms": "^2.0.0"},
        "optionalDependencies": {"fsevents": "*"},
    }
    assert {"--ignore-scripts", "--git=/bin/false"} <= set((tmp_path / "options").read_text().split())
    sources = [f"npm_config_allow_{source}=none" for source in ("directory", "file", "git", "remote")]
    assert (tmp_path / "sources").read_text().splitlines() == sources


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("EBADPLATFORM", DatasetError),
        ("EINVALIDPACKAGENAME", DatasetError),
        ("ETARGET", DatasetError),
        ("E404", DatasetError),
        ("EUNKNOWN\nnpm warn deprecated x@1: npm error code ENOSPC", DatasetError),
        ("ENOTFOUND", PreflightError),
        ("ECONNREFUSED", PreflightError),
        ("ETIMEDOUT", PreflightError),
        ("E503", PreflightError),
        ("ENOSPC", PreflightError),
        ("SELF_SIGNED_CERT_IN_CHAIN", PreflightError),
    ],
)
def test_only_the_registry_and_the_machine_end_a_curation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception]
) -> None:
    install_npm(tmp_path, monkeypatch, f"printf 'npm error code {code}\\nnpm error x\\n' >&2; exit 1")
    with pytest.raises(error):
        resolve(("ms@1",), before=None, home=tmp_path)

"""Files that curations keep, on the page, in the API and by command."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(tmp_path: Path, settings: Any) -> Path:
    """Use a data folder with an unused toolchain and a recent one."""
    settings.TRAINYARD_HOME = tmp_path
    for name in ("old", "new"):
        (tmp_path / "toolchain" / name).mkdir(parents=True)
        (tmp_path / "toolchain" / name / "pytest.py").write_text("x" * 9000)
    before = time.time() - 200_000
    os.utime(tmp_path / "toolchain" / "old", (before, before))
    return tmp_path


def test_unused_files_are_shown_and_removed(home: Path) -> None:
    client = signed_in(Role.OPERATOR)
    page = client.get("/disk/").content.decode()
    assert "<code>toolchain/old</code>" in page
    assert "<code>toolchain/new</code>" not in page
    listed = client.get("/api/v1/disk").json()
    assert {file["path"]: file["state"] for file in listed} == {
        "toolchain/old": "unused", "toolchain/new": "recent",
    }  # fmt: skip
    assert "1: 0 MB" in run_command("dataset", "disk")
    answer = client.post("/disk/remove/", follow=True).content.decode()
    assert "Removed 1 unused folders" in answer
    assert "No file can be removed" in answer
    assert [path.name for path in (home / "toolchain").iterdir()] == ["new"]
    assert AuditEntry.objects.filter(action="datasets.remove_files").count() == 1
    assert client.post("/api/v1/disk/remove").json() == []
    assert json.loads(run_command("dataset", "disk", "--remove", "--json")) == []


def test_files_are_unknown_where_a_dataset_cannot_be_read(home: Path) -> None:
    (home / "datasets" / "odd").mkdir(parents=True)
    (home / "datasets" / "odd" / "dataset.json").write_text("{")
    client = signed_in(Role.OPERATOR)
    assert "&#x27;odd&#x27; cannot be read" in client.get("/disk/").content.decode()
    assert "The removal failed" in client.post("/disk/remove/", follow=True).content.decode()
    response = client.post("/api/v1/disk/remove")
    assert (response.status_code, "'odd' cannot be read" in response.json()["detail"]) == (409, True)
    assert command_result("dataset", "disk", "--remove").status == 1
    assert (home / "toolchain" / "old").is_dir()

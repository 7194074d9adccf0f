"""Checkpoints that exist, and their download."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from tests.builders.web_builders import make_run, make_user, streamed
from webapp.models import Checkpoint, Run
from webapp.permissions import Role
from webapp.streaming import zipped_files

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    before = settings.TRAINYARD_HOME
    settings.TRAINYARD_HOME = tmp_path
    yield tmp_path
    settings.TRAINYARD_HOME = before


def saved(run: Run, iteration: int) -> None:
    Checkpoint.objects.create(
        run=run, iteration=iteration, policy_version=iteration, path="../../../etc", checksum="ab",
        saved_at=timezone.now(),
    )  # fmt: skip


def test_only_checkpoints_that_exist_are_listed_and_downloaded(home: Path) -> None:
    run, ada = make_run(), make_user("ada", Role.OPERATOR)
    for iteration in (1, 2, 3, 4):
        saved(run, iteration)
    root = home / "runs" / str(run.pk) / "checkpoints"
    for name in ("00001", "00002", ".pruned-00003"):
        (root / name / "shards").mkdir(parents=True)
        (root / name / "shards" / "weights").write_bytes(b"w" * 3_000_000)
    for name in ("00001", ".pruned-00003"):
        (root / name / "manifest.json").write_text("{}")
    (home / "secret").write_text("secret")
    (root / "00001" / "linked").symlink_to(home / "secret")
    (root / "00004").symlink_to(root / "00001")

    client = Client()
    client.force_login(ada)
    page = client.get(f"/runs/{run.pk}/?tab=checkpoints").content.decode()
    assert "showing 1 of 4" in page
    listed = client.get(f"/api/v1/runs/{run.pk}/checkpoints").json()
    assert [(one["iteration"], one["size"]) for one in listed] == [(1, 3_000_002)]
    for address in (f"/runs/{run.pk}/checkpoints/1.zip", f"/api/v1/runs/{run.pk}/checkpoints/1"):
        parts = streamed(ada, address, {})
        assert max(map(len, parts)) < 2_000_000
        with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
            name = f"run-{run.pk}-checkpoint-00001"
            assert archive.namelist() == [f"{name}/manifest.json", f"{name}/shards/weights"]
            assert archive.read(f"{name}/shards/weights") == b"w" * 3_000_000
    for missing in (2, 3, 4, 5):
        assert client.get(f"/runs/{run.pk}/checkpoints/{missing}.zip").status_code == 404
    client.force_login(make_user("eve", Role.VIEWER))
    assert client.get(f"/runs/{run.pk}/checkpoints/1.zip").status_code == 403
    assert client.get(f"/api/v1/runs/{run.pk}/checkpoints/1").status_code == 403


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="link"):
        list(zipped_files("x", [("link", tmp_path / "link")]))

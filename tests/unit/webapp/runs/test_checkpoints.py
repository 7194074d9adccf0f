"""List, download and offer of checkpoints whose files exist."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from tests.builders.commands import run_command
from tests.builders.web.web_builders import make_run, make_user, signed_in, streamed
from webapp.core.permissions import Role
from webapp.core.streaming import zipped_files
from webapp.models import AuditEntry, Checkpoint, Evaluation, Run
from webapp.runs.contexts.forms.offers import run_offers
from webapp.runs.services import edits as run_edits
from webapp.runs.services.drafts import draft

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    before = settings.TRAINYARD_HOME
    settings.TRAINYARD_HOME = tmp_path
    yield tmp_path
    settings.TRAINYARD_HOME = before


def record_checkpoint(run: Run, iteration: int) -> None:
    Checkpoint.objects.create(
        run=run, iteration=iteration, policy_version=iteration, path="../../../etc", checksum="ab",
        saved_at=timezone.now(),
    )  # fmt: skip


def test_only_checkpoints_that_exist_are_listed_and_downloaded(home: Path) -> None:
    run, ada = make_run(), make_user("ada", Role.OPERATOR)
    for iteration in (1, 2, 3, 4):
        record_checkpoint(run, iteration)
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
    assert [(item["iteration"], item["size"]) for item in listed] == [(1, 3_000_002)]
    for address in (f"/runs/{run.pk}/checkpoints/1.zip", f"/api/v1/runs/{run.pk}/checkpoints/1"):
        parts = streamed(ada, address, {})
        assert max(map(len, parts)) < 2_000_000
        with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
            name = f"run-{run.pk}-checkpoint-00001"
            assert archive.namelist() == [f"{name}/manifest.json", f"{name}/shards/weights"]
            assert archive.read(f"{name}/shards/weights") == b"w" * 3_000_000
    entries = AuditEntry.objects.filter(action="checkpoint.export", run=run, actor=ada)
    assert [entry.target for entry in entries] == ["checkpoint 1"] * 2
    for missing in (2, 3, 4, 5):
        assert client.get(f"/runs/{run.pk}/checkpoints/{missing}.zip").status_code == 404
    client.force_login(make_user("eve", Role.VIEWER))
    assert client.get(f"/runs/{run.pk}/checkpoints/1.zip").status_code == 403
    assert client.get(f"/api/v1/runs/{run.pk}/checkpoints/1").status_code == 403


def save_checkpoint(home: Path, run: Run, iteration: int) -> None:
    """Record a checkpoint and write its manifest."""
    record_checkpoint(run, iteration)
    folder = home / "runs" / str(run.pk) / "checkpoints" / f"{iteration:05}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")


def test_checkpoints_that_exist_are_offered_newest_first(home: Path) -> None:
    first, second = make_run(name="alpha"), make_run(name="beta")
    archived = make_run()
    for run, iteration in ((first, 10), (archived, 5), (second, 20), (second, 40)):
        save_checkpoint(home, run, iteration)
    record_checkpoint(second, 30)
    run_edits.archive(run=archived)
    Evaluation.objects.create(
        run=second, iteration=40, name="heldout", policy_version=1, num_samples=8, num_tasks=4, num_solved=2,
        solve_rate=0.523, interval_low=0.4, interval_high=0.6, finished_at=timezone.now(),
    )  # fmt: skip
    offers = run_offers(draft(recipe="quickstart"))["policy.checkpoint"]
    a, b = f"{first.pk}/checkpoints/00010", f"{second.pk}/checkpoints"
    assert [offer.value for offer in offers] == [
        "builtin:quickstart", f"run:{second.pk}", f"{b}/00040", f"{b}/00020", f"run:{first.pk}", a,
    ]  # fmt: skip
    newest = offers[2].label
    assert newest.startswith(f"run {second.pk} beta · after iteration 40 · 2")
    assert newest.endswith(" · held-out 52.3 %")
    assert offers[1].label == f"last checkpoint of {newest}"
    assert "held-out" not in offers[3].label
    listed = signed_in(Role.VIEWER).get("/api/v1/checkpoints", {"q": "BETA 00040"}).json()
    assert [(item["reference"], item["solve_rate"] is None) for item in listed] == [(f"{b}/00040", False)]
    assert (
        json.loads(run_command("run", "checkpoints", "beta", "00040", "--json"))[0]["reference"]
        == f"{b}/00040"
    )
    assert run_command("run", "checkpoints", "beta").splitlines()[0] == f"{b}/00040 · {newest}"


def test_zipped_files_refuses_symlinks(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="link"):
        list(zipped_files("x", [("link", tmp_path / "link")]))

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

from engine.config.recipes import RECIPES, resolve
from tests.builders.web_builders import make_run, make_user, streamed
from webapp.contexts.forms.run_offers import run_offers
from webapp.contexts.run.checkpoints import build_checkpoints
from webapp.models import Checkpoint, Evaluation, Run
from webapp.permissions import Role
from webapp.selectors.run.checkpoints import stored_checkpoints
from webapp.services.run import edits as run_edits
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


def complete(home: Path, run: Run, iteration: int) -> None:
    """Save a checkpoint that exists."""
    saved(run, iteration)
    folder = home / "runs" / str(run.pk) / "checkpoints" / f"{iteration:05}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")


def test_the_folder_of_a_warm_start_is_listed_without_a_manifest(home: Path) -> None:
    run = make_run()
    saved(run, 0)
    folder = home / "runs" / str(run.pk) / "checkpoints" / "00000"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w")
    stored, total = stored_checkpoints(run)
    assert ([one.folder for one in stored], total) == ([folder], 1)


def test_checkpoints_that_exist_are_offered_newest_first(home: Path) -> None:
    first, second = make_run(name="alpha"), make_run(name="beta")
    archived = make_run()
    for run, iteration in ((first, 10), (archived, 5), (second, 20), (second, 40)):
        complete(home, run, iteration)
    saved(second, 30)
    run_edits.archive(run=archived)
    Evaluation.objects.create(
        run=second, iteration=40, name="heldout", policy_version=1, num_samples=8, num_tasks=4, num_solved=2,
        solve_rate=0.523, interval_low=0.4, interval_high=0.6, finished_at=timezone.now(),
    )  # fmt: skip
    offers = run_offers(resolve("quickstart"))["policy.checkpoint"]
    a, b = f"{first.pk}/checkpoints/00010", f"{second.pk}/checkpoints"
    assert [one.value for one in offers] == [
        "builtin:quickstart", f"run:{second.pk}", f"{b}/00040", f"{b}/00020", f"run:{first.pk}", a,
    ]  # fmt: skip
    newest = offers[2].label
    assert newest.startswith(f"run {second.pk} beta · after iteration 40 · 2")
    assert newest.endswith(" · held-out 52.3 %")
    assert offers[1].label == f"last checkpoint of {newest}"
    assert "held-out" not in offers[3].label


@pytest.mark.parametrize(
    ("recipe", "setting", "others"),
    [
        ("quickstart", "policy.checkpoint", "Evaluate"),
        ("deepswe-32b", "policy.checkpoint", "Evaluate"),
        ("frozenlake", "policy.checkpoint", "Evaluate"),
        ("quickstart-sft", "sft.start", "Evaluate"),
        ("fine-tune", "trainer.start", "Evaluate"),
        ("train-judge", "trainer.start", "Verify with it"),
    ],
)
def test_forms_that_start_from_a_checkpoint_are_filled_in(
    home: Path, recipe: str, setting: str, others: str
) -> None:
    run = Run.objects.create(
        kind=RECIPES[recipe]().kind, name="x", recipe=recipe, config=resolve(recipe).model_dump(mode="json")
    )
    complete(home, run, 3)
    (row,), _ = build_checkpoints(run)
    forms = dict(row.forms)
    assert set(forms) == {"Train from it", others}
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    for label, name in (("Train from it", setting), (others, "policy.checkpoint")):
        context = client.get(forms[label]).context
        fields = {f.key: f for s in context["sections"] + context["others"] for f in s.fields}
        assert fields[name].value == f"{run.pk}/checkpoints/00003"
        assert fields[name].value in [one.value for one in fields[name].choices]
        assert not [f for f in context["findings"] if f.setting == name]
    if recipe == "deepswe-32b":
        assert fields["agent.max_context"].value == str(resolve(recipe).agent.max_context)  # type: ignore[union-attr]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="link"):
        list(zipped_files("x", [("link", tmp_path / "link")]))

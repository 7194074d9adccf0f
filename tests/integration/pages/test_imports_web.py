"""Imports by command, page and API: counts, allowed folders, rejected rows, exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient

from engine.config.importing import ImportConfig
from engine.config.run import ImportRun, parse_run_config
from engine.datasets.importers.run import import_dataset
from engine.errors import ConfigError
from engine.orchestrator.importing import obstacle
from engine.patches.sections import is_same_change
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.web_builders import make_user, signed_in
from tests.unit.datasets.importers import rows
from webapp.core.permissions import Role
from webapp.datasets.services import datasets
from webapp.models import AuditEntry, Dataset, Run, Task, TaskAnswer
from webapp.runs.services import dataset_runs, runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    (tmp_path / "imports").mkdir()
    return tmp_path


def write_rows(path: Path, *published: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in published))
    return path


def counts_of(*arguments: str) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads(run_command(*arguments).splitlines()[-1])
    return counts


def imported(home: Path, form: str, name: str, source: Path, mode: Literal["new", "replace"] = "new") -> None:
    """Import and mirror a dataset in this process."""
    config = ImportConfig(format=form, source=str(source), output=name, mode=mode)
    import_dataset(config, home=home, gradable=obstacle)
    datasets.sync(name=name)


def test_import_command_mirrors_the_dataset_and_prints_counts(home: Path, tmp_path: Path) -> None:
    source = write_rows(
        tmp_path / "r2e.jsonl",
        rows.r2e_gym(),
        rows.r2e_gym(docker_image=None),
        rows.r2e_gym(repo_name="sympy"),
    )
    command = ("dataset", "import", "--format", "r2e-gym", "--name", "r2e", "--decontaminate", str(source))
    counts = counts_of(*command)
    assert {name: counts[name] for name in ("dataset", "imported", "rejected", "duplicates", "excluded")} == {
        "dataset": "r2e", "imported": 1, "rejected": 1, "duplicates": 0, "excluded": 1,
    }  # fmt: skip
    assert [(reject["row"], reject["line"], reject["field"]) for reject in counts["first_rejects"]] == [
        (1, 2, "docker_image")
    ]
    task = Task.objects.get(dataset__name="r2e")
    answer = TaskAnswer.objects.get(task=task)
    assert (answer.grade_rule, answer.log_parser) == ("map_equal", "r2e_pytest")
    assert answer.expected["TestCore.test_secret_upper"] == "PASSED"
    assert "/r2e_tests" in answer.hidden_paths
    after = counts_of("dataset", "import", "--format", "r2e-gym", "--name", "r2e", "--replace", str(source))
    assert (after["imported"], after["excluded"]) == (2, 0)
    assert Task.objects.filter(dataset__name="r2e", active=True).count() == 2
    (home / "imports" / "rows.jsonl").touch()
    run = dataset_runs.launch_import(format="r2e-gym", source="rows.jsonl", name="r2e")
    datasets.sync(name="r2e", run_id=run.pk)
    assert Dataset.objects.get(name="r2e").run_id == run.pk


def test_exported_dataset_is_reimported_under_the_same_ids(home: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "smith.jsonl", rows.swe_smith(), rows.swe_smith(instance_id="other"))
    imported(home, "swe-smith", "one", source)
    file = tmp_path / "out.jsonl"
    assert counts_of("dataset", "export", "one", str(file))["exported"] == 2
    assert file.stat().st_mode & 0o077 == 0
    imported(home, "trainyard", "two", file)
    keys = [
        list(Task.objects.filter(dataset__name=name).values_list("key", flat=True)) for name in ("one", "two")
    ]
    assert keys[0] == keys[1]
    patches = TaskAnswer.objects.values_list("setup_patch", flat=True)
    assert len(patches) == 4
    assert len(set(patches)) == 1
    assert "".join(patches)
    assert exported("one") == file.read_text()
    trail = AuditEntry.objects.filter(action="dataset.export", target="dataset one").order_by("pk")
    assert [entry.actor and entry.actor.username for entry in trail] == [None, "ada"]
    assert signed_in(Role.VIEWER).get("/api/v1/datasets/one/export").status_code == 403
    with pytest.raises(CommandFailedError, match="cannot read"):
        counts_of("dataset", "export", "none", str(tmp_path / "none.jsonl"))
    assert not list(tmp_path.glob("*none*"))


def test_dataset_in_the_schema_of_r2e_gym_has_the_same_answers(home: Path, tmp_path: Path) -> None:
    """Export a published row without an image here, read it back and export it again."""
    imported(home, "r2e-gym", "one", write_rows(tmp_path / "rows.jsonl", rows.r2e_gym()))
    file = tmp_path / "out.jsonl"
    counts = counts_of("dataset", "export", "one", str(file), "--format", "r2e-gym")
    assert counts["exported"] == 1
    imported(home, "r2e-gym", "two", file)
    first, second = TaskAnswer.objects.order_by("task__dataset__name")
    names = ("expected", "fail_to_pass", "pass_to_pass", "test_files", "grade_rule")
    for name in names:
        assert getattr(second, name) == getattr(first, name), name
    assert is_same_change(second.gold_patch, first.gold_patch)
    tasks = [Task.objects.get(answer=answer) for answer in (first, second)]
    for name in ("instance_id", "base_commit", "problem_statement", "image"):
        assert len({getattr(task, name) for task in tasks}) == 1, name
    assert exported("one", "?format=r2e-gym") == file.read_text()


def test_a_row_that_r2e_gym_cannot_express_is_named_before_the_first_line(home: Path, tmp_path: Path) -> None:
    imported(home, "swe-smith", "one", write_rows(tmp_path / "smith.jsonl", rows.swe_smith()))
    with pytest.raises(CommandFailedError, match=r"this task has none: export it .*\(row 0"):
        counts_of("dataset", "export", "one", str(tmp_path / "out.jsonl"), "--format", "r2e-gym")
    assert not list(tmp_path.glob("*out*"))
    answer = signed_in(Role.OPERATOR).get("/api/v1/datasets/one/export?format=r2e-gym")
    assert answer.status_code == 422
    assert "this task has none" in answer.json()["detail"]


def exported(name: str, query: str = "") -> str:
    """Return a dataset as an asynchronous server streams it, part by part."""
    user = make_user("ada", Role.OPERATOR)

    async def read() -> str:
        client = AsyncClient()
        await client.aforce_login(user)
        response = await client.get(f"/api/v1/datasets/{name}/export{query}")
        assert vars(response)["is_async"]
        return b"".join([part async for part in cast(Any, response)]).decode()

    return async_to_sync(read)()


def test_dataset_larger_than_a_batch_is_mirrored_whole_and_can_shrink(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "_BATCH", 3)
    published = [rows.swe_rebench(instance_id=f"acme__pkg-{n}") for n in range(8)]
    source = write_rows(tmp_path / "many.jsonl", *published)
    imported(home, "swe-rebench", "many", source)
    assert list(Task.objects.order_by("position").values_list("position", flat=True)) == list(range(8))
    write_rows(source, *published[:5])
    imported(home, "swe-rebench", "many", source, "replace")
    assert Task.objects.filter(active=True).count() == 5
    assert Dataset.objects.get().num_tasks == 5


# --- the browser and the API ------------------------------------------------------------------------


def form(**changes: str) -> dict[str, str]:
    return {"format": "swe-bench", "source": "set", "name": "verified", "mode": "new", **changes}


def test_import_form_starts_an_import_run(home: Path) -> None:
    write_rows(home / "imports" / "set" / "test.jsonl", rows.swe_bench())
    client = signed_in(Role.OPERATOR)
    text = client.get("/imports/new/").content.decode()
    assert '<option value="set">' in text
    assert "multi-swe-rl" in text
    posted = form(
        languages="python, go",
        where="patch_lines<=9",
        limit="5",
        verified_repositories="yes",
        split="heldout",
    )
    response = client.post("/imports/new/", posted)
    run = Run.objects.get()
    assert response["Location"] == f"/runs/{run.pk}/"
    config = parse_run_config(run.config)
    assert isinstance(config, ImportRun)
    assert config.importing.source == str(home / "imports" / "set")
    assert (config.importing.limit, config.importing.split) == (5, "heldout")
    assert config.importing.filters.languages == ("python", "go")
    assert config.importing.filters.where == ("patch_lines<=9",)
    assert config.importing.decontamination.verified_repositories
    assert (run.state, run.kind, run.name) == ("queued", "import", "import verified")
    assert "verified" in client.get("/datasets/").content.decode()


REFUSED = (
    ({"source": "/etc/passwd"}, "is not below an import folder"),
    ({"source": "../secret.jsonl"}, "is not below an import folder"),
    ({"name": "../x"}, "importing.output"),
    ({"format": "odd; name: b"}, "there is no format &#x27;odd; name: b&#x27;; there are: "),
    ({"limit": "many"}, "importing.limit"),
    ({"where": "patch_lines"}, "is no comparison"),
    ({"reference": "/etc/passwd"}, "is not below an import folder"),
)


def test_import_form_refuses_invalid_values_and_keeps_them(home: Path) -> None:
    write_rows(home / "imports" / "set.jsonl", rows.swe_bench())
    write_rows(home / "secret.jsonl", rows.swe_bench())
    client = signed_in(Role.OPERATOR)
    for changes, message in REFUSED:
        response = client.post("/imports/new/", form(**{"source": "set.jsonl", **changes}))
        assert response.status_code == 422
        text = response.content.decode()
        assert message in text
        for value in changes.values():
            assert value.replace("<", "&lt;") in text
    assert not Run.objects.exists()


def test_imports_from_outside_of_the_import_folders_are_refused(home: Path) -> None:
    user = make_user("ada", Role.OPERATOR)
    overrides = {"importing.source": "/etc/passwd"}
    with pytest.raises(ConfigError, match="import folder"):
        runs.create(recipe="import-dataset", overrides=overrides, actor=user)
    with pytest.raises(ConfigError, match="import folder"):
        dataset_runs.launch_import(
            format="swe-bench", source="a.jsonl", name="d", overrides=overrides, actor=user
        )
    link = home / "imports" / "link.jsonl"
    link.symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="import folder"):
        dataset_runs.launch_import(format="swe-bench", source="link.jsonl", name="d", actor=user)
    assert not Run.objects.exists()


def test_import_folders_can_be_added(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_rows(tmp_path / "shared" / "a.jsonl", rows.swe_bench()).parent
    monkeypatch.setenv("TRAINYARD_IMPORT_FOLDERS", str(folder))
    run = dataset_runs.launch_import(format="swe-bench", source="a.jsonl", name="d")
    assert run.config["importing"]["source"] == str(folder / "a.jsonl")


def test_api_starts_imports_and_lists_rejected_rows(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in(Role.OPERATOR)
    body = {"format": "r2e-gym", "source": "hf:R2E-Gym/R2E-Gym-Subset", "name": "r2e"}
    unlisted = client.post("/api/v1/imports", body, content_type="application/json")
    assert (unlisted.status_code, "TRAINYARD_HUB_DATASETS" in unlisted.json()["detail"]) == (422, True)
    monkeypatch.setenv("TRAINYARD_HUB_DATASETS", "R2E-Gym/*")
    answer = client.post("/api/v1/imports", body, content_type="application/json")
    assert (answer.status_code, answer.json()["state"]) == (201, "queued")
    refused = client.post("/api/v1/imports", {**body, "source": "/etc"}, content_type="application/json")
    assert (refused.status_code, "import folder" in refused.json()["detail"]) == (422, True)
    viewer = signed_in(Role.VIEWER)
    assert viewer.post("/api/v1/imports", body, content_type="application/json").status_code == 403
    source = write_rows(tmp_path / "r.jsonl", rows.swe_bench(), *[rows.swe_bench(patch=None)] * 120)
    imported(home, "swe-bench", "d", source)
    rejected = viewer.get("/api/v1/datasets/d/left-out?page=2").json()
    assert rejected["total"] == 120
    assert [row["row"] for row in rejected["items"]] == list(range(101, 121))
    assert rejected["items"][0]["field"] == "patch"
    page = viewer.get("/datasets/d/left-out/").content.decode()
    assert "showing 1–100 of 120" in page
    assert "No rows were excluded" in viewer.get("/datasets/d/left-out/?kind=excluded").content.decode()

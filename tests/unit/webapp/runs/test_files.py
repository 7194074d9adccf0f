"""List and download of the files of run folders: no links, no secrets, no other folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from engine.redaction import add_secrets
from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import make_run, make_user, signed_in, streamed
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Run
from webapp.runs.selectors import files as reads

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    before = settings.TRAINYARD_HOME
    settings.TRAINYARD_HOME = tmp_path
    yield tmp_path
    settings.TRAINYARD_HOME = before


@pytest.fixture
def run(home: Path) -> Run:
    run = make_run()
    folder = home / "runs" / str(run.pk)
    (folder / "checkpoints" / "00001").mkdir(parents=True)
    (folder / "checkpoints" / "00001" / "weights 1.pt").write_bytes(b"w" * 2_500_000)
    (folder / "engine.log").write_text("started\n")
    (folder / "config.json").write_text("{}")
    (folder / "ü.json").write_text("[]")
    (folder / "launch.json").write_text('{"token": "secret"}')
    (folder / ".launch.json.draft").write_text('{"token": "secret"}')
    (folder / "tls.key").write_text("secret")
    (folder / "line\nbreak").write_text("x")
    (home / "outside").mkdir()
    (home / "outside" / "secret").write_text("secret")
    (folder / "linked").symlink_to(home / "outside" / "secret")
    (folder / "folder").symlink_to(home / "outside")
    os.mkfifo(folder / "pipe")
    return run


def test_only_regular_files_without_secrets_are_listed(run: Run) -> None:
    client = signed_in(Role.OPERATOR)
    answer = client.get(f"/api/v1/runs/{run.pk}/files").json()
    assert [(file["name"], file["kind"], file["size"]) for file in answer["files"]] == [
        ("engine.log", "log", 8),
        ("config.json", "configuration", 2),
        ("ü.json", "result", 2),
        ("checkpoints/00001/weights 1.pt", "checkpoint", 2_500_000),
    ]
    assert (answer["total"], answer["total_size"], answer["complete"]) == (4, 2_500_012, True)
    html = client.get(f"/runs/{run.pk}/?tab=files").content.decode()
    assert "showing 4 of 4 files" in html
    assert f"/runs/{run.pk}/files/checkpoints/00001/weights%201.pt" in html
    assert json.loads(run_command("run", "files", run.pk, "--json"))["total"] == 4
    assert "4 of 4 files" in run_command("run", "files", run.pk)
    hidden = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=files").content.decode()
    assert "visible to operators only" in hidden
    assert "engine.log" not in hidden


def test_files_are_downloaded_in_parts(run: Run, tmp_path: Path) -> None:
    ada = make_user("ada", Role.OPERATOR)
    name = "checkpoints/00001/weights%201.pt"
    for address in (f"/runs/{run.pk}/files/{name}", f"/api/v1/runs/{run.pk}/files/{name}"):
        parts = streamed(ada, address, {})
        assert max(map(len, parts)) < 2_000_000
        assert b"".join(parts) == b"w" * 2_500_000
    assert AuditEntry.objects.filter(action="file.export", run=run, actor=ada).count() == 2
    copy = tmp_path / "copy"
    run_command("run", "files", run.pk, "config.json", "--output", copy)
    assert copy.read_text() == "{}"
    response = signed_in(Role.OPERATOR).get(f"/runs/{run.pk}/files/%C3%BC.json")
    assert response["Content-Disposition"] == "attachment; filename*=utf-8''%C3%BC.json"
    assert response["Content-Type"] == "application/octet-stream"
    assert response["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        "launch.json", ".launch.json.draft", "tls.key", "linked", "folder/secret", "pipe", "missing",
        "checkpoints",
        "../../outside/secret", "checkpoints/../config.json", "%2e%2e/%2e%2e/outside/secret", "./config.json",
        "//etc/passwd", "config.json/", "config.json%00", "a/" * 40 + "b",
    ],
)  # fmt: skip
def test_other_names_are_refused(run: Run, name: str) -> None:
    client = signed_in(Role.OPERATOR)
    for address in (f"/runs/{run.pk}/files/{name}", f"/api/v1/runs/{run.pk}/files/{name}"):
        assert client.get(address).status_code == 404
    assert reads.open_file(run.pk, name) is None
    assert command_result("run", "files", run.pk, "missing", "--output", "x").status == 1


def test_secrets_are_removed_from_logs(run: Run, home: Path) -> None:
    add_secrets(["swordfish-of-the-engine"])
    log = home / "runs" / str(run.pk) / "engine.log"
    # The secret crosses the border of two parts.
    log.write_text("x\n" * 524_280 + "the key is swordfish-of-the-engine here\n" + "last line")
    opened = reads.open_file(run.pk, "engine.log")
    assert opened is not None
    text = b"".join(reads.read_parts(*opened)).decode()
    assert "swordfish" not in text
    assert text.startswith("x\nx\n")
    assert text.endswith("last line")


def test_a_huge_folder_is_not_read_completely(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_ENTRIES", 30)
    monkeypatch.setattr(reads, "MOST_SHOWN", 10)
    folder = home / "runs" / str(run.pk) / "rounds"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number:02d}").touch()
    found = reads.list_files(run.pk)
    assert not found.complete
    assert len(found.files) == 10 < found.total <= 30

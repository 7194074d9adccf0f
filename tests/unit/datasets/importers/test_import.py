"""Whole imports: bad rows, reproducibility, stops, kills and repetition."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.config.importing import FORMATS
from engine.config.recipes import resolve
from engine.config.run import ImportRun
from engine.datasets.importers.registry import FORMATS as CONVERTERS
from engine.datasets.importers.run import ImportStopped, import_dataset
from engine.datasets.store import dataset_path, load_dataset
from engine.errors import DatasetError
from engine.events.delivery.control import Control, Desired
from engine.events.types import RunProgress
from engine.orchestrator.context import RunContext, RunStopped
from engine.orchestrator.importing import import_set
from engine.run import Launch, create_run_dir, run_attempt
from tests.unit.datasets.importers.builders import config, files, numbered, records, write_lines
from tests.unit.orchestrator.memory_sink import MemorySink


def test_bad_rows_are_rejected_individually_and_named(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    published = [
        numbered(0),
        numbered(1, patch=None),
        numbered(2),
        numbered(3, FAIL_TO_PASS="nope"),
        {"x": 1},
    ]
    source.write_text(
        "".join(json.dumps(row) + "\n" for row in published) + "{not json\n[1]\n\n" + json.dumps(numbered(4))
    )
    result = import_dataset(config(source), home=tmp_path)
    assert (result.read, result.imported, result.rejected) == (8, 3, 5)
    assert [(record["row"], record["field"]) for record in records(tmp_path, "rejects.jsonl")] == [
        (1, "patch"), (3, "FAIL_TO_PASS"), (4, "instance_id"), (5, ""), (6, ""),
    ]  # fmt: skip
    assert records(tmp_path, "rejects.jsonl")[0]["instance_id"] == "acme__pkg-1"
    assert [record["line"] for record in records(tmp_path, "rejects.jsonl")] == [2, 4, 5, 6, 7]
    assert list(result.first_rejects) == records(tmp_path, "rejects.jsonl")
    assert result.rejected_by == {"": 2, "FAIL_TO_PASS": 1, "instance_id": 1, "patch": 1}
    dataset = load_dataset(tmp_path, "d")
    assert [row.task.instance_id for row in dataset.rows] == ["acme__pkg-0", "acme__pkg-2", "acme__pkg-4"]
    answers = dataset_path(tmp_path, "d") / "answers.jsonl"
    assert stat.S_IMODE(answers.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"instance_id": "a\0b"}, "instance_id"),
        ({"docker_image": "a\0b"}, "image"),
        ({"meta": {"llm_score": {"difficulty": float("inf")}}}, None),
        ({"problem_statement": "\ud800 and \0"}, "problem_statement"),
        ({"patch": f"{numbered(1)['patch']}\udcff"}, "gold_patch"),
    ],
)
def test_unstorable_values_are_rejected_or_left_out(
    tmp_path: Path, change: dict[str, Any], field: str | None
) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0), numbered(1, **change)])
    result = import_dataset(config(source), home=tmp_path)
    assert result.imported == (2 if field is None else 1)
    assert [record["field"] for record in records(tmp_path, "rejects.jsonl")] == ([field] if field else [])
    assert all("inf" not in str(row.task.difficulty) for row in load_dataset(tmp_path, "d").rows)


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        ("answer", {"timeout_s": 1e308}, "timeout_s"),
        ("task", {"difficulty": {"x": float("nan")}}, "difficulty"),
        ("answer", {"metadata": {"x": json.loads("[" * 600 + "]" * 600)}}, ""),
        ("split", "x" * 65, "split"),
    ],
)
def test_rows_of_an_export_are_validated(tmp_path: Path, place: str, value: Any, field: str) -> None:
    import_dataset(config(write_lines(tmp_path / "rows.jsonl", [numbered(0)])), home=tmp_path)
    row = load_dataset(tmp_path, "d").rows[0]
    good: dict[str, Any] = {"task": asdict(row.task), "answer": asdict(row.answer), "split": "train"}
    bad = {**good, place: {**good[place], **value} if isinstance(value, dict) else value}
    bad["task"] = {**bad["task"], "instance_id": "another"}
    source = write_lines(tmp_path / "export.jsonl", [good, bad])
    result = import_dataset(config(source, format="trainyard", output="e"), home=tmp_path)
    assert (result.imported, result.rejected) == (1, 1)
    assert records(tmp_path, "rejects.jsonl", "e")[0]["field"] == field


def test_importing_a_source_twice_yields_the_same_files(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "rows.jsonl", [numbered(0), numbered(1), numbered(0), numbered(1, patch=None)]
    )
    first = import_dataset(config(source), home=tmp_path)
    assert (first.imported, first.duplicates, first.rejected) == (2, 1, 1)
    before = files(tmp_path)
    second = import_dataset(config(source), home=tmp_path)
    assert {**second.counts(), "seconds": 0} == {**first.counts(), "seconds": 0}
    assert files(tmp_path) == before


def test_second_content_of_an_instance_id_is_rejected(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0), numbered(0, version="other")])
    result = import_dataset(config(source), home=tmp_path)
    assert (result.imported, result.rejected) == (1, 1)
    assert records(tmp_path, "rejects.jsonl")[0]["field"] == "instance_id"


def test_nothing_is_written_when_no_row_can_be_read(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"instance_id": "a"}])
    with pytest.raises(
        DatasetError,
        match=r"1 read, 1 rejected.*row 0 of rows.jsonl, line 1, field 'repo'.*is the format 'swe-rebench' right",
    ):
        import_dataset(config(source), home=tmp_path)
    assert not dataset_path(tmp_path, "d").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "/nowhere/x.jsonl"}, "there is no file or folder /nowhere"),
        ({"source_split": "dev"}, "no data file of the split 'dev'"),
    ],
)
def test_missing_source_or_split_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = write_lines(tmp_path / "train.jsonl", [numbered(0)])
    with pytest.raises(DatasetError, match=message):
        import_dataset(config(source, **changes), home=tmp_path)


def test_config_accepts_exactly_the_implemented_formats() -> None:
    assert set(FORMATS) == set(CONVERTERS)
    with pytest.raises(ValueError, match="there is no format 'odd'; there are: r2e-gym"):
        config(Path("x"), format="odd")


def test_existing_dataset_is_changed_only_by_append_or_replace(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "one.jsonl", [numbered(0), numbered(1)])
    second = write_lines(tmp_path / "two.jsonl", [numbered(1), numbered(2), numbered(3, patch="")])
    import_dataset(config(first), home=tmp_path)
    with pytest.raises(DatasetError, match="--replace or --append"):
        import_dataset(config(second), home=tmp_path)
    added = import_dataset(config(second, mode="append", split="more"), home=tmp_path)
    assert (added.imported, added.duplicates, added.rejected, added.tasks) == (1, 1, 1, 3)
    dataset = load_dataset(tmp_path, "d")
    assert [(row.task.instance_id[-1], row.split) for row in dataset.rows] == [
        ("0", "train"),
        ("1", "train"),
        ("2", "more"),
    ]
    assert [record["source"] for record in dataset.provenance["imports"]] == [str(first), str(second)]
    again = import_dataset(config(second, mode="append", split="more"), home=tmp_path)
    assert (again.imported, again.duplicates, again.tasks) == (0, 2, 3)
    replaced = import_dataset(config(second, mode="replace"), home=tmp_path)
    assert (replaced.imported, replaced.tasks) == (2, 2)


# --- stopped and killed -----------------------------------------------------------------------------


def test_stopped_import_publishes_nothing_and_resumes(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "rows.jsonl", [numbered(n, **({"patch": ""} if n % 10 == 3 else {})) for n in range(60)]
    )
    seen = 0

    def must_end() -> bool:
        nonlocal seen
        seen += 1
        return seen > 25

    with pytest.raises(ImportStopped):
        import_dataset(config(source), home=tmp_path, must_end=must_end)
    assert not dataset_path(tmp_path, "d").exists()
    result = import_dataset(config(source), home=tmp_path)
    assert result.resumed
    assert (result.read, result.imported, result.rejected) == (60, 54, 6)
    whole = import_dataset(config(source, output="whole"), home=tmp_path)
    assert not whole.resumed
    for file in ("tasks.jsonl", "answers.jsonl", "rejects.jsonl"):
        assert files(tmp_path)[file] == files(tmp_path, "whole")[file]


def test_import_starts_over_if_its_source_file_was_replaced(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(9)])
    with pytest.raises(ImportStopped):
        import_dataset(config(source), home=tmp_path, must_end=iter([False] * 5 + [True]).__next__)
    write_lines(source, [numbered(n) for n in range(20, 26)])
    result = import_dataset(config(source), home=tmp_path)
    assert (result.resumed, result.imported) == (False, 6)


def test_partial_lines_after_the_last_commit_are_truncated(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(9)])
    with pytest.raises(ImportStopped):
        import_dataset(config(source), home=tmp_path, must_end=iter([False] * 5 + [True]).__next__)
    staged = tmp_path / "datasets" / ".import-d"
    for file in ("tasks.jsonl", "answers.jsonl"):
        with (staged / file).open("a") as stream:
            stream.write('{"id": "half a li')
    result = import_dataset(config(source), home=tmp_path)
    assert (result.resumed, result.imported) == (True, 9)
    assert len(load_dataset(tmp_path, "d").rows) == 9


def test_an_append_stopped_before_its_first_row_does_not_repeat_the_existing_rows(tmp_path: Path) -> None:
    import_dataset(
        config(write_lines(tmp_path / "one.jsonl", [numbered(n) for n in range(2)])), home=tmp_path
    )
    appended = config(write_lines(tmp_path / "two.jsonl", [numbered(2)]), mode="append")
    with pytest.raises(ImportStopped):
        import_dataset(appended, home=tmp_path, must_end=lambda: True)
    assert import_dataset(appended, home=tmp_path).tasks == 3
    assert [row.task.instance_id[-1] for row in load_dataset(tmp_path, "d").rows] == ["0", "1", "2"]


def test_import_run_reports_progress_an_alert_and_counts(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "rows.jsonl", [numbered(0), numbered(1, patch=None), numbered(2, repo="sympy")]
    )
    settings = {"format": "swe-rebench", "source": str(source), "output": "d"}
    overrides = {f"importing.{name}": value for name, value in settings.items()}
    folder = create_run_dir("import-dataset", overrides, home=tmp_path)
    assert run_attempt(folder, Launch.load(folder)) == 0
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["type"] for event in events] == ["run_started", "run_progress", "alert", "run_finished"]
    assert events[2]["code"] == "rows_rejected"
    assert "row 1 of rows.jsonl, line 2, field 'patch': missing" in events[2]["message"]
    summary = events[-1]["summary"]
    assert summary["first_rejects"] == "row 1 of rows.jsonl, line 2, field 'patch': missing"
    assert summary["rejected_patch"] == 1
    assert (events[-1]["state"], summary["dataset"], summary["imported"], summary["rejected"]) == (
        "succeeded",
        "d",
        1,
        1,
    )
    assert summary["excluded_decontamination:repository"] == 1


async def test_failure_to_report_progress_ends_the_run(tmp_path: Path) -> None:
    class FullSink(MemorySink):
        def emit(self, event_type: type[Any], /, **fields: Any) -> int:
            if event_type is RunProgress:
                raise ValueError("the spool is full")
            return super().emit(event_type, **fields)

    source = write_lines(tmp_path / "rows.jsonl", [numbered(0)])
    settings = {"format": "swe-rebench", "source": str(source), "output": "d"}
    importing = resolve("import-dataset", {f"importing.{name}": value for name, value in settings.items()})
    assert isinstance(importing, ImportRun)
    run = RunContext(run_id="1", epoch=1, run_dir=tmp_path, home=tmp_path, sink=FullSink(), control=Control())
    with pytest.raises(ValueError, match="the spool is full"):
        await import_set(importing, run)


async def test_import_run_can_be_stopped_while_it_reads_no_row(tmp_path: Path) -> None:
    with (tmp_path / "rows.jsonl").open("wb") as endless:
        endless.truncate(1 << 40)  # a sparse file: one line of zeros
    settings = {"format": "swe-rebench", "source": str(tmp_path / "rows.jsonl"), "output": "d"}
    importing = resolve("import-dataset", {f"importing.{name}": value for name, value in settings.items()})
    assert isinstance(importing, ImportRun)

    class StoppedWhileItReads(Control):
        def desired(self) -> Desired:
            if (tmp_path / "datasets" / ".import-d").exists():
                self.stop("somebody asked for it")
            return super().desired()

    run = RunContext(
        run_id="1", epoch=1, run_dir=tmp_path, home=tmp_path, sink=MemorySink(), control=StoppedWhileItReads()
    )
    with pytest.raises(RunStopped, match="somebody asked for it"):
        await import_set(importing, run)
    assert not dataset_path(tmp_path, "d").exists()


async def test_a_killed_import_is_not_explained_by_its_last_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # prints lines that are no progress
    with (tmp_path / "rows.jsonl").open("wb") as endless:
        endless.truncate(1 << 40)
    settings = {"format": "swe-rebench", "source": str(tmp_path / "rows.jsonl"), "output": "d"}
    importing = resolve("import-dataset", {f"importing.{name}": value for name, value in settings.items()})
    assert isinstance(importing, ImportRun)

    class KilledWhileItReads(Control):
        def desired(self) -> Desired:
            if (tmp_path / "datasets" / ".import-d").exists():
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    with contextlib.suppress(OSError):
                        words = path.read_text(errors="replace").split("\0")
                        if words[1:2] == ["-m"] and settings["source"] in words:  # not its guard
                            os.kill(int(path.parent.name), signal.SIGKILL)
            return super().desired()

    run = RunContext(
        run_id="1", epoch=1, run_dir=tmp_path, home=tmp_path, sink=MemorySink(), control=KilledWhileItReads()
    )
    with pytest.raises(DatasetError, match="the import process was killed by signal 9"):
        await import_set(importing, run)


def test_concurrent_imports_of_one_dataset_are_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0)])

    def must_end() -> bool:
        with pytest.raises(DatasetError, match="another process is importing 'd'"):
            import_dataset(config(source), home=tmp_path)
        return False

    assert import_dataset(config(source), home=tmp_path, must_end=must_end).imported == 1

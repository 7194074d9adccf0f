"""Whole imports: bad rows, sameness, killed and stopped ones, appending, selection, kinds of files."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.config.importing import FORMATS, DecontaminationConfig, FilterConfig, ImportConfig
from engine.datasets.importers import run as importing
from engine.datasets.importers.formats import FORMATS as CONVERTERS
from engine.datasets.importers.run import ImportStopped, import_dataset
from engine.datasets.store import dataset_path, load_dataset
from engine.errors import DatasetError
from engine.orchestrator.importing import obstacle
from engine.run import Launch, create_run_dir, run_attempt
from engine.types import TaskRow
from tests.unit.datasets.importers import folders, rows

REPOSITORY = Path(__file__).resolve().parents[4]


def numbered(number: int, **changes: Any) -> dict[str, Any]:
    """One of many different rows of SWE-rebench."""
    statement = f"{rows.STATEMENT} Seen in build {number}."
    base = {"instance_id": f"acme__pkg-{number}", "problem_statement": statement}
    return rows.swe_rebench(**{**base, **changes})


def write_lines(path: Path, published: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in published))
    return path


def config(path: Path, **changes: Any) -> ImportConfig:
    return ImportConfig(**{"format": "swe-rebench", "source": str(path), "output": "d", **changes})


def files(home: Path, name: str = "d") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(dataset_path(home, name).iterdir())}


def records(home: Path, file: str, name: str = "d") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dataset_path(home, name) / file).read_text().splitlines()]


def test_a_bad_row_costs_one_row_and_is_named(tmp_path: Path) -> None:
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
    dataset = load_dataset(tmp_path, "d")
    assert [row.task.instance_id for row in dataset.rows] == ["acme__pkg-0", "acme__pkg-2", "acme__pkg-4"]
    answers = dataset_path(tmp_path, "d") / "answers.jsonl"
    assert stat.S_IMODE(answers.stat().st_mode) == 0o600


def test_the_same_source_twice_is_the_same_dataset(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "rows.jsonl", [numbered(0), numbered(1), numbered(0), numbered(1, patch=None)]
    )
    first = import_dataset(config(source), home=tmp_path)
    assert (first.imported, first.duplicates, first.rejected) == (2, 1, 1)
    before = files(tmp_path)
    second = import_dataset(config(source), home=tmp_path)
    assert {**second.counts(), "seconds": 0} == {**first.counts(), "seconds": 0}
    assert files(tmp_path) == before


def test_one_name_for_two_contents_is_a_bad_row(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0), numbered(0, version="other")])
    result = import_dataset(config(source), home=tmp_path)
    assert (result.imported, result.rejected) == (1, 1)
    assert records(tmp_path, "rejects.jsonl")[0]["field"] == "instance_id"


def test_nothing_is_written_when_no_row_can_be_read(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"instance_id": "a"}])
    with pytest.raises(
        DatasetError, match=r"1 read, 1 rejected.*row 0, field 'repo'.*is the format 'swe-rebench' right"
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
def test_what_cannot_begin_says_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = write_lines(tmp_path / "train.jsonl", [numbered(0)])
    with pytest.raises(DatasetError, match=message):
        import_dataset(config(source, **changes), home=tmp_path)


def test_formats_are_known_before_anything_starts() -> None:
    assert set(FORMATS) == set(CONVERTERS)
    with pytest.raises(ValueError, match="there is no format 'odd'; there are: r2e-gym"):
        config(Path("x"), format="odd")


def test_a_dataset_of_another_source_is_not_touched_unasked(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl", [numbered(0), numbered(1)])
    two = write_lines(tmp_path / "two.jsonl", [numbered(1), numbered(2), numbered(3, patch="")])
    import_dataset(config(one), home=tmp_path)
    with pytest.raises(DatasetError, match="--replace or --append"):
        import_dataset(config(two), home=tmp_path)
    added = import_dataset(config(two, mode="append", split="more"), home=tmp_path)
    assert (added.imported, added.duplicates, added.rejected, added.tasks) == (1, 1, 1, 3)
    dataset = load_dataset(tmp_path, "d")
    assert [(row.task.instance_id[-1], row.split) for row in dataset.rows] == [
        ("0", "train"),
        ("1", "train"),
        ("2", "more"),
    ]
    assert [record["source"] for record in dataset.provenance["imports"]] == [str(one), str(two)]
    again = import_dataset(config(two, mode="append", split="more"), home=tmp_path)
    assert (again.imported, again.duplicates, again.tasks) == (0, 2, 3)
    replaced = import_dataset(config(two, mode="replace"), home=tmp_path)
    assert (replaced.imported, replaced.tasks) == (2, 2)


# --- stopped and killed -----------------------------------------------------------------------------


def test_a_stopped_import_shows_nothing_and_goes_on(tmp_path: Path) -> None:
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


def test_another_file_under_the_same_name_does_not_go_on_where_the_first_was(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(9)])
    with pytest.raises(ImportStopped):
        import_dataset(config(source), home=tmp_path, must_end=iter([False] * 5 + [True]).__next__)
    write_lines(source, [numbered(n) for n in range(20, 26)])
    result = import_dataset(config(source), home=tmp_path)
    assert (result.resumed, result.imported) == (False, 6)


def test_half_written_lines_behind_the_last_commit_are_cut_off(tmp_path: Path) -> None:
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


def test_kill_minus_nine_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(1_200)])
    command = [
        sys.executable,
        "-m",
        "engine.orchestrator.importing",
        "--format",
        "swe-rebench",
        "--name",
        "d",
        "--home",
    ]
    state = tmp_path / "datasets" / ".import-d" / "state.json"
    process = subprocess.Popen(
        [*command, str(tmp_path), str(source)], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not dataset_path(tmp_path, "d").exists()
    done = subprocess.run(
        [*command, str(tmp_path), str(source)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    counts = json.loads(done.stdout.splitlines()[-1])
    assert (counts["read"], counts["imported"], counts["resumed"]) == (1_200, 1_200, True)
    assert [row.task.instance_id for row in load_dataset(tmp_path, "d").rows] == [
        f"acme__pkg-{n}" for n in range(1_200)
    ]


def test_an_import_is_a_run_with_progress_an_alert_and_counts(tmp_path: Path) -> None:
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
    summary = events[-1]["summary"]
    assert (events[-1]["state"], summary["dataset"], summary["imported"], summary["rejected"]) == (
        "succeeded",
        "d",
        1,
        1,
    )
    assert summary["excluded_decontamination:repository"] == 1


def test_two_imports_of_one_dataset_at_once_are_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0)])

    def must_end() -> bool:
        with pytest.raises(DatasetError, match="another process is importing 'd'"):
            import_dataset(config(source), home=tmp_path)
        return False

    assert import_dataset(config(source), home=tmp_path, must_end=must_end).imported == 1


def test_progress_names_what_is_done_and_how_much_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "COMMIT_ROWS", 10)
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(25)])
    told: list[tuple[str, int, int]] = []
    import_dataset(config(source), home=tmp_path, report=lambda *report: told.append(report))
    assert told == [("importing d", 10, 25), ("importing d", 20, 25), ("writing the dataset", 25, 25)]


# --- kinds of files ---------------------------------------------------------------------------------


def test_every_kind_of_file_holds_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    published = [numbered(n) for n in range(40)]
    columns = {name: [row[name] for row in published] for name in published[0]}
    made = {
        "a.jsonl": write_lines(tmp_path / "a.jsonl", published),
        "b.json": tmp_path / "b.json",
        "c.json": tmp_path / "c.json",
        "d.jsonl.gz": tmp_path / "d.jsonl.gz",
        "e.parquet": tmp_path / "e.parquet",
        "f.json": tmp_path / "f.json",
    }
    made["b.json"].write_text(json.dumps(published))
    made["c.json"].write_text(json.dumps(columns))
    made["d.jsonl.gz"].write_bytes(gzip.compress(made["a.jsonl"].read_bytes()))
    parquet.write_table(pyarrow.table(columns), made["e.parquet"], row_group_size=7)
    made["f.json"].write_text(json.dumps({row["instance_id"]: row for row in published}))
    tasks = set()
    for name, source in made.items():
        import_dataset(config(source, output=name), home=tmp_path)
        tasks.add(files(tmp_path, name)["tasks.jsonl"] + files(tmp_path, name)["answers.jsonl"])
    assert len(tasks) == 1


def test_parquet_goes_on_in_the_middle_of_a_row_group(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "data"
    source.mkdir()
    for part in range(2):
        published = [numbered(n) for n in range(part * 30, part * 30 + 30)]
        table = pyarrow.table({name: [row[name] for row in published] for name in published[0]})
        parquet.write_table(table, source / f"train-0000{part}-of-00002.parquet", row_group_size=8)
    for stop in (11, 37):
        with pytest.raises(ImportStopped):
            import_dataset(config(source), home=tmp_path, must_end=iter([False] * stop + [True]).__next__)
        result = import_dataset(config(source), home=tmp_path)
        assert (result.read, result.imported, result.resumed) == (60, 60, True)
        dataset_rows = load_dataset(tmp_path, "d").rows
        assert [row.task.instance_id for row in dataset_rows] == [f"acme__pkg-{n}" for n in range(60)]


def test_splits_come_from_names_and_can_be_chosen(tmp_path: Path) -> None:
    source = tmp_path / "set"
    (source / "data").mkdir(parents=True)
    write_lines(source / "data" / "train-00000-of-00001.jsonl", [numbered(0)])
    write_lines(source / "data" / "dev_numpy.jsonl", [numbered(1)])
    write_lines(source / "test.jsonl", [numbered(2)])
    (source / "dataset_infos.json").write_text("{}")
    import_dataset(config(source), home=tmp_path)
    assert {row.task.instance_id[-1]: row.split for row in load_dataset(tmp_path, "d").rows} == {
        "0": "train", "1": "dev_numpy", "2": "test",
    }  # fmt: skip
    import_dataset(config(source, output="e", source_split="test", split="heldout"), home=tmp_path)
    assert [(row.task.instance_id[-1], row.split) for row in load_dataset(tmp_path, "e").rows] == [
        ("2", "heldout")
    ]


def test_rows_whose_log_nobody_can_read_are_imported_and_named(tmp_path: Path) -> None:
    odd = rows.swe_rebench_v2(
        instance_id="odd", install_config={"test_cmd": "make test", "log_parser": "parse_odd"}
    )
    source = write_lines(tmp_path / "rows.jsonl", [rows.swe_rebench_v2(), odd])
    result = import_dataset(config(source, format="swe-rebench-v2"), home=tmp_path, gradable=obstacle)
    assert (result.imported, result.ungradable) == (2, 1)
    first, second = load_dataset(tmp_path, "d").rows
    assert "ungradable" not in first.answer.metadata
    assert "there is no log parser 'parse_odd'" in second.answer.metadata["ungradable"]
    wanted = FilterConfig(drop_ungradable=True)
    kept = import_dataset(
        config(source, format="swe-rebench-v2", output="e", filters=wanted), home=tmp_path, gradable=obstacle
    )
    assert (kept.imported, kept.excluded_by) == (1, {"ungradable": 1})


@pytest.mark.parametrize("name", sorted(rows.ROWS))
def test_what_importers_make_is_what_grading_takes(name: str) -> None:
    imported = CONVERTERS[name].convert(rows.ROWS[name]())
    row = TaskRow(task=imported.task, answer=imported.answer, split="train")
    if name == "multi-swe-rl" and importlib.util.find_spec("multi_swe_bench") is None:
        pytest.skip("its parsers are code of multi_swe_bench, which is not installed")
    assert bool(obstacle(row)) == bool(imported.ungradable), obstacle(row)


def test_folders_of_tasks(tmp_path: Path) -> None:
    source = tmp_path / "harbor"
    folders.harbor_task(source, "one")
    folders.harbor_task(source, "two", **{"task.toml": folders.HARBOR_TOML.replace("acme/clamp", "acme/two")})
    folders.harbor_task(source, "bad", **{"task.toml": "="})
    result = import_dataset(config(source, format="harbor"), home=tmp_path)
    assert (result.read, result.imported, result.rejected) == (3, 2, 1)
    assert records(tmp_path, "rejects.jsonl") == [
        {
            "row": 0,
            "file": "bad",
            "field": "",
            "reason": records(tmp_path, "rejects.jsonl")[0]["reason"],
            "instance_id": "bad",
        }
    ]
    repo = tmp_path / "repo"
    folders.task_repo(repo)
    assert import_dataset(config(repo, format="swe-bench-v5", output="v5"), home=tmp_path).imported == 1


def test_links_that_lead_out_of_a_source_are_not_followed(tmp_path: Path) -> None:
    secret = write_lines(tmp_path / "secret.jsonl", [numbered(7)])
    source = tmp_path / "set"
    source.mkdir()
    write_lines(source / "train.jsonl", [numbered(0)])
    (source / "test.jsonl").symlink_to(secret)
    (source / "dev.jsonl").symlink_to(source / "train.jsonl")
    result = import_dataset(config(source), home=tmp_path)
    assert (result.imported, result.duplicates) == (1, 1)
    folder = folders.harbor_task(tmp_path / "harbor")
    (folder / "tests" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(DatasetError, match="a link that leads out of the source"):
        import_dataset(config(folder.parent, format="harbor", output="h"), home=tmp_path)


def test_scripts_beside_the_rows_make_swe_bench_pro_gradable(tmp_path: Path) -> None:
    source = tmp_path / "pro"
    row = rows.swe_bench_pro()
    folders.write(
        source / "run_scripts" / row["instance_id"], {"run_script.sh": "pytest $1", "parser.py": "x = 1"}
    )
    write_lines(source / "test.jsonl", [row, {**row, "instance_id": "instance_other"}])
    result = import_dataset(config(source, format="swe-bench-pro"), home=tmp_path)
    assert (result.imported, result.ungradable) == (2, 1)
    first, second = load_dataset(tmp_path, "d").rows
    assert first.answer.test_files["/workspace/parser.py"] == "x = 1"
    assert "not in the row" in second.answer.metadata["ungradable"]


def test_an_export_comes_back_as_it_was(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(n) for n in range(3)])
    import_dataset(config(source), home=tmp_path)
    pairs = zip(records(tmp_path, "tasks.jsonl"), records(tmp_path, "answers.jsonl"), strict=True)
    exported = []
    for task, answer in pairs:
        split = task.pop("split")
        answer.pop("id")
        exported.append({"task": task, "answer": answer, "split": split})
    again = write_lines(tmp_path / "export.jsonl", exported)
    import_dataset(config(again, format="trainyard", output="e"), home=tmp_path)
    for file in ("tasks.jsonl", "answers.jsonl"):
        assert files(tmp_path, "e")[file] == files(tmp_path)[file]


def test_images_can_come_from_a_mirror_and_lone_surrogates_become_text(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0, problem_statement="odd \ud800 text")])
    import_dataset(config(source, image_prefix="mirror.local/hub/"), home=tmp_path)
    (row,) = load_dataset(tmp_path, "d").rows
    assert row.task.image == "mirror.local/hub/swerebench/sweb.eval.x86_64.acme_1776_pkg-3"
    assert row.task.problem_statement == "odd \ufffd text"


# --- selection --------------------------------------------------------------------------------------


def test_filters_count_what_each_removed(tmp_path: Path) -> None:
    leaking = rows.STATEMENT + " Write `if value > high_secret_gold_line:` instead."
    published = [
        numbered(0),
        numbered(1, problem_statement="too short"),
        numbered(2, problem_statement=leaking),
        numbered(3, patch=rows.CODE_PATCH + rows.CODE_PATCH.replace("pkg/core.py", "pkg/more.py")),
        numbered(4, repo="other/pkg"),
        numbered(5, meta={}),
    ]
    filters = FilterConfig(
        min_words=5,
        drop_leaking=True,
        where=("num_files<=1", "issue_text_score<=1"),
        repositories=("acme/pkg",),
    )
    source = write_lines(tmp_path / "rows.jsonl", published)
    result = import_dataset(config(source, filters=filters), home=tmp_path)
    assert result.imported == 1
    assert result.excluded_by == {
        "repository": 1, "statement:leaks": 1, "statement:short": 1, "where:issue_text_score": 1, "where:num_files": 1,
    }  # fmt: skip
    assert [record["row"] for record in records(tmp_path, "excluded.jsonl")] == [1, 2, 3, 4, 5]
    provenance = load_dataset(tmp_path, "d").provenance["imports"][0]
    assert provenance["excluded_by"] == result.excluded_by
    assert provenance["settings"]["filters"]["min_words"] == 5
    with pytest.raises(ValueError, match="no comparison"):
        FilterConfig(where=("patch_lines",))


def test_a_benchmark_is_kept_out_by_repository_commit_text_and_fix(tmp_path: Path) -> None:
    other = "0" * 40
    far = "Nothing in here has to do with any of the others, it is about saving files in the wrong folder."
    fix = "".join(f"+    the_line_number_{n} = compute_something({n})\n" for n in range(6))
    long_patch = f"diff --git a/p.py b/p.py\n--- a/p.py\n+++ b/p.py\n@@ -1,0 +1,6 @@\n{fix}"
    verified = write_lines(tmp_path / "verified.jsonl", [
        rows.swe_bench(instance_id="sympy__sympy-1", repo="sympy/sympy", base_commit="a" * 40, problem_statement=far),
        rows.swe_bench(instance_id="acme__pkg-3", base_commit="b" * 40, problem_statement=f"{far} Twice.", patch=long_patch),
        rows.swe_bench(instance_id="x__y-1", base_commit="c" * 40),
    ])  # fmt: skip
    unlike = (
        "Parsing an empty header line raises IndexError when the stream ends right after the first colon."
    )
    base = {"base_commit": other, "problem_statement": unlike}
    published = [
        numbered(0, **{**base, "repo": "sympy"}),
        numbered(1, **{**base, "repo": "swesmith/django__django.01234567"}),
        numbered(3, **{**base, "instance_id": "acme__pkg-3"}),
        numbered(4, **{**base, "base_commit": "A" * 40}),
        numbered(5, **{**base, "problem_statement": f"As reported: {rows.STATEMENT.upper()}"}),
        numbered(6, **{**base, "patch": long_patch.replace("p.py", "q.py")}),
        numbered(7, **base),
    ]
    source = write_lines(tmp_path / "rows.jsonl", published)
    both = DecontaminationConfig(verified_repositories=True, reference=str(verified))
    result = import_dataset(config(source, decontamination=both), home=tmp_path)
    assert result.excluded_by == {
        "decontamination:repository": 2, "decontamination:instance": 1, "decontamination:commit": 1,
        "decontamination:statement": 1, "decontamination:fix": 1,
    }  # fmt: skip
    assert [row.task.instance_id for row in load_dataset(tmp_path, "d").rows] == ["acme__pkg-7"]
    details = [record["detail"] for record in records(tmp_path, "excluded.jsonl")]
    assert "n-grams are those of x__y-1" in details[4]
    assert load_dataset(tmp_path, "d").provenance["imports"][0]["decontamination_references"] == 3


def test_a_wrong_reference_is_named(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0)])
    wrong = write_lines(tmp_path / "wrong.jsonl", [{"instance_id": "a"}])
    with pytest.raises(DatasetError, match="decontamination.reference: missing"):
        import_dataset(
            config(source, decontamination=DecontaminationConfig(reference=str(wrong))), home=tmp_path
        )

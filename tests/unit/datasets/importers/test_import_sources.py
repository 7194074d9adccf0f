"""Sources of imports: kinds of files, splits, folders, links, exports, mirrors."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from engine.config.importing import FilterConfig
from engine.datasets.importers.registry import FORMATS as CONVERTERS
from engine.datasets.importers.run import ImportStopped, import_dataset
from engine.datasets.store import load_dataset
from engine.errors import DatasetError
from engine.orchestrator.importing import obstacle
from engine.types import TaskRow
from tests.unit.datasets.importers import folders, rows
from tests.unit.datasets.importers.builders import config, files, numbered, records, write_lines


def test_every_kind_of_file_yields_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    published = [numbered(n) for n in range(40)]
    columns = {name: [row[name] for row in published] for name in published[0]}
    sources = {
        "a.jsonl": write_lines(tmp_path / "a.jsonl", published),
        "b.json": tmp_path / "b.json",
        "c.json": tmp_path / "c.json",
        "d.jsonl.gz": tmp_path / "d.jsonl.gz",
        "e.parquet": tmp_path / "e.parquet",
        "f.json": tmp_path / "f.json",
    }
    sources["b.json"].write_text(json.dumps(published))
    sources["c.json"].write_text(json.dumps(columns))
    sources["d.jsonl.gz"].write_bytes(gzip.compress(sources["a.jsonl"].read_bytes()))
    parquet.write_table(pyarrow.table(columns), sources["e.parquet"], row_group_size=7)
    sources["f.json"].write_text(json.dumps({row["instance_id"]: row for row in published}))
    tasks = set()
    for name, source in sources.items():
        import_dataset(config(source, output=name), home=tmp_path)
        tasks.add(files(tmp_path, name)["tasks.jsonl"] + files(tmp_path, name)["answers.jsonl"])
    assert len(tasks) == 1


def test_parquet_import_resumes_within_a_row_group(tmp_path: Path) -> None:
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


def test_splits_are_derived_from_file_names_and_selectable(tmp_path: Path) -> None:
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


def test_rows_without_a_log_parser_are_imported_as_ungradable(tmp_path: Path) -> None:
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
def test_imported_rows_are_gradable_unless_marked_ungradable(name: str) -> None:
    imported = CONVERTERS[name].convert(rows.ROWS[name]())
    row = TaskRow(task=imported.task, answer=imported.answer, split="train")
    if name == "multi-swe-rl" and importlib.util.find_spec("multi_swe_bench") is None:
        pytest.skip("its parsers are code of multi_swe_bench, which is not installed")
    assert bool(obstacle(row)) == bool(imported.ungradable), obstacle(row)


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


def test_linked_scripts_outside_of_the_source_are_not_read(tmp_path: Path) -> None:
    source, row = tmp_path / "pro", rows.swe_bench_pro()
    outside = tmp_path / "outside"
    folders.write(outside, {"run_script.sh": "of-this-machine", "parser.py": "of-this-machine"})
    (source / "run_scripts").mkdir(parents=True)
    (source / "run_scripts" / row["instance_id"]).symlink_to(outside)
    write_lines(source / "test.jsonl", [row])
    assert import_dataset(config(source, format="swe-bench-pro"), home=tmp_path).ungradable == 1
    assert "of-this-machine" not in (tmp_path / "datasets/d/answers.jsonl").read_text()


def test_reimported_export_equals_the_original(tmp_path: Path) -> None:
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


def test_images_can_come_from_a_mirror(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0)])
    import_dataset(config(source, image_prefix="mirror.example/hub/"), home=tmp_path)
    (row,) = load_dataset(tmp_path, "d").rows
    assert row.task.image == "mirror.example/hub/swerebench/sweb.eval.x86_64.acme_1776_pkg-3"

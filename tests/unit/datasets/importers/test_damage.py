"""Damaged sources: unreadable parts reject their own rows, by number, and never fail the import."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from engine import reading
from engine.datasets.importers import files as importer_files
from engine.datasets.importers import json_list
from engine.datasets.importers.run import ImportStopped, import_dataset
from engine.datasets.store import load_dataset
from tests.unit.datasets.importers import folders
from tests.unit.datasets.importers.builders import config, numbered, records, write_lines


def names(home: Path, dataset: str = "d") -> list[str]:
    return [row.task.instance_id for row in load_dataset(home, dataset).rows]


def rejected(home: Path, dataset: str = "d") -> list[tuple[int, int | None, str]]:
    """Return row, line and reason of every rejected row."""
    rejects = records(home, "rejects.jsonl", dataset)
    return [(record["row"], record.get("line"), record["reason"]) for record in rejects]


def test_lines_with_invalid_utf8_or_lone_surrogates_are_rejected(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    lines = [json.dumps(numbered(number)).encode() for number in range(4)]
    lines[1] = lines[1].replace(b"Seen in build", b"Seen \xff build")
    lines[2] = lines[2].replace(b"Seen in build", rb"Seen \udc80 build")
    source.write_bytes(b"\n\n".join(lines))
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == ["acme__pkg-0", "acme__pkg-3"]
    (bytes_row, bytes_line, why), (row, line, why_lone) = rejected(tmp_path)
    assert (bytes_row, bytes_line, row, line) == (1, 3, 2, 5)
    assert why.startswith("not UTF-8: 'utf-8' codec can't decode byte 0xff")
    assert why_lone.startswith("holds '\\udc80' at position")


def test_truncated_file_loses_only_the_rows_after_its_end(tmp_path: Path) -> None:
    noise = random.Random(1)
    published = [numbered(n, hints_text=noise.randbytes(20_000).hex()) for n in range(20)]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in published).encode())
    source = tmp_path / "set"
    source.mkdir()
    (source / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    write_lines(source / "b.jsonl", [numbered(99)])
    with pytest.raises(ImportStopped):
        import_dataset(config(source), home=tmp_path, must_end=iter([False] * 5 + [True]).__next__)
    result = import_dataset(config(source), home=tmp_path)
    assert (result.rejected, result.resumed) == (1, True)
    assert names(tmp_path)[:5] == [f"acme__pkg-{n}" for n in range(5)]
    assert names(tmp_path)[-1] == "acme__pkg-99"
    number, _, why = rejected(tmp_path)[0]
    assert number == len(names(tmp_path)) - 1
    assert "a.jsonl.gz cannot be read to its end" in why


def test_unreadable_files_are_rejected_as_one_row_each(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "set"
    source.mkdir()
    (source / "a.parquet").write_bytes(b"PAR1 no parquet PAR1")
    (source / "b.json").write_text("3")
    (source / "c.json").write_bytes(b"\xff\xfe\xff")
    (source / "d.jsonl.gz").write_bytes(b"no gzip")
    write_lines(source / "e.jsonl", [numbered(0)])
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == ["acme__pkg-0"]
    reasons = [why for _, _, why in rejected(tmp_path)]
    assert len(reasons) == 4
    for file, why in zip(
        ("a.parquet is no parquet", "b.json contains", "c.json", "d.jsonl.gz"), reasons, strict=True
    ):
        assert why.startswith(file)


@pytest.mark.parametrize(
    ("damage", "good", "lines"),
    [
        (lambda rows: f"[\n  {rows[0]},\n  {{broken,\n  {rows[2]}\n]", [0, 2], [3]),
        (lambda rows: f"[\n{rows[0]},\n{rows[1]}\n{rows[2]}\n]", [0, 1, 2], [3]),
        (lambda rows: f"[\n{rows[0]},\n{rows[1]},\n{rows[2][:50]}", [0, 1], [4]),
        (lambda rows: f"[\n{rows[0]},\n{rows[1]},\n", [0, 1], [4]),
        (lambda rows: f"[{rows[0]}, 3, {rows[2]}]", [0, 2], [1]),
        (lambda rows: f"[{rows[0]}, {{broken, {rows[2]}]", [0], [1]),
        (lambda rows: f"[\n\n  {rows[0]},\n  {'[' * 100_000},\n  {rows[2]}\n]", [0, 2], [4]),
        (lambda rows: f"\n[{' ' * 5_000}{rows[0]}  ,{rows[2]}] rest", [0, 2], []),
        (lambda rows: f"{rows[0]}\n{{broken\n{rows[2]}\n", [0, 2], [2]),
        (lambda rows: f'{{"a": {rows[0]}, "b": null, "c": {rows[2]}}}', [0, 2], [None]),
    ],
    ids=["element", "comma", "cut", "end", "number", "no line", "deep", "space", "lines", "map"],
)
@pytest.mark.parametrize("piece", [1 << 20, 7])
def test_damaged_json_documents_lose_only_their_damaged_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Any,
    good: list[int],
    lines: list[int | None],
    piece: int,
) -> None:
    monkeypatch.setattr(json_list, "_PIECE", piece)
    source = tmp_path / "rows.json"
    source.write_text(damage([json.dumps(numbered(number)) for number in range(3)]))
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == [f"acme__pkg-{number}" for number in good]
    assert [line for _, line, _ in rejected(tmp_path)] == lines


def test_overlong_rows_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for module in (reading, importer_files, json_list):
        monkeypatch.setattr(module, "MAX_LINE", 20_000)
    monkeypatch.setattr(json_list, "_PIECE", 1000)
    published = [numbered(n, hints_text="x" * (50_000 if n == 1 else 5)) for n in range(3)]
    source = tmp_path / "set"
    source.mkdir()
    columns = {name: [row[name] for row in published] for name in published[0]}
    parquet.write_table(pyarrow.table(columns), source / "a.parquet")
    write_lines(source / "b.jsonl", published)
    (source / "c.json").write_text(json.dumps(published, indent=1))
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == ["acme__pkg-0", "acme__pkg-2"]
    assert [(number, why.removeprefix("not JSON: ")[:6]) for number, _, why in rejected(tmp_path)] == [
        (1, "longer"), (4, "longer"), (7, "longer"),
    ]  # fmt: skip


def test_list_elements_have_the_limits_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_list, "MAX_LINE", 20_000)
    monkeypatch.setattr(json_list, "MAX_VALUES", 1_000)
    odd: list[dict[str, Any]] = [{"hints_text": "x" * 30_000}, {"levels": [0] * 1_001}, {"levels": "deep"}]
    published = [json.dumps(numbered(n, **({} if n % 2 == 0 else odd[n // 2]))) for n in range(7)]
    published[5] = published[5].replace('"deep"', "[" * 150 + "]" * 150)
    source = tmp_path / "rows.json"
    source.write_text(f"[{', '.join(published)}]")
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == [f"acme__pkg-{n}" for n in (0, 2, 4, 6)]
    assert [why.removeprefix("not JSON: ").partition(" ")[0] for _, _, why in rejected(tmp_path)] == [
        "longer", "more", "nested",
    ]  # fmt: skip


def test_document_that_exhausts_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_text: str) -> None:
        raise MemoryError

    monkeypatch.setattr(importer_files, "parse_json", parse)
    source = tmp_path / "set"
    source.mkdir()
    (source / "a.json").write_text(json.dumps({"a": numbered(0)}, indent=1))
    write_lines(source / "b.jsonl", [numbered(1)])
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == ["acme__pkg-1"]
    assert "turn it into JSONL" in rejected(tmp_path)[0][2]


def test_too_large_document_is_rejected_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_files, "_MAX_JSON", 1 << 10)
    source = tmp_path / "set"
    source.mkdir()
    (source / "a.json").write_text(json.dumps({"instance_id": ["x" * 2_000]}, indent=1))
    write_lines(source / "b.json", [numbered(0), numbered(1)])
    import_dataset(config(source), home=tmp_path)
    assert names(tmp_path) == ["acme__pkg-0", "acme__pkg-1"]
    assert "turn it into JSONL" in rejected(tmp_path)[0][2]


def test_parquet_row_with_invalid_utf8_is_rejected(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    published = [numbered(number) for number in range(40)]
    columns: dict[str, Any] = {name: [row[name] for row in published] for name in published[0]}
    statements = [row["problem_statement"].encode() for row in published]
    statements[21] = b"odd \xff"
    binary = pyarrow.array(statements, pyarrow.binary())
    columns["problem_statement"] = pyarrow.Array.from_buffers(pyarrow.string(), 40, binary.buffers())
    parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet", row_group_size=30)
    import_dataset(config(tmp_path / "rows.parquet"), home=tmp_path)
    assert names(tmp_path) == [f"acme__pkg-{number}" for number in range(40) if number != 21]
    assert [(row, why[:9]) for row, _, why in rejected(tmp_path)] == [(21, "not UTF-8")]


def test_rows_of_a_damaged_row_group_are_rejected(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    published = [numbered(number) for number in range(40)]
    table = pyarrow.table({name: [row[name] for row in published] for name in published[0]})
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path, row_group_size=10, compression="zstd")
    group = parquet.ParquetFile(path).metadata.row_group(1)
    column = next(
        group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == "patch"
    )
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(b"\xff" * column.total_compressed_size)
    import_dataset(config(path), home=tmp_path)
    assert names(tmp_path) == [f"acme__pkg-{number}" for number in range(40) if number not in range(10, 20)]
    assert [row for row, _, _ in rejected(tmp_path)] == list(range(10, 20))


def test_unreadable_task_folders_are_rejected(tmp_path: Path) -> None:
    source = tmp_path / "harbor"
    folders.harbor_task(source, "a")
    loop = folders.harbor_task(source, "b") / "tests" / "loop"
    loop.symlink_to("loop")
    folders.harbor_task(source, "c", **{"instruction.md": b"\xff"})
    odd = os.fsdecode(b"d-\xff")
    folders.harbor_task(source, odd, **{"task.toml": "="})
    import_dataset(config(source, format="harbor"), home=tmp_path)
    assert names(tmp_path) == ["acme__clamp"]
    assert [record["file"] for record in records(tmp_path, "rejects.jsonl")] == ["b", "c", "d-\\udcff"]

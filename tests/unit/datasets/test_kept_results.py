from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from engine.datasets.kept_results import KeptResults


class Result(BaseModel):
    number: int


def test_a_torn_line_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "results.jsonl"
    KeptResults(path, Result).keep("a", Result(number=1))
    path.write_text(path.read_text()[:-9])
    KeptResults(path, Result).keep("b", Result(number=2))
    again = KeptResults(path, Result)
    assert (list(again), again.get("a"), again.get("b")) == (["b"], None, Result(number=2))


def test_the_last_result_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for number in (1, 2):
        KeptResults(path, Result).keep("a", Result(number=number))
    path.write_text(path.read_text() + '[1]\n{"key": [], "result": {"number": 3}}\n')
    assert KeptResults(path, Result).get("a") == Result(number=2)

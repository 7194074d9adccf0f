"""Funnel of a curation: hostile details."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.datasets.commits.languages.base import UnsuitableError
from engine.datasets.commits.languages.javascript.language import JavaScript
from engine.datasets.funnel import Funnel
from engine.errors import PreflightError


def test_a_detail_with_half_a_surrogate_pair_is_reported(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(json.dumps({"scripts": {"test": "\ud800"}}))
    try:
        language = JavaScript(tmp_path)
    except PreflightError as error:
        pytest.skip(str(error))
    with pytest.raises(UnsuitableError) as raised:
        language.open_project(tmp_path)
    funnel = Funnel(stages=(("commits", frozenset()),), total=1)
    funnel.lose(raised.value.reason, "a" * 40, origin="/toy", detail=raised.value.detail)
    (example,) = funnel.snapshot().examples["no_tests_run"]
    assert example.detail.endswith("node --test: \ufffd")

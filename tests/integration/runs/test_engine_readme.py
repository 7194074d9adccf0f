from __future__ import annotations

import ast
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from engine.types import Group
from tests.integration.toy_yard import DATASET, dataset_home

README = Path(__file__).parents[3] / "engine" / "README.md"


async def test_engine_readme_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = dataset_home(tmp_path / "home")
    (home / "datasets" / DATASET).rename(home / "datasets" / "quickstart")
    examples = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    examples = examples.replace('Path(".trainyard").resolve()', "HOME")
    namespace: dict[str, Any] = {"HOME": home}
    code = compile(examples, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running: Awaitable[None] = eval(code, namespace)
    await running
    group: Group = namespace["group"]
    assert group.trajectories[0].reward == 1.0
    assert "submitted passed 1.0" in capsys.readouterr().out
    assert namespace["outcome"].state == "succeeded"

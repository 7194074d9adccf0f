"""Command lines of the engine, run as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from webapp.supervisor.engine_process import SECRETS, EngineFailedError, engine_json


def test_processes_get_no_secrets_and_failures_their_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shows.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))")
    for name in SECRETS:
        monkeypatch.setenv(name, "correct-horse")
    monkeypatch.setenv("AWS_PROFILE", "store")
    shown = engine_json(["shows"], project=tmp_path)
    assert shown["AWS_PROFILE"] == "store"
    assert not SECRETS & shown.keys()
    with pytest.raises(EngineFailedError, match="No module named missing"):
        engine_json(["missing"], project=tmp_path)

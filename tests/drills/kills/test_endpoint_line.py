"""Evaluation of an endpoint on running services: the stored key is used and never written to disk."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.openai_server import Reply, openai_server
from tests.integration.toy_line import TERMINAL, running_line
from tests.integration.toy_yard import DATASET

ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-planted-key-of-a-running-line-5678"
SUBMIT = Reply(calls=[("finish", json.dumps({"command": "submit", "result": "done"}))])
SETTINGS = {
    "dataset.name": DATASET, "agent.max_steps": 3, "rollout.group_size": 1, "sandbox.max_live": 2,
    "policy.type": "endpoint", "policy.endpoint": "hosted", "policy.model": "small",
    "policy.input_price": 2.0, "policy.output_price": 10.0, "agent.tool_format": "native",
}  # fmt: skip


def test_endpoint_run_uses_the_stored_key_and_never_writes_it_to_disk(tmp_path: Path) -> None:
    with (
        openai_server(lambda _body, _number: SUBMIT) as api,
        running_line(tmp_path, {}, taught=False) as line,
    ):
        command = [sys.executable, "-m", "webapp", "endpoint", "add", "hosted", api.url]
        added = subprocess.run(
            command, input=KEY, env=line.stack.environment, cwd=ROOT, text=True, capture_output=True
        )
        assert added.returncode == 0, added.stderr
        settings = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items()]
        line.stack.command(
            "run", "launch", "quickstart-evaluate", *(part for text in settings for part in ("--set", text))
        )
        run = line.value("select max(id) from webapp_run")
        line.until(lambda: line.state(run) in TERMINAL, "the end of the run")
        assert line.state(run) == "succeeded", line.value("select reason from webapp_run where id = %s", run)
        assert {headers["authorization"] for headers in api.headers} == {f"Bearer {KEY}"}
        costs = line.rows("select cost, thinking_tokens from webapp_trajectory where run_id = %s", run)
        assert costs
        assert [row[0] for row in costs] == [pytest.approx(0.0004)] * len(costs)
    # The services have ended, so no file is removed while it is read.
    contents = {path: path.read_bytes() for path in line.stack.home.rglob("*") if path.is_file()}
    with_address = [path for path, content in contents.items() if api.url.encode() in content]
    assert any("postgres" in path.parts for path in with_address), "the database's files are searched"
    forms = [KEY.encode(), base64.b64encode(KEY.encode()).rstrip(b"=")]
    assert [path for path, content in contents.items() if any(form in content for form in forms)] == []

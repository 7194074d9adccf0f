"""Keys of endpoints: read once, hidden from child processes and from output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import redaction
from engine.errors import ConfigError
from engine.inference.endpoint import keys
from engine.inference.endpoint.keys import KEY, VLLM_KEY, find_endpoint, read_secrets
from engine.redaction import Redactor, redact

SECRET = "correct-horse-battery-staple-0815"


Given = Callable[[str], None]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_named", {})
    monkeypatch.setattr(keys, "_keys", {})
    monkeypatch.setattr(redaction, "_process", Redactor())


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Given:
    """Return a function that reads a text as this process's standard input."""

    def read(text: str) -> None:
        (tmp_path / "stdin").write_text(text)
        with (tmp_path / "stdin").open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            read_secrets()

    return read


def document(**endpoints: Any) -> str:
    return json.dumps({"redacted": ["a-secret-of-the-server"], "endpoints": endpoints})


def test_named_endpoints_are_read_from_standard_input(given: Given) -> None:
    given(document(lab={"address": "https://lab.test/v1", "key": SECRET}))
    endpoint = find_endpoint("lab")
    assert (endpoint.address, endpoint.key.get_secret_value()) == ("https://lab.test/v1", SECRET)
    assert redact(f"refused: {SECRET} a-secret-of-the-server") == "refused: [redacted] [redacted]"
    assert SECRET not in f"{endpoint!r} {endpoint} {endpoint.model_dump_json()}"


def test_an_address_uses_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    endpoint = find_endpoint("http://127.0.0.1:8000/v1")
    assert endpoint.key.get_secret_value() == SECRET
    assert KEY not in os.environ
    assert SECRET not in redact(SECRET)


def test_keys_of_endpoints_and_of_vllm_servers_are_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    address = "http://127.0.0.1:8000"
    assert find_endpoint(address, variable=VLLM_KEY).key.get_secret_value() == ""
    monkeypatch.setenv(VLLM_KEY, "another-key-0815")
    assert find_endpoint(address, variable=VLLM_KEY).key.get_secret_value() == "another-key-0815"
    assert find_endpoint(address).key.get_secret_value() == SECRET
    assert VLLM_KEY not in os.environ


def test_an_unknown_name_is_refused_with_the_known_names(given: Given) -> None:
    given(document(lab={"address": "https://lab.test/v1"}))
    with pytest.raises(ConfigError, match=r"endpoint 'home' is unknown to this process \(known: lab\)"):
        find_endpoint("home")


@pytest.mark.parametrize("address", ["http://user:pass-word-1@h/v1", "http://", "https://h/v1 x"])
def test_a_malformed_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="address is malformed") as refused:
        find_endpoint(address)
    assert "pass-word-1" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["nonsense " + SECRET, document(lab={"adress": "x", "key": SECRET}), json.dumps([SECRET]), ""],
)
def test_malformed_secrets_are_refused_without_their_content(given: Given, text: str) -> None:
    with pytest.raises(ConfigError, match="standard input") as refused:
        given(text)
    assert SECRET not in str(refused.value)


def test_keys_are_hidden_from_child_processes_and_the_process_table() -> None:
    script = (
        "import subprocess; from engine.inference.endpoint.keys import *\n"
        "before = open('/proc/self/environ').read()\n"
        "read_secrets(); take_keys()\n"
        "look = 'env; cat; cat /proc/self/fd/0'\n"
        "child = subprocess.run(look, shell=True, capture_output=True, text=True)\n"
        "key = find_endpoint('a').key.get_secret_value()\n"
        "print(repr([before, open('/proc/self/environ').read(), child.stdout, key]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, KEY: SECRET},
        input=document(a={"address": "https://a.test", "key": "given-on-stdin-4711"}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, shown, child, key = eval(done.stdout)
    assert key == "given-on-stdin-4711"
    assert SECRET in before
    for forbidden in (SECRET, key):
        assert forbidden not in shown
        assert forbidden not in child
    assert KEY not in child

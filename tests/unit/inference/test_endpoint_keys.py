"""Keys of endpoints: read once, inherited by no child process, shown nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from engine import redaction
from engine.errors import ConfigError
from engine.inference.endpoint import keys
from engine.inference.endpoint.keys import ENDPOINTS, KEY, Endpoint, find_endpoint, take_keys
from engine.redaction import Redactor, redact

SECRET = "correct-horse-battery-staple-0815"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_named", {})
    monkeypatch.setattr(keys, "_key", Endpoint(address="http://h/v1").key)
    monkeypatch.setattr(redaction, "_process", Redactor())


def test_named_endpoints_are_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS, json.dumps({"lab": {"address": "https://lab.test/v1", "key": SECRET}}))
    found = find_endpoint("lab")
    assert (found.address, found.key.get_secret_value()) == ("https://lab.test/v1", SECRET)
    assert ENDPOINTS not in os.environ
    assert find_endpoint("lab") == found
    assert SECRET not in redact(f"refused: {SECRET}")
    assert SECRET not in f"{found!r} {found} {found.model_dump_json()}"


def test_an_address_takes_the_key_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    found = find_endpoint("http://127.0.0.1:8000/v1")
    assert found.key.get_secret_value() == SECRET
    assert KEY not in os.environ
    assert SECRET not in redact(SECRET)


def test_an_unknown_name_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS, json.dumps({"lab": {"address": "https://lab.test/v1"}}))
    with pytest.raises(ConfigError, match=r"endpoint 'home' is unknown to this process \(known: lab\)"):
        find_endpoint("home")


@pytest.mark.parametrize("address", ["http://user:pass-word-1@h/v1", "http://", "https://h/v1 x"])
def test_a_malformed_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="address is malformed") as refused:
        find_endpoint(address)
    assert "pass-word-1" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["nonsense " + SECRET, json.dumps({"lab": {"adress": "x", "key": SECRET}}), json.dumps([SECRET])]
)
def test_a_malformed_variable_is_refused_without_its_content(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(ENDPOINTS, text)
    with pytest.raises(ConfigError, match=ENDPOINTS) as refused:
        take_keys()
    assert SECRET not in str(refused.value)
    assert ENDPOINTS not in os.environ


def test_neither_children_nor_the_process_table_see_a_key() -> None:
    script = (
        "import subprocess; from engine.inference.endpoint.keys import take_keys\n"
        "before = open('/proc/self/environ').read()\n"
        "take_keys()\n"
        "child = subprocess.run(['env'], capture_output=True, text=True).stdout\n"
        "print(repr([before, open('/proc/self/environ').read(), child]))"
    )
    secrets = {ENDPOINTS: json.dumps({"a": {"address": "https://a.test", "key": SECRET}}), KEY: SECRET}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **secrets}
    )
    assert done.returncode == 0, done.stderr
    before, shown, child = eval(done.stdout)
    assert SECRET in before
    assert SECRET not in shown
    assert SECRET not in child
    assert KEY not in child

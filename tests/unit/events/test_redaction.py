"""Redaction of secrets in texts, events and logs; ids and numbers stay unchanged."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog

from engine import redaction
from engine.events.delivery.spool import SpoolSink
from engine.events.redaction import LogBudget, LogTooLargeError, redact_line
from engine.events.token_block import TokenBlock
from engine.events.types import RunProgress, StepFinished, TrajectoryFinished
from engine.redaction import RedactingStream, Redactor, add_secrets, machine_secrets, secrets_in
from engine.tokens import TokenRecord

SECRET = 'S3cr/et+"with\\quotes"'
PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"
LOOKS = {
    "postgresql://user:hunter2x@db.example.org/x": "hunter2x",
    "git clone https://:tok3nvalue@git.example.org/a": "tok3nvalue",
    "Authorization: Bearer abcdef": "abcdef",
    '{"Authorization": "Basic dXNlcjpwYXNz"}': "dXNlcjpwYXNz",
    "curl -H 'bearer 0123456789abcdef'": "0123456789abcdef",
    f"key:\n{PRIVATE_KEY}\nend": "MIIEow",
    "cut -----BEGIN PRIVATE KEY-----\nMIIEow": "MIIEow",
    "hf_abcdefghijklmnopqrst": "hf_abc",
    "ghp_0123456789abcdefghijklmnopqrstuvwxyz": "ghp_",
    f"ty_{'a' * 43}": "ty_a",
    f"Incorrect API key provided: sk-proj-{'aB3-' * 9}": "sk-proj",
    "AKIAIOSFODNN7EXAMPLE": "AKIA",
    "aws_secret_access_key = wJalrXUtnFEMI": "wJalr",
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl": "c2lnbmF0dXJl",
}


@pytest.fixture(autouse=True)
def _reset_process_redactor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_process", Redactor())


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        json.dumps(SECRET),
        f"before{SECRET}after",
    ],
)
def test_known_secret_is_redacted_in_every_encoding(form: str) -> None:
    redactor = Redactor([SECRET])
    assert redactor.is_suspect(form)
    text = redactor.text(f"x {form} y")
    assert SECRET not in text
    assert "[redacted]" in text
    assert text.startswith("x ")
    assert text.endswith(" y")


@pytest.mark.parametrize(("text", "secret"), LOOKS.items())
def test_secret_patterns_are_redacted_anywhere(text: str, secret: str) -> None:
    clean = Redactor().text(text)
    assert secret not in clean
    assert Redactor().text(clean) == clean
    assert len(clean) <= len(text)
    assert Redactor().is_suspect(json.dumps(text))


@pytest.mark.parametrize(
    "text",
    [
        "see https://example.org/a:b@c and user@example.org",
        "def authorization(basic): return bearer",
        "a basic internationalization of tokens",
        "sha256:0123456789abcdef0123456789abcdef",
        "ssh://git@example.org/a",
        "",
    ],
)
def test_harmless_text_is_unchanged(text: str) -> None:
    redactor = Redactor([SECRET, "short", "12345678901"])
    assert redactor.text(text) == text
    assert redactor.text("a short 12345678901") == "a short 12345678901"


def test_numbers_of_an_event_are_never_redacted() -> None:
    ids = [20_13, 8_675_309, 1]
    line = json.dumps(
        {
            "seq": 1,
            "observation": f"x{SECRET}",
            "tokens": {"ids": ids, "logprobs": [-0.1, -1e-9]},
            "metrics": {"a": 0.30000000000000004},
            "detail": SECRET,
        },
        separators=(",", ":"),
    ).encode()
    clean = json.loads(redact_line(line, Redactor([SECRET, "8675309", "0.30000000000000004"])))
    assert clean["observation"] == "x[redacted]"
    assert clean["detail"] == "[redacted]"
    assert clean["tokens"] == {"ids": ids, "logprobs": [-0.1, -1e-9]}
    assert clean["metrics"] == {"a": 0.30000000000000004}
    innocent = b'{"seq":1,  "a":"b"}'
    assert redact_line(innocent, Redactor([SECRET])) is innocent


BLOCK = TokenBlock.of(TokenRecord(ids=[1, 2], mask=[0, 1]))


@pytest.mark.parametrize("other", ['"arguments":{"tokens":[]},', ""], ids=["and an empty list so named", ""])
@pytest.mark.parametrize(
    "columns",
    [
        '"tokens":{"ids":[1,2],"logprobs":[-0.10,-1e-09]}',
        f'"tokens":"{base64.b64encode(BLOCK.data).decode()}"',
    ],
    ids=["lists", "block"],
)
def test_token_columns_are_unchanged_where_texts_are_redacted(other: str, columns: str) -> None:
    packed = base64.b64encode(zlib.compress(f"log {SECRET} end".encode())).decode()
    detail = json.dumps(f'"tokens":[] {SECRET}')
    line = f'{{"seq":1,{other}{columns},"whole_test_log":"{packed}","detail":{detail}}}'
    clean = redact_line(line.encode(), Redactor([SECRET]))
    event = json.loads(clean)
    assert event["tokens"] == json.loads(f"{{{columns}}}")["tokens"]
    assert (columns.encode() in clean) == (not other or "-0.10" not in columns)
    assert event["detail"] == '"tokens":[] [redacted]'
    assert b"[redacted]" in zlib.decompress(base64.b64decode(event["whole_test_log"]))


@pytest.mark.parametrize("name", ['"whole_test_log" : ', '"whole_test_lo\\u0067":'])
def test_packed_log_is_redacted_for_any_spelling_of_its_field(name: str) -> None:
    packed = base64.b64encode(zlib.compress(f"log {SECRET} end".encode())).decode()
    event = json.loads(redact_line(f'{{"seq":1,{name}"{packed}"}}'.encode(), Redactor([SECRET])))
    assert zlib.decompress(base64.b64decode(event["whole_test_log"])) == b"log [redacted] end"


def test_packed_logs_share_one_size_limit() -> None:
    line = json.dumps({"whole_test_log": base64.b64encode(zlib.compress(b"x" * 600)).decode()}).encode()
    logs = LogBudget(1_000)
    redact_line(line, Redactor([]), logs=logs)
    assert logs.remaining == 400
    packed = bytearray(zlib.compress(b"x" * 300))
    packed[-1] ^= 1
    damaged = json.dumps({"whole_test_log": base64.b64encode(packed).decode()}).encode()
    with pytest.raises(ValueError, match="damaged"):
        redact_line(damaged, Redactor([]), logs=logs)
    with pytest.raises(LogTooLargeError):
        redact_line(line, Redactor([]), logs=logs)


def test_secret_only_after_the_tokens_is_redacted() -> None:
    for tokens in (b'{"ids":[1,2],"mask":[1,1]}', b'"%b"' % base64.b64encode(BLOCK.data)):
        line = b'{"seq":1,"tokens":%b,"detail":"planted-secret"}' % tokens
        assert json.loads(redact_line(line, Redactor(["planted-secret"])))["detail"] == "[redacted]"


def test_secret_in_an_argument_named_tokens_is_redacted() -> None:
    for value in (b'"planted-secret"', b'["planted-secret"]', b'{"ids":["planted-secret"]}'):
        clean = redact_line(b'{"seq":1,"arguments":{"tokens":%b}}' % value, Redactor(["planted-secret"]))
        assert b"planted" not in clean


def test_names_and_patches_lose_only_known_secrets() -> None:
    event = {
        "patch": f"+url = 'http://user:pass@host/' {SECRET}",
        "test_id": "t[http://a:b@c]",
        "reason": "http://a:b@c",
    }
    clean = json.loads(redact_line(json.dumps(event).encode(), Redactor([SECRET])))
    assert clean["patch"] == "+url = 'http://user:pass@host/' [redacted]"
    assert clean["test_id"] == "t[http://a:b@c]"
    assert clean["reason"] == "http://a:*@c"


def test_suspicious_line_that_is_not_an_event_raises_value_error() -> None:
    for line in (
        b'{"a": "https://u:pw@h"',
        b'{"a":"https://u:pw@h","b":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ):
        with pytest.raises(ValueError):
            redact_line(line, Redactor())


def test_spool_contains_no_secret(tmp_path: Path) -> None:
    add_secrets([SECRET])
    ref = {"iteration": 0, "phase": "train", "task_id": "t", "index": 0}
    sink = SpoolSink(tmp_path, epoch=1)
    sink.emit(RunProgress, message=f"pip said {SECRET}", done=0, total=1)
    sink.emit(
        StepFinished, ref=ref, index=0, thought=f"I see {SECRET}", response=SECRET,
        arguments={"command": f"echo {SECRET}", SECRET: [SECRET]}, observation="\n".join(LOOKS), error=SECRET,
    )  # fmt: skip
    sink.emit(
        TrajectoryFinished, ref=ref, termination="submitted", verdict=None, reward=None, num_steps=1,
        detail=SECRET, error=SECRET, test_log=SECRET, tokens=BLOCK,
    )  # fmt: skip
    sink.close()
    text = (tmp_path / "events.jsonl").read_text()
    for secret in (SECRET, json.dumps(SECRET)[1:-1], *LOOKS.values()):
        assert secret not in text
    assert json.loads(text.splitlines()[-1])["tokens"] == base64.b64encode(BLOCK.data).decode()
    assert [json.loads(line)["seq"] for line in text.splitlines()] == [1, 2, 3]


def test_logs_and_standard_error_contain_no_secret() -> None:
    add_secrets([SECRET])
    written = io.StringIO()
    stream = RedactingStream(written)
    print("failed:", f"pip said {SECRET}", file=stream, flush=True)
    logger = structlog.wrap_logger(
        structlog.PrintLogger(written),
        processors=[redaction.redact_record, structlog.processors.JSONRenderer()],
    )
    logger.warning("event", reason=f"x {SECRET}", nested={"a": [SECRET]})
    assert "S3cr" not in written.getvalue()
    assert written.getvalue().count("[redacted]") == 3


def test_secrets_of_the_machine_are_collected(tmp_path: Path) -> None:
    files = {
        "home/.cache/huggingface/token": "hub-token-value\n",
        "home/.docker/config.json": json.dumps(
            {"auths": {"r.example.org": {"auth": base64.b64encode(b"me:registry-password").decode()}}}
        ),
        "home/.kube/config": "- user:\n    token: kube-token-value\n    client-key-data: a2V5LWRhdGE=\n",
        "home/.netrc": "machine a login b password netrc-password\n",
        "home/.git-credentials": "https://me:git-password@git.example.org\n",
        "home/.aws/credentials": "[default]\naws_secret_access_key = aws-secret-value\n",
        "home/.config/pip/pip.conf": "[global]\nindex-url = https://me:index-password@pypi.example.org/\n",
        "data/secrets.json": json.dumps(
            {"django_key": "django-key-value", "redis_password": "redis-password"}
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {
        "HOME": str(tmp_path / "home"),
        "MY_API_KEY": "api-key-value",
        "TRAINYARD_SECRET_KEY": "secret-key-value",
        "DATABASE_URL": "postgresql://me:data%40base@db.example.org/x",
        "SECRET_FILE": "/run/secrets/file",
        "PATH": "/usr/bin:/usr/local/bin",
    }
    secrets = set(machine_secrets(environment, home=tmp_path / "data"))
    assert {
        "hub-token-value", "registry-password", "kube-token-value", "a2V5LWRhdGE=", "netrc-password",
        "git-password", "aws-secret-value", "index-password", "django-key-value", "redis-password",
        "api-key-value", "secret-key-value", "data%40base", "data@base",
    } <= secrets  # fmt: skip
    assert not secrets & {"/run/secrets/file", "/usr/bin:/usr/local/bin"}
    assert list(secrets_in(tmp_path / "missing")) == []

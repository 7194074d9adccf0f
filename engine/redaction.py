"""Redaction of secrets in texts for people: events, logs, failure reasons, pages.

A ``Redactor`` replaces known secrets (literal, percent-encoded or in base64) and texts that look like
secrets: passwords in addresses, ``Authorization`` headers, private keys, tokens with a known prefix. Each
process has one, filled by ``add_secrets``; all text that leaves a process passes through it.

To recognise another kind of secret: a line in ``_PATTERNS``; another place where secrets are kept: one in
``machine_secrets``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, unquote

import structlog

REDACTED = "[redacted]"
MIN_LENGTH = 8
"""Minimum length of a secret; shorter ones would match innocent text."""
_PATTERNS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"://[^\s/:@\"'\\<>]*:(?P<secret>[^\s/@\"'\\<>]+)@",
        r"(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))",
        r"uthorization[\\\"']*\s*[:=]\s*[\\\"']*(?:[Bb]earer|[Bb]asic|[Tt]oken)\s+(?P<secret>[^\s\"'\\]+)",
        r"earer\s+(?P<secret>[A-Za-z0-9._~+/=-]{16,})",
        r"aws_secret_access_key[\\\"']*\s*[:=]\s*[\\\"']*(?P<secret>[^\s\"'\\]+)",
        r"AWS_SECRET_ACCESS_KEY[\\\"']*\s*[:=]\s*[\\\"']*(?P<secret>[^\s\"'\\]+)",
        *(
            rf"(?P<secret>{prefix}(?<![A-Za-z0-9_-]{prefix}){rest})"
            for prefix, rest in (
                ("hf_", "[A-Za-z0-9]{16,255}"),
                ("ghp_", "[A-Za-z0-9]{16,255}"),
                ("gho_", "[A-Za-z0-9]{16,255}"),
                ("ghs_", "[A-Za-z0-9]{16,255}"),
                ("github_pat_", "[A-Za-z0-9_]{16,255}"),
                ("glpat-", "[A-Za-z0-9_-]{16,255}"),
                ("ty_", "[A-Za-z0-9_-]{43}"),
                ("sk-", "[A-Za-z0-9_-]{32,255}"),
                ("AKIA", "[A-Z0-9]{16}"),
                ("ASIA", "[A-Z0-9]{16}"),
                ("eyJ", r"[A-Za-z0-9_-]{10,4096}\.eyJ[A-Za-z0-9_-]{10,4096}\.[A-Za-z0-9_-]+"),
            )
        ),
    )
)
"""Patterns of secrets; each begins with fixed letters, for which ``re`` searches many times faster."""
_SECRET_NAME = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|_AUTH$)"
    r"(?!.*_(?:FILE|PATH|DIR)$)",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
_SETTINGS = re.compile(
    r"^\s*-?\s*[\"']?(?:token|password|client-key-data|aws_secret_access_key|aws_session_token)[\"']?\s*[:=]\s*"
    r"[\"']?([^\s\"',]+)",
    re.MULTILINE,
)
"""Pattern of a secret in a line of YAML or of a configuration file."""


class Redactor:
    """Replaces secrets in texts by a mask.

    Args:
        secrets: the literal secrets; those shorter than ``MIN_LENGTH`` and plain numbers are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = frozenset(
            secret for secret in secrets if len(secret) >= MIN_LENGTH and not secret.isdigit()
        )
        forms = {form for secret in self.secrets for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, self._forms)) or r"(?!)")

    def with_secrets(self, *secrets: str) -> Redactor:
        """Return a redactor with additional secrets."""
        return self if self.secrets.issuperset(secrets) else Redactor((*self.secrets, *secrets))

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        text = self.known(text)
        for pattern in _PATTERNS:
            text = pattern.sub(_without_group, text)
        return text

    def known(self, text: str) -> str:
        """Return a text without the known secrets; texts that only resemble a secret stay."""
        if not any(form in text for form in self._forms):
            return text
        return self._known.sub(lambda match: _mask(match[0]), text)

    def tree(self, value: Any, *, exact: Collection[str] = (), name: str = "") -> Any:
        """Return JSON-like data without secrets in texts and field names; numbers are unchanged.

        Args:
            value: data as returned by ``json.loads``.
            exact: names of fields that are identifiers or are parsed again by programs: only known
                secrets are replaced in them.
            name: name of the field that holds ``value``.
        """
        if isinstance(value, str):
            return self.known(value) if name in exact else self.text(value)
        if isinstance(value, Mapping):
            return {
                self.known(str(key)): self.tree(item, exact=exact, name=str(key))
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                item if isinstance(item, int | float) else self.tree(item, exact=exact, name=name)
                for item in value
            ]
        return value

    def is_suspect(self, text: str) -> bool:
        """Return whether ``text`` or ``tree`` may redact something in this text or encoded JSON."""
        # Loops, because a generator takes as long as the searches: every event passes here.
        for form in self._forms:
            if form in text:
                return True
        for pattern in _PATTERNS:  # noqa: SIM110
            if pattern.search(text):
                return True
        return False


class RedactingStream:
    """Text stream that writes to another one with secrets redacted by this process's redactor.

    Args:
        stream: e.g. ``sys.stderr``.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; a secret split over two writes is not recognised."""
        self._stream.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_process = Redactor()


def redactor() -> Redactor:
    """Return this process's redactor."""
    return _process


def redact(text: str) -> str:
    """Return a text without the secrets of this process."""
    return _process.text(text)


def add_secrets(secrets: Iterable[str]) -> None:
    """Add secrets to this process's redactor."""
    global _process
    _process = _process.with_secrets(*secrets)


def redact_record(_logger: object, _method: str, record: Any) -> Any:
    """Redact a log record; a processor for structlog."""
    return _process.tree(record)


def log_to(stream: TextIO) -> None:
    """Write this process's log to a stream, as lines of JSON without secrets."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact_record,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def machine_secrets(environment: Mapping[str, str], *, home: Path | None = None) -> Iterator[str]:
    """Yield the secrets stored on this machine for its programs.

    Args:
        environment: variables: values of those named like a secret, and passwords in URLs of the others.
        home: the data folder, whose secrets are included.
    """
    for name, value in environment.items():
        if _SECRET_NAME.search(name):
            yield value
        yield from passwords_in(value)
    for path in _token_files(environment):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield path.read_text().strip()
    for path in _credential_files(environment):
        yield from secrets_in(path)
    yield from environment.get("TRAINYARD_SEALING_KEYS", "").split(",")
    if home is not None:
        with contextlib.suppress(OSError, ValueError):
            yield from map(str, json.loads((home / "secrets.json").read_text()).values())
        with contextlib.suppress(OSError):
            yield from (home / "sealing.keys").read_text().split()


def passwords_in(text: str) -> Iterator[str]:
    """Yield the passwords of URLs in a text, literally and decoded."""
    for password in _IN_ADDRESS.findall(text):
        yield password
        yield unquote(password)


def _mask(secret: str) -> str:
    """Return the replacement of a secret; never longer, so that length limits still hold."""
    return REDACTED if len(secret) >= len(REDACTED) else "*" * len(secret)


def _without_group(found: re.Match[str]) -> str:
    start, end = found.span("secret")
    return found.string[found.start() : start] + _mask(found["secret"]) + found.string[end : found.end()]


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield base64.b64encode(secret.encode()).decode().rstrip("=")


def secrets_in(path: Path) -> Iterator[str]:
    """Yield the secrets in a credentials file (cluster, registry, index, netrc, cloud)."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return
    yield from passwords_in(text)
    yield from _SETTINGS.findall(text)
    yield from re.findall(r"\bpassword\s+(\S+)", text)
    yield from _registry_secrets(text)


def _token_files(environment: Mapping[str, str]) -> Iterator[Path]:
    cache = environment.get("HF_HOME") or _user(environment) / ".cache/huggingface"
    yield Path(environment.get("HF_TOKEN_PATH") or Path(cache) / "token")
    yield Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def _credential_files(environment: Mapping[str, str]) -> Iterator[Path]:
    user = _user(environment)
    yield Path(environment.get("DOCKER_CONFIG") or user / ".docker") / "config.json"
    yield from map(Path, (environment.get("KUBECONFIG") or str(user / ".kube/config")).split(os.pathsep))
    yield Path(environment.get("NETRC") or user / ".netrc")
    yield Path(environment.get("PIP_CONFIG_FILE") or "/etc/pip.conf")
    for name in (".git-credentials", ".aws/credentials", ".config/pip/pip.conf", ".pip/pip.conf"):
        yield user / name


def _user(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _registry_secrets(text: str) -> Iterator[str]:
    """Yield the credentials in a Docker ``config.json``."""
    with contextlib.suppress(ValueError, AttributeError):
        for login in json.loads(text).get("auths", {}).values():
            for name in ("auth", "identitytoken", "registrytoken", "password"):
                if login.get(name):
                    yield login[name]
            with contextlib.suppress(binascii.Error):
                yield base64.b64decode(login.get("auth", "")).decode(errors="replace").partition(":")[2]

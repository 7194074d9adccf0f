"""Encryption of secrets in the database under keys that the database does not contain.

The sealing keys are Fernet keys, newest first: in ``TRAINYARD_SEALING_KEYS``, separated by commas, or else in
the data folder's ``sealing.keys`` (one per line, mode 0600, generated on first use). The newest key encrypts;
every key decrypts. The keys are independent of ``SECRET_KEY``, which may change without loss.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from filelock import FileLock

from engine.errors import ConfigError
from engine.files import atomic_write

VARIABLE = "TRAINYARD_SEALING_KEYS"
FILE = "sealing.keys"


@contextmanager
def locked() -> Iterator[None]:
    """Lock out key rotation; secrets are sealed and stored within this context."""
    with FileLock(_path().with_suffix(".lock"), mode=0o600, is_singleton=True):
        yield


def seal(secret: str, *, purpose: str) -> str:
    """Encrypt a secret; only ``unseal`` with the same purpose returns it.

    Raises:
        ConfigError: a sealing key is invalid.
    """
    return _cipher().encrypt(f"{purpose}\n{secret}".encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """Decrypt a secret.

    Raises:
        ConfigError: the secret was sealed under another key or for another purpose, or was changed; a
            sealing key is invalid.
    """
    try:
        text = _cipher().decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise ConfigError(
            f"the stored key cannot be decrypted with the sealing keys of this server ({_place()}): restore "
            f"them, or enter the key again; web server and workers on other hosts need the same {VARIABLE}"
        ) from None
    secret = text.removeprefix(f"{purpose}\n")
    if secret == text:
        raise ConfigError("the stored key was entered for another address: enter the key again")
    return secret


def rotate_key() -> None:
    """Add a new encryption key to the file; no effect if an environment variable has the keys."""
    if not os.environ.get(VARIABLE):
        _write([Fernet.generate_key().decode(), *sealing_keys()])


def resealed(sealed: str) -> str:
    """Encrypt a sealed secret anew under the newest key. Raises ConfigError if no key decrypts it."""
    try:
        return _cipher().rotate(sealed.encode()).decode()
    except InvalidToken:
        raise ConfigError(f"a stored key cannot be decrypted with the sealing keys ({_place()})") from None


def forget_old_keys() -> None:
    """Remove all keys but the newest one from the file; no effect if a variable has the keys."""
    if not os.environ.get(VARIABLE):
        _write(sealing_keys()[:1])


def sealing_keys() -> list[str]:
    """Return the keys, newest first; a missing file is created."""
    listed = os.environ.get(VARIABLE, "")
    if listed:
        return [key.strip() for key in listed.split(",") if key.strip()]
    if not _path().exists():
        with locked():
            if not _path().exists():
                _write([Fernet.generate_key().decode()])
    return _path().read_text().split()


def _cipher() -> MultiFernet:
    try:
        return MultiFernet([Fernet(key) for key in sealing_keys()])
    except ValueError:
        raise ConfigError(
            f"{_place()} must contain keys as Fernet.generate_key() of the package cryptography makes them"
        ) from None


def _place() -> str:
    return VARIABLE if os.environ.get(VARIABLE) else str(_path())


def _path() -> Path:
    return Path(settings.TRAINYARD_HOME) / FILE


def _write(keys: list[str]) -> None:
    atomic_write(_path(), "\n".join(keys) + "\n", durable=True, mode=0o600)

"""Subject of conformance checks: a backend and an image with the reference tree.

Each backend builds an image from ``reference_tree`` and passes its name. To give checks other files, add them
to the tree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from engine.sandbox.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec

CHECKS: list[Callable[[Subject], Awaitable[None]]] = []
"""Every check, in the order of the modules."""

SECRET = "host-secret-that-no-sandbox-may-see"
"""Text that the caller puts into its own environment and into ``Subject.secret_file``."""


_SMALL = SandboxLimits(memory_mb=96, processes=32, disk_mb=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend under test.

    Args:
        image: name of an image whose workdir holds ``reference_tree``.
        secret_file: a file on the host, readable by the caller, outside of everything a sandbox is given.
        uid: user id of commands. 0 in images whose files belong to root: it has no capabilities, but can
            write to the image's system folders.
        own_root: whether the root file system is the image's own. The container runtime adds a host name and
            a read-only ``/sys``, so that system files there reveal nothing about this machine.
        disk: how disk use is limited. ``shared``: one limit on bytes and files for everything writable.
            ``layer``: a limit on bytes for the container's layer and another for ``/dev/shm``. ``watched``:
            no write is refused; a sandbox above the limit is ended soon after.
    """

    backend: SandboxBackend
    image: str
    secret_file: Path
    workdir: str = "/testbed"
    uid: int = 1000
    own_root: bool = False
    disk: Literal["shared", "layer", "watched"] = "shared"
    limits: SandboxLimits = _SMALL

    def open(
        self,
        *,
        limits: SandboxLimits | None = None,
        env: Mapping[str, str] | None = None,
        run_id: str = "conformance",
        lifetime_s: float = 300.0,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox of the image."""
        return self.backend.open(
            SandboxSpec(
                image=self.image,
                workdir=self.workdir,
                run_id=run_id,
                name="check",
                env=env or {},
                limits=replace(limits or self.limits, lifetime_s=lifetime_s),
            )
        )


def check(function: Callable[[Subject], Awaitable[None]]) -> Callable[[Subject], Awaitable[None]]:
    """Register a conformance check."""
    CHECKS.append(function)
    return function


@contextlib.contextmanager
def raises(kind: type[Exception] | tuple[type[Exception], ...], mention: str = "") -> Iterator[None]:
    """Assert that the block raises ``kind`` with ``mention`` in its message."""
    raised: Exception | None = None
    try:
        yield
    except kind as error:
        raised = error
    assert raised is not None, f"{kind} was not raised"
    assert mention in str(raised), f"{raised!r} does not mention '{mention}'"


def reference_tree(folder: Path) -> None:
    """Fill ``folder`` with one of every kind of file that a repository may hold."""
    contents: dict[str, bytes] = {
        "a.txt": b"first\nsecond\nthird\n",
        "pkg/module.py": b"def answer():\n    return 41\n",
        "pkg/__init__.py": b"",
        "deep/er/file": b"deep\n",
        "binary.dat": bytes(range(256)) * 4,
        "latin.txt": "caf\u00e9\n".encode("latin-1"),
        "crlf.bat": b"one\r\ntwo\r\n",
        "no newline": b"no newline at the end",
        "nam\u00e9 'with\" \t odd.txt": b"odd\n",
        ".gitignore": b"ignored*\n*.log\n",
        ".gitattributes": b"*.bat text eol=crlf\n*.txt diff=custom\n*.py -diff\n",
        ".hidden": b"hidden\n",
        "tool.sh": b"#!/bin/sh\necho tool\n",
    }
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "tool.sh").chmod(0o755)
    (folder / "link").symlink_to("a.txt")
    (folder / "dangling").symlink_to("/nowhere/at/all")
    (folder / "outside").symlink_to("/etc")

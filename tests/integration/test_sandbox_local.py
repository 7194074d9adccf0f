"""The local backend passes the conformance suite, as whoever runs the tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.sandbox.conformance import CHECKS, Subject, reference_tree
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.images import build_image
from engine.sandbox.local import LocalBackend

pytest.importorskip("pytest_asyncio")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tree = folder / "tree"
    tree.mkdir()
    reference_tree(tree)
    build_image(folder, "reference", tree)
    (folder / "secret").write_text(SECRET)
    return folder


@pytest.fixture
def subject(home: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    return Subject(backend=LocalBackend(home), image="local:reference", secret_file=home / "secret")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await check(subject)

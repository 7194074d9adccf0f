"""The Kubernetes backend passes the short conformance suite on the fake cluster and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.sandbox.conformance import Subject
from engine.sandbox.conformance.subject import SECRET
from tests.builders.kubernetes_builders import IMAGE, build_reference, opened, prepared
from tests.builders.sandbox_builders import SHORT_CONFORMANCE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    build_reference(folder)
    (folder / "secret").write_text(SECRET)
    return folder


@pytest.mark.parametrize("check", SHORT_CONFORMANCE, ids=lambda check: check.__name__)
async def test_conformance(
    check: Callable[[Subject], Awaitable[None]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    async with prepared(home, pod_pids_limit=32) as cluster, opened(cluster, max_live=40) as backend:
        await check(Subject(backend=backend, image=IMAGE, secret_file=home / "secret"))

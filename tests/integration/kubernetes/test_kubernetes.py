"""Short conformance suite of the Kubernetes backend on a fake cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from engine.sandbox.conformance import Subject
from engine.sandbox.conformance.subject import SECRET
from tests.builders.kubernetes_builders import IMAGE, build_reference, opened, prepared
from tests.builders.sandbox_builders import SHORT_CONFORMANCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def subject(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """Subject with one backend for all checks."""
    home = tmp_path_factory.mktemp("home")
    build_reference(home)
    (home / "secret").write_text(SECRET)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOST_SECRET", SECRET)
        async with prepared(home, pod_pids_limit=32) as cluster, opened(cluster, max_live=40) as backend:
            yield Subject(backend=backend, image=IMAGE, secret_file=home / "secret")


@pytest.mark.parametrize("check", SHORT_CONFORMANCE, ids=lambda check: check.__name__)
async def test_kubernetes_conforms(check: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await check(subject)

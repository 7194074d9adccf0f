"""A fake cluster in a process of its own, so that it does not share its event loop and lock with what it
serves.

    async with ClusterProcess(home, images={"registry.test/demo:1": "demo"}) as cluster:
        config = KubernetesConfig(kubeconfig=str(cluster.kubeconfig))
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx
import yaml

from tests.fakes.cluster.api.errors import ApiError
from tests.fakes.cluster.api.server import PREFIX

if TYPE_CHECKING:
    from tests.fakes.cluster.cluster import FakeCluster

_REPO = Path(__file__).parents[3]
_START_S = 60.0
_STOP_S = 20.0


class ClusterProcess:
    """Starts ``python -m tests.fakes.cluster`` and switches it from here.

    Args:
        home: the data folder with the local images.
        images: references and the names of the local images behind them.
        options: further command-line options, e.g. ``("--own-agents",)``.
    """

    def __init__(
        self, home: Path, *, images: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
    ) -> None:
        self._home = home
        self._options = [
            *options,
            *(f"--image={reference}={name}" for reference, name in (images or {}).items()),
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._http: httpx.AsyncClient | None = None
        self.kubeconfig = Path()
        """Makes its reader the administrator."""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.cluster", "--home", str(self._home), *self._options),
            cwd=_REPO,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            self.kubeconfig = await self._said(self._process)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._http = _client(self.kubeconfig)
        return self

    async def _said(self, process: asyncio.subprocess.Process) -> Path:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            line = (await process.stdout.readline()).decode().strip()
        if not line:
            raise RuntimeError(f"the fake cluster did not start: status {await process.wait()}")
        return Path(line)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def switch(self, name: str, /, *, wait_s: float = 30.0, **arguments: Any) -> Any:
        """Call ``work_switch`` in the other process. Raises RuntimeError with its message when it refuses."""
        assert self._http is not None
        response = await self._http.post(PREFIX + name, content=json.dumps(arguments), timeout=wait_s)
        if response.status_code >= 400:
            raise RuntimeError(response.json()["message"])
        return response.json()

    async def state(self) -> dict[str, int]:
        """Return the counts of ``writes`` and ``reads``."""
        state: dict[str, int] = await self.switch("state")
        return state

    async def settled(self, timeout_s: float = 120.0) -> None:
        """Wait until no pod is live and no sandbox exists. Raises RuntimeError telling what is left."""
        await self.switch("settled", timeout_s=timeout_s, wait_s=timeout_s + 10)


async def work_switch(cluster: FakeCluster, name: str, arguments: bytes) -> bytes:
    """Do in the cluster's process what ``ClusterProcess.switch`` asked for; return JSON.

    Raises:
        ApiError: 404 for an unknown switch, 504 when the cluster did not settle in time.
    """
    result: dict[str, Any] = {}
    match name:
        case "state":
            result = {"writes": cluster.counters.writes, "reads": cluster.counters.reads}
        case "reset":
            cluster.counters.reset()
        case "settled":
            try:
                await cluster.settled(**json.loads(arguments))
            except TimeoutError as error:
                raise ApiError(504, "Timeout", str(error)) from None
        case _:
            raise ApiError(404, "NotFound", f"there is no switch '{name}'")
    return json.dumps(result).encode()


def _client(kubeconfig: Path) -> httpx.AsyncClient:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    headers = {"Authorization": f"Bearer {user['token']}"}
    return httpx.AsyncClient(base_url=cluster["server"], headers=headers, verify=context)

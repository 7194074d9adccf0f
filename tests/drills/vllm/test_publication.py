"""Publication of trained weights to real servers, and detection of an engine that does not serve them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.config.policies import VllmConfig
from engine.errors import EngineError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.responses import Answer
from engine.inference.vllm.publishing.publication import PublicationReport, Publisher, ServedModel
from engine.inference.vllm.servers.server import VllmServer
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.factory import TrainingSetup
from tests.drills.vllm.servers import PARITY, QUICKSTART, command, request, started
from tests.unit.models.small import gap, prompt
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.trainer_builders import make_run

GROUPS = make_groups(make_model(vocab=2048), [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.25, 1.0]])


async def open_trainer(folder: Path, **settings: Any) -> AsyncTrainer:
    """Open a trainer of the quickstart model."""
    config = make_run(QUICKSTART, **{"tokens_per_microbatch": 4096, "learning_rate": 1e-3, **settings})
    return await AsyncTrainer.open(TrainingSetup.of(config), run_dir=folder, home=folder, checkpoint=None)


@pytest.fixture
async def trainer(tmp_path: Path) -> AsyncIterator[AsyncTrainer]:
    opened = await open_trainer(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def servers(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    """Two servers of the quickstart model."""
    folder = tmp_path_factory.mktemp("vllm")
    launched = [VllmServer(command(QUICKSTART, vllm_python), log=folder / f"{n}.log") for n in range(2)]

    async def start() -> None:
        await asyncio.gather(*(server.start() for server in launched))

    async def stop() -> None:
        await asyncio.gather(*(server.stop() for server in launched))

    try:
        asyncio.run(start())
        yield launched
    finally:
        asyncio.run(stop())


@pytest.fixture
async def clients(servers: list[VllmServer]) -> AsyncIterator[list[VllmClient]]:
    for server in servers:
        if not server.is_alive():  # a failed test left it stopped
            await server.start()
    opened = [server.client() for server in servers]
    for client in opened:
        await client.check()
    yield opened
    for client in opened:
        await client.close()


def publisher(folder: Path, *, adapters: bool = False, **settings: Any) -> Publisher:
    model = ServedModel(
        vocabulary=2048, max_context=512, dtype=torch.float32, base=str(QUICKSTART), has_adapters=adapters
    )
    return Publisher(VllmConfig(**settings), model, folder=folder / "weights")


def show(report: PublicationReport) -> None:
    """Print the report of a publication; pytest shows it on demand."""
    print(report.version, report.metrics(), [replica.failure for replica in report.replicas])


async def check_samples(client: VllmClient, trainer: AsyncTrainer, version: int, *, model: str = "") -> None:
    """Check that the server samples with the trainer's weights and reports their version."""
    ids = prompt(100, version)
    generation = await client.generate(
        request(ids, seed=3), request_id=f"check-{version}-{model}", model=model, salt=str(version)
    )
    assert set(generation.versions) == {version}
    assert gap(trainer.model, ids, generation) <= PARITY


async def test_every_version_is_verified_on_every_server(
    tmp_path: Path, trainer: AsyncTrainer, servers: list[VllmServer], clients: list[VllmClient]
) -> None:
    publishing, before = publisher(tmp_path), None
    for version in range(1, 5):
        report = await publishing.publish(version, trainer, clients)
        show(report)
        assert [replica.failure for replica in report.replicas] == ["", ""]
        assert report.metrics()["publish/parity"] <= PARITY
        for client in clients:
            await check_samples(client, trainer, version)
        checksums = await clients[0].checksums()
        assert checksums != before
        before = checksums
        await trainer.update(GROUPS, temperature=1.0)
    await servers[1].stop()
    await clients[1].close()
    await servers[1].start()
    new_client = servers[1].client()
    assert await new_client.checksums() != before, "it starts with the base's weights"
    assert await publishing.restore(new_client)
    assert await new_client.checksums() == before
    await new_client.close()


class Faulty(VllmClient):
    """Client of a server that becomes faulty with ``is_broken``."""

    is_broken = False


class Stale(Faulty):
    """Client of a server that reports an update without loading the weights."""

    async def load_weights(self, folder: Path, version: int) -> None:
        if self.is_broken:
            await self.set_version(version)
        else:
            await super().load_weights(folder, version)


class Cached(Faulty):
    """Client of a server that keeps its prefix cache."""

    async def pause(self, mode: Literal["finish", "keep", "abort"]) -> None:
        if self.is_broken:
            await self._ask(Answer, "/pause?mode=wait&clear_cache=false")  # any other pause clears it
        else:
            await super().pause(mode)

    async def reset_prefix_cache(self) -> None:
        if not self.is_broken:
            await super().reset_prefix_cache()


@pytest.mark.parametrize(
    ("kind", "rate", "reason"),
    [
        (Stale, 1e-3, "differ from the trainer's"),
        (Cached, 1e-3, "prefix cache was not reset"),
        (Stale, 1e-8, "are those of the previous version"),
        (Cached, 1e-8, "prefix cache was not reset"),
    ],
)
async def test_engine_that_does_not_serve_the_update_is_detected(
    tmp_path: Path, servers: list[VllmServer], clients: list[VllmClient], kind: Any, rate: float, reason: str
) -> None:
    """The other engine is correct; the small rate changes log-probabilities by less than their tolerance."""
    trainer, publishing = await open_trainer(tmp_path, learning_rate=rate), publisher(tmp_path)
    server = servers[0]
    faulty: Faulty = kind(server.address, model=server.command.name, api_key=server.api_key)
    assert len((await publishing.publish(1, trainer, [faulty, clients[1]])).served) == 2
    faulty.is_broken = True
    await trainer.update(GROUPS, temperature=1.0)
    report = await publishing.publish(2, trainer, [faulty, clients[1]])
    show(report)
    assert reason in report.replicas[0].failure
    assert report.served == [clients[1]]
    assert await publishing.restore(clients[0]), "an honest load repairs it"
    await check_samples(clients[0], trainer, 2)
    await faulty.close()
    await trainer.close()


class OldAdapter(VllmClient):
    """Client of a server that loads the previous adapter under the new name."""

    async def load_adapter(self, name: str, folder: Path, *, version: int | None = None) -> None:
        await super().load_adapter(name, folder.parent.with_name("old"), version=version)


async def test_adapters_are_published_by_name(tmp_path: Path, vllm_python: Path) -> None:
    trainer = await open_trainer(tmp_path, lora_rank=4, learning_rate=1e-2)
    publishing = publisher(tmp_path, adapters=True)
    async with started(command(QUICKSTART, vllm_python, lora_rank=4), tmp_path / "log") as (
        server,
        client,
    ):
        for version in range(1, 4):
            report = await publishing.publish(version, trainer, [client])
            show(report)
            assert [replica.failure for replica in report.replicas] == [""]
            assert report.metrics()["publish/parity"] <= PARITY
            assert publishing.model == f"policy-{version}"
            await check_samples(client, trainer, version, model=publishing.model)
            if version > 1:
                with pytest.raises(EngineError, match=f"policy-{version - 1}"):
                    await check_samples(client, trainer, version, model=f"policy-{version - 1}")
            await trainer.update(GROUPS, temperature=1.0)
        shutil.copytree(tmp_path / "weights" / "3", tmp_path / "old")
        faulty = OldAdapter(server.address, model=server.command.name, api_key=server.api_key)
        report = await publishing.publish(4, trainer, [faulty])
        assert "differ from the trainer's" in report.replicas[0].failure
        await faulty.close()
        assert await publishing.restore(client)
        await check_samples(client, trainer, 4, model="policy-4")
    await trainer.close()

"""Publication to scripted servers: servers without the new weights are detected."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config.policies import VllmConfig
from engine.errors import ConfigError, EngineError, PublicationError, TrainerError
from engine.inference.base import Generation, GenerationRequest, WeightConsumer, WeightStream
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.facts import EngineMetrics
from engine.inference.vllm.publishing.live_transfer import LiveTransfer, choose_transfer
from engine.inference.vllm.publishing.proof import (
    EXACT,
    ROUNDED,
    check_changes,
    compare_logprobs,
    find_deviating,
    probe_ids,
)
from engine.inference.vllm.publishing.publication import PublicationReport, Publisher, ServedModel
from engine.inference.vllm.publishing.transfer import SentWeights, WriteFolder, tensor_digest
from engine.models.builtin.transformer import Transformer
from engine.models.weights.live import LiveWeights
from tests.unit.models import small

FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
         "up_proj": "gate_up_proj"}  # fmt: skip


def logprob_table(model: Transformer, ids: Sequence[int]) -> Tensor:
    """Return log-probabilities [T, V] after each id."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([list(ids)]), torch.tensor([len(ids)]))[0], -1)


@dataclass
class Trainer:
    """A model in training."""

    model: Transformer = field(default_factory=lambda: small.model(0))
    failure: Exception | None = None

    def step(self, seed: int, size: float = 0.1) -> None:
        """Add noise to every weight."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * size * parameter.std())

    async def send_weights(self, consumer: WeightConsumer) -> Any:
        live = LiveWeights(self.model)
        tensors = live.tensors(consumer.dtype)
        try:
            return consumer(WeightStream(infos=live.infos(consumer.dtype), tensors=self._failing(tensors)))
        except OSError as error:
            raise PublicationError(str(error)) from error

    def _failing(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for number, pair in enumerate(tensors):
            if number == 3 and self.failure is not None:
                raise self.failure
            yield pair

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        logprobs = logprob_table(self.model, ids)[:-1].gather(1, torch.tensor(ids)[1:, None])
        return logprobs.squeeze(1).tolist()


class Server:
    """Model of a vLLM server's weights and caches, with at most one fault."""

    def __init__(self, fault: str = "") -> None:
        self.address = f"http://{fault or 'honest'}:1"
        self.model = small.model(0)
        self.fault = fault
        self.version = 0
        self.calls: list[str] = []
        self.cache: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self.queries = self.hits = 0
        self.paused = asyncio.Event()

    async def generate(
        self, request: GenerationRequest, *, request_id: str, model: str = "", salt: str = ""
    ) -> Generation:
        assert request_id
        assert not self.paused.is_set(), "it would wait for ever"
        self.calls.append("generate")
        key = salt, tuple(request.prompt_ids)
        self.queries += len(request.prompt_ids)
        if key in self.cache and self.fault != "uncounted":
            self.hits += len(request.prompt_ids)
        last = self.cache.setdefault(key, logprob_table(self.model, request.prompt_ids)[-1])
        token = int(last.argmax())
        return Generation(ids=(token,), logprobs=(float(last[token]),), versions=(self.version,))

    async def prompt_logprobs(self, ids: Sequence[int], *, model: str = "") -> list[float]:
        logprobs = logprob_table(self.model, ids)[:-1].gather(1, torch.tensor(ids)[1:, None]).squeeze(1)
        return [float("nan")] * len(logprobs) if self.fault == "nan" else logprobs.tolist()

    async def metrics(self) -> EngineMetrics:
        return EngineMetrics(
            running=int(self.fault == "full"), waiting=0, kv_use=0.0, cache_tokens=1000,
            generated_tokens=0, prompt_tokens=0,
            prefix_queries=self.queries, prefix_hits=self.hits,
        )  # fmt: skip

    async def pause(self, mode: str) -> None:
        self.calls.append(f"pause {mode}")
        if self.fault == "slow":
            await asyncio.Event().wait()
        if self.fault == "gone":
            raise EngineError("the connection was cut", kind="lost")
        self.paused.set()

    async def resume(self) -> None:
        self.calls.append("resume")
        self.paused.clear()

    async def reset_prefix_cache(self) -> None:
        self.calls.append("reset")
        if self.fault not in ("cached", "uncounted"):
            self.cache.clear()
        if self.fault == "busy":
            raise EngineError("requests are in flight", kind="refused")

    async def load_weights(self, folder: Path, version: int) -> None:
        self.calls.append(f"load {folder.name}")
        if self.fault == "dead":
            raise EngineError("the connection was cut", kind="lost")
        tensors = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
        own = self.model.state_dict()
        assert set(tensors) <= set(own)
        if self.fault == "one missing":
            tensors.pop("model.layers.1.self_attn.o_proj.weight")
        if self.fault != "stale":
            self.model.load_state_dict(own | tensors)
        if self.fault == "corrupt":
            with torch.no_grad():
                self.model.model.norm.weight[0] += 1e-6
        await self.set_version(version)

    async def set_version(self, version: int) -> None:
        self.version = version - 1 if self.fault == "unstamped" else version

    async def served_version(self) -> int:
        return self.version

    async def checksums(self) -> dict[str, str]:
        parts: dict[str, list[bytes]] = defaultdict(list)
        for name, tensor in self.model.named_parameters():
            components = name.split(".")
            fused = ".".join(FUSED.get(component, component) for component in components)
            parts[f"dp0:pp0:pcp0:tp0:{fused}"].append(tensor.detach().numpy().tobytes())
        return {name: hashlib.sha256(b"".join(data)).hexdigest() for name, data in parts.items()}


def publisher(folder: Path, **settings: Any) -> Publisher:
    live, stored = settings.pop("live", None), settings.pop("stored", None)
    config = VllmConfig(**{"start_timeout_s": 60, **settings})
    model = ServedModel(vocabulary=small.VOCAB, max_context=256, dtype=torch.float32)
    return Publisher(config, model, folder=folder / "weights", live=live, stored=stored)


def served(report: PublicationReport) -> list[Server]:
    return cast(list[Server], report.served)


async def publish(
    publishing: Publisher, version: int, trainer: Trainer, servers: Sequence[Server]
) -> PublicationReport:
    return await publishing.publish(version, trainer, cast(list[VllmClient], list(servers)))


async def test_each_version_reaches_every_server(tmp_path: Path) -> None:
    trainer, servers, publishing = Trainer(), [Server(), Server()], publisher(tmp_path)
    for version in range(1, 4):
        report = await publish(publishing, version, trainer, servers)
        assert [replica.failure for replica in report.replicas] == ["", ""]
        assert report.metrics()["publish/replicas"] == 2
        assert report.metrics()["publish/parity"] <= 1e-5
        assert report.metrics()["publish/mib"] == pytest.approx(
            sum(p.numel() * 4 for p in trainer.model.parameters()) / 2**20
        )
        assert [path.name for path in (tmp_path / "weights").iterdir()] == [str(version)]
        for server in servers:
            for ours, theirs in zip(trainer.model.parameters(), server.model.parameters(), strict=True):
                assert torch.equal(ours, theirs)
            assert not server.paused.is_set()
        trainer.step(version)
    assert publishing.model == ""
    expected = ["generate", "pause finish", "load 3", "reset", "resume", "generate"]
    assert servers[0].calls[-6:] == expected


@pytest.mark.parametrize(
    ("fault", "size", "reason"),
    [
        ("stale", 0.1, "differ from the trainer's"),
        ("one missing", 0.1, "differ from the trainer's"),
        ("uncounted", 0.1, "prefix cache holds other weights"),
        ("stale", 1e-6, "are those of the previous version"),
        (
            "one missing",
            1e-6,
            "checksums of model.layers.1.self_attn.o_proj.weight are those of the previous",
        ),
        ("cached", 1e-6, "prefix cache was not reset"),
        ("nan", 0.1, "differ from the trainer's by nan"),
        ("unstamped", 0.1, "stamps version 1"),
        ("dead", 0.1, "connection was cut"),
        ("busy", 0.1, "requests are in flight"),
    ],
)
async def test_servers_without_the_new_weights_are_detected(
    tmp_path: Path, fault: str, size: float, reason: str
) -> None:
    """Detection covers updates too small for log-probabilities, beside a correct server."""
    trainer, servers, publishing = Trainer(), [Server(), Server()], publisher(tmp_path)
    assert len((await publish(publishing, 1, trainer, servers)).served) == 2
    before = await trainer.logprobs(range(5, 200))
    trainer.step(1, size)
    if size < 0.1:
        assert not compare_logprobs(await trainer.logprobs(range(5, 200)), before, EXACT), "not small"
    servers[0].fault = fault
    report = await publish(publishing, 2, trainer, servers)
    assert reason in report.replicas[0].failure
    assert served(report) == [servers[1]]
    assert "resume" in servers[0].calls[-5:], "it may be somebody else's"
    servers[0].fault = ""
    assert await publishing.restore(cast(VllmClient, servers[0]))
    trainer.step(2)
    assert len((await publish(publishing, 3, trainer, servers)).served) == 2


async def test_updates_time_out_at_servers_that_never_finish(
    tmp_path: Path, clock: Callable[[], float]
) -> None:
    report = await publish(publisher(tmp_path, start_timeout_s=60), 1, Trainer(), [Server("slow")])
    assert clock() >= 60
    assert "not done within 60 s" in report.replicas[0].failure


@pytest.mark.parametrize("honest", [1, 2])
async def test_servers_that_differ_from_each_other_are_detected(tmp_path: Path, honest: int) -> None:
    """Neither of two differing servers is trusted."""
    trainer, publishing = Trainer(), publisher(tmp_path)
    servers = [*(Server() for _ in range(honest)), Server("corrupt")]
    report = await publish(publishing, 1, trainer, servers)
    assert served(report) == (servers[:2] if honest == 2 else [])
    assert "not those of most servers" in report.replicas[-1].failure
    assert await publishing.restore(cast(VllmClient, servers[-1])) is (honest == 1)


async def test_restarted_servers_get_the_current_version(tmp_path: Path) -> None:
    trainer, server, publishing = Trainer(), Server(), publisher(tmp_path)
    assert not await publishing.restore(cast(VllmClient, server)), "there is nothing to restore yet"
    trainer.step(1)
    await publish(publishing, 1, trainer, [server])
    restarted = Server()
    trainer.step(2)  # the next update has begun
    assert await publishing.restore(cast(VllmClient, restarted))
    assert await restarted.checksums() == await server.checksums()
    assert not await publishing.restore(cast(VllmClient, Server("stale")))
    report = await publish(publishing, 2, trainer, [server, restarted])
    assert len(report.served) == 2


async def test_untrained_weights_are_loaded_from_the_stored_folder(tmp_path: Path) -> None:
    trainer, stored = Trainer(), tmp_path / "model"
    trainer.step(1)
    await trainer.send_weights(WriteFolder(folder=stored, dtype=torch.float32))
    publishing, servers = publisher(tmp_path, stored=stored), [Server(), Server("stale")]
    report = await publish(publishing, 0, trainer, servers)
    assert served(report) == servers[:1]
    assert "load model" in servers[0].calls
    assert not (tmp_path / "weights").exists()
    restarted = Server()
    assert await publishing.restore(cast(VllmClient, restarted))
    assert await restarted.checksums() == await servers[0].checksums()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


async def test_unchanged_weights_are_proven_too(tmp_path: Path) -> None:
    trainer, server, publishing = Trainer(), Server(), publisher(tmp_path)
    for version in (1, 2):
        assert (await publish(publishing, version, trainer, [server])).served
    server.fault = "corrupt"
    report = await publish(publishing, 3, trainer, [server])
    assert "changed, though its published tensors did not" in report.replicas[0].failure


async def test_failed_writes_leave_no_files(tmp_path: Path) -> None:
    trainer, server, publishing = Trainer(), Server(), publisher(tmp_path)
    await publish(publishing, 1, trainer, [server])
    trainer.failure = OSError("no space left")
    with pytest.raises(PublicationError, match="no space left"):
        await publish(publishing, 2, trainer, [server])
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["1"]
    assert server.version == 1
    assert await publishing.restore(cast(VllmClient, Server()))


async def test_freezing_updates_check_the_cache_of_idle_servers(tmp_path: Path) -> None:
    """A pause in vLLM drops all caches, including those of frozen requests."""
    trainer, publishing = Trainer(), publisher(tmp_path, in_flight="keep")
    quiet, full, cached = Server(), Server("full"), Server("cached")
    report = await publish(publishing, 1, trainer, [quiet, full, cached])
    steps = ["pause keep", "load 1", "reset", "resume", "generate"]
    assert quiet.calls == ["generate", *steps]
    assert full.calls == steps, "a prompt more would wait for a place"
    assert [bool(replica.failure) for replica in report.replicas] == [False, False, True]
    assert "its prefix cache was not reset" in report.replicas[2].failure


@dataclass(frozen=True)
class Failing:
    dtype: torch.dtype = torch.float32

    def __call__(self, weights: WeightStream) -> None:
        next(weights.tensors)
        raise OSError("the connection was cut")


@dataclass(frozen=True)
class Direct:
    """Consumer that copies weights into the servers' models, in place of GPUs."""

    servers: tuple[Server, ...]
    dtype: torch.dtype = torch.float32

    def __call__(self, weights: WeightStream) -> SentWeights:
        digests = {}
        for name, tensor in weights.tensors:
            digests[name] = tensor_digest(tensor)
            for server in self.servers:
                assert server.paused.is_set()
                server.model.state_dict()[name].copy_(tensor)
        return SentWeights(digests=digests, num_bytes=1)


@dataclass(frozen=True)
class Gpus:
    """``LiveTransfer`` without GPUs."""

    works: bool

    def consumer(self, clients: Any, dtype: torch.dtype) -> Any:
        return Direct(tuple(clients)) if self.works else Failing(dtype)


@pytest.mark.parametrize("works", [True, False])
async def test_live_transfers_fall_back_to_files(tmp_path: Path, works: bool) -> None:
    trainer, servers = Trainer(), [Server(), Server("gone")]
    publishing = publisher(tmp_path, live=cast(LiveTransfer, Gpus(works)))
    trainer.step(1)
    report = await publish(publishing, 1, trainer, servers)
    assert served(report) == servers[:1]
    assert (tmp_path / "weights" / "1").exists() is not works
    assert servers[0].version == 1
    restarted = Server()
    assert await publishing.restore(cast(VllmClient, restarted))
    assert await restarted.checksums() == await servers[0].checksums()
    if works:
        await publish(publishing, 2, trainer, servers[:1])
        trainer.step(2)
        assert not await publishing.restore(cast(VllmClient, Server())), "the trainer has gone on"
        assert not (tmp_path / "weights" / "2").exists()


@pytest.mark.parametrize("works", [True, False])
async def test_servers_resume_when_the_trainer_fails_during_the_transfer(tmp_path: Path, works: bool) -> None:
    trainer, server = Trainer(failure=TrainerError("a rank ended")), Server()
    publishing = publisher(tmp_path, live=cast(LiveTransfer, Gpus(works)))
    with pytest.raises(TrainerError, match="a rank ended"):
        await publish(publishing, 1, trainer, [server])
    assert not server.paused.is_set()


def test_adapters_are_written_in_the_peft_format(tmp_path: Path) -> None:
    tensors = {"base_model.model.a.lora_A.weight": torch.ones(2, 3)}
    stream = WeightStream(infos={}, tensors=iter(tensors.items()), adapter={"r": 2})
    sent = WriteFolder(folder=tmp_path / "policy-1", dtype=torch.float32, base="base")(stream)
    assert set(sent.digests) == set(tensors)
    written = {path.name for path in (tmp_path / "policy-1").iterdir()}
    assert written == {"adapter_model.safetensors", "adapter_config.json"}
    settings = json.loads((tmp_path / "policy-1" / "adapter_config.json").read_text())
    assert settings == {"r": 2, "base_model_name_or_path": "base"}


@pytest.mark.parametrize(
    ("transfer", "on_gpu", "ranks", "has_vllm", "found"),
    [
        ("auto", False, 1, True, "disk"),
        ("auto", True, 8, False, "disk"),
        ("auto", True, 8, True, "nccl"),
        ("disk", True, 1, True, "disk"),
        ("ipc", True, 1, True, "ipc"),
        ("ipc", True, 2, True, "shares the memory of one device"),
        ("ipc", True, 1, False, "needs vllm in the trainer's environment"),
        ("nccl", False, 1, True, "is trained on the CPU"),
    ],
)
def test_weight_transfer_is_chosen_by_the_machine(
    monkeypatch: pytest.MonkeyPatch, transfer: Any, on_gpu: bool, ranks: int, has_vllm: bool, found: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found" if has_vllm else None)
    config = VllmConfig(transfer=transfer)
    if " " in found:
        with pytest.raises(ConfigError, match=found):
            choose_transfer(config, on_gpu=on_gpu, ranks=ranks)
        return
    live = choose_transfer(config, on_gpu=on_gpu, ranks=ranks)
    assert (live.way if live else "disk") == found
    if live is not None:
        assert json.loads(live.server_arguments()[1]) == {"backend": found}
        assert bool(live.server_environment()) is (found == "ipc")


def test_running_servers_get_files_unless_a_transfer_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found")
    addresses = ("http://127.0.0.1:1",)
    assert choose_transfer(VllmConfig(addresses=addresses), on_gpu=True, ranks=1) is None
    live = choose_transfer(VllmConfig(addresses=addresses, transfer="nccl"), on_gpu=True, ranks=1)
    assert live is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_digest_changes_with_any_bit(dtype: torch.dtype) -> None:
    tensor = torch.ones(5_000_000, dtype=dtype)
    digest, bits = tensor_digest(tensor), tensor.view(torch.int16 if dtype.itemsize == 2 else torch.int32)
    assert tensor_digest(tensor.clone()) == digest
    for places in ([0], [4_999_999], [7, 4_300_000], [1, 2]):
        bits[places] ^= 1
        assert tensor_digest(tensor) != digest
        bits[places] ^= 1
    assert tensor_digest(tensor.roll(1)) == digest
    bits[0] ^= 1
    assert tensor_digest(tensor.roll(1)) != tensor_digest(tensor)


def test_probes_cover_the_vocabulary_and_never_repeat() -> None:
    probes = [probe_ids(version, vocabulary=1000, max_context=4096) for version in range(50)]
    assert len(set(probes)) == 50
    assert all(len(probe) == 256 for probe in probes)
    assert len({token for probe in probes for token in probe}) > 990
    assert len(probe_ids(1, vocabulary=10, max_context=64)) == 62


def test_tolerances_distinguish_rounding_from_other_weights() -> None:
    expected = [-8.0] * 256
    noise = torch.randn(256, generator=torch.Generator().manual_seed(0)).double()
    for size, allowed, is_same in ((2e-5, EXACT, True), (1e-3, EXACT, False), (0.1, ROUNDED, True),
                                   (0.5, ROUNDED, False)):  # fmt: skip
        logprobs = (torch.tensor(expected, dtype=torch.float64) + size * noise).tolist()
        assert (not compare_logprobs(logprobs, expected, allowed)) is is_same


def test_a_shard_may_stay_the_same_while_another_changes() -> None:
    before = {f"tp{rank}:model.layers.0.mlp.experts.w13_weight": f"{rank}" for rank in "01"}
    after = {**before, "tp1:model.layers.0.mlp.experts.w13_weight": "other"}
    name = "model.layers.0.mlp.experts.7.gate_proj.weight"
    assert not check_changes(before, after, {name: 1}, {name: 2})
    assert "layer 0" in check_changes(before, before, {name: 1}, {name: 2})
    assert "layer 0" in check_changes(before, after, {name: 1}, {name: 1})
    assert "other names" in check_changes(before, {**after, "tp0:x": "1"}, {name: 1}, {name: 2})


def test_layouts_are_compared_separately() -> None:
    first, second = {"tp0:a": "1"}, {"tp0:a": "2"}
    wide = {"tp0:a": "3", "tp1:a": "4"}
    assert find_deviating([first, wide, None, first, second], {}) == [False, False, False, False, True]
    assert find_deviating([second, wide], {frozenset(first): first}) == [True, False]

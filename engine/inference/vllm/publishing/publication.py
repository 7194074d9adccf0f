"""Publication of new weights to vLLM servers; each server has to prove that it serves them.

    write          the trainer's weights as files, once for all servers (not with nccl and ipc)
    per server, all at the same time:
        plant      a prompt in the prefix cache, which the reset has to remove
        pause      according to ``policy.vllm.in_flight``
        load       and stamp the version; LoRA adapters are loaded beside the old ones without a pause
        reset      the prefix cache
        resume     only the proof's requests are sent until it is proven
        prove      log-probabilities of a probe, checksums, removal of the planted prompt
    compare        checksums of all servers

A server that fails or exceeds the time limit is reported with the reason; it must not be sampled from.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

import structlog
import torch

from engine.config.policies import VllmConfig
from engine.errors import EngineError, PublicationError
from engine.inference.base import WeightConsumer, WeightSource
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.publishing.live_transfer import LiveTransfer
from engine.inference.vllm.publishing.proof import (
    Checksums,
    Digests,
    check_changes,
    find_deviating,
    probe_ids,
    tolerance,
)
from engine.inference.vllm.publishing.server_update import NotProvenError, ReplicaProof, ServerUpdate, Version
from engine.inference.vllm.publishing.transfer import SentWeights, WriteFolder

_Work: TypeAlias = Callable[[ServerUpdate], Awaitable[Checksums | None]]
"""Function that runs the steps of one server's update and returns its proven checksums."""

log = structlog.get_logger("engines")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Facts about the model that the servers sample and the trainer trains."""

    vocabulary: int
    """Number of token ids."""
    max_context: int
    """Maximum length of a prompt and its response, tokens."""
    dtype: torch.dtype
    """Type in which the servers compute."""
    exact_trainer: bool = True
    """True where the trainer's matrix products are in float32."""
    base: str = ""
    """Folder that the servers started from, for the settings of adapters."""
    has_adapters: bool = False
    """True where LoRA adapters are trained, over frozen weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationReport:
    """Outcome of a publication, in the order of the given clients."""

    version: int
    replicas: tuple[ReplicaProof, ...]
    num_bytes: int
    seconds: float

    @property
    def served(self) -> list[VllmClient]:
        """Return the clients of the servers that have proven to serve the version."""
        return [replica.client for replica in self.replicas if not replica.failure]

    def metrics(self) -> dict[str, float]:
        """Return the publication's metrics."""
        parity = [replica.difference for replica in self.replicas if not replica.failure]
        metrics = {"publish/seconds": self.seconds, "publish/replicas": float(len(parity))}
        metrics["publish/mib"] = self.num_bytes / 2**20
        return metrics | ({"publish/parity": max(parity)} if parity else {})


class Publisher:
    """Publisher of a policy's weights to servers; one call at a time.

    Args:
        config: treatment of requests in flight, time limits.
        model: facts about the served model.
        folder: folder for weight files only; servers must be able to read it.
        live: transfer without files; None: files, which are also the fallback.
        stored: folder with the weights of a policy that is never trained: servers read it and nothing is
            written; None: weights are written to ``folder``.
    """

    def __init__(
        self,
        config: VllmConfig,
        model: ServedModel,
        *,
        folder: Path,
        live: LiveTransfer | None = None,
        stored: Path | None = None,
    ) -> None:
        self._mode = config.in_flight
        self._timeout_s = config.start_timeout_s
        """Maximum time of a server's update, seconds; beyond it a restart is cheaper."""
        self._model = model
        self._folder = folder
        self._stored = stored
        self._live = None if model.has_adapters else live
        self._allowed = tolerance(model.dtype, exact_trainer=model.exact_trainer)
        self._weights: WeightSource | None = None
        """Source of the version's weights; None where files exist: it may hold a whole model."""
        self._version: Version | None = None
        self._sent = SentWeights(digests={}, num_bytes=0)
        self._reference: dict[frozenset[str], Checksums] = {}
        """Proven checksums of the version for each layout, by the names of its tensors."""
        self._proven: WeakKeyDictionary[VllmClient, tuple[Digests, Checksums]] = WeakKeyDictionary()
        """Published digests and own checksums of the version that each server has last proven."""

    @property
    def model(self) -> str:
        """Return the name by which requests select the current weights: an adapter's, else empty."""
        return "" if self._version is None else self._version.adapter

    async def publish(
        self, version: int, weights: WeightSource, clients: Sequence[VllmClient]
    ) -> PublicationReport:
        """Publish the trainer's current weights to every server; callers send no requests meanwhile.

        Args:
            version: number of the weights, never reused.
            weights: the trainer.
            clients: clients of the servers that are up.

        Raises:
            PublicationError: the weights could not be sent.
            TrainerError: the trainer failed.
        """
        began, previous = time.monotonic(), self._version
        sent = None if self._live else await self._write(version, weights)
        current = await self._begin(version, weights)
        updates = [self._update_of(client, current) for client in clients]
        if sent is None:
            sent, proofs = await self._update_live(version, weights, updates)
        else:
            proofs = await self._each(updates, self._update_by_files)
        self._sent = sent
        proofs = self._compared(proofs, current)
        await asyncio.gather(*(self._unload(proof.client, previous) for proof in proofs if not proof.failure))
        await asyncio.to_thread(self._remove_others, current, previous)
        return PublicationReport(
            version=version,
            replicas=tuple(proofs),
            num_bytes=sent.num_bytes,
            seconds=time.monotonic() - began,
        )

    async def restore(self, client: VllmClient) -> bool:
        """Update a restarted server to the current version; return whether it proves to serve it."""
        version = self._version
        if version is None:
            return False
        if not version.folder.exists() and not await self._write_again(version):
            log.warning(
                "weights_not_restored",
                server=client.address,
                why="its files are gone and the trainer has newer weights",
            )
            return False
        self._proven.pop(client, None)
        (proof,) = await self._each([self._update_of(client, version)], self._restore_by_files)
        (proof,) = self._compared([proof], version)
        return not proof.failure

    # --- weights -----------------------------------------------------------------------------------

    async def _write(self, version: int, weights: WeightSource) -> SentWeights:
        if self._stored is not None:
            return SentWeights(digests={}, num_bytes=0)
        folder = self._folder / str(version)
        consumer = WriteFolder(folder=folder, dtype=self._model.dtype, base=self._model.base)
        sent: SentWeights = await weights.send_weights(consumer)
        return sent

    async def _write_again(self, version: Version) -> bool:
        """Write the files of a version sent without; return whether the trainer still has its weights."""
        if self._weights is None:
            return False
        sent = await self._write(version.number, self._weights)
        if sent.digests == self._sent.digests:
            return True
        await asyncio.to_thread(shutil.rmtree, version.folder)
        return False

    async def _begin(self, number: int, weights: WeightSource) -> Version:
        """Make the trainer's weights the current version."""
        probe = probe_ids(number, vocabulary=self._model.vocabulary, max_context=self._model.max_context)
        expected = await weights.logprobs(probe)
        if not all(map(math.isfinite, expected)):
            raise PublicationError(f"the trainer's log-probabilities of version {number} are not finite")
        self._weights, self._reference = weights if self._live else None, {}
        self._version = Version(
            number=number,
            probe=probe,
            expected=expected,
            folder=self._stored or self._folder / str(number),
            adapter=f"policy-{number}" if self._model.has_adapters else "",
        )
        return self._version

    def _remove_others(self, version: Version, previous: Version | None) -> None:
        """Remove files that no server reads; requests in flight may still use the previous adapter's."""
        kept = {version.folder}
        if version.adapter and previous is not None:
            kept.add(previous.folder)
        for path in self._folder.iterdir() if self._folder.exists() else ():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    # --- servers -----------------------------------------------------------------------------------

    def _update_of(self, client: VllmClient, version: Version) -> ServerUpdate:
        return ServerUpdate(client, version, mode=self._mode, allowed=self._allowed)

    async def _each(self, updates: Sequence[ServerUpdate], work: _Work) -> list[ReplicaProof]:
        """Run the servers' updates concurrently; return each server's outcome."""
        return list(await asyncio.gather(*(self._outcome(update, work) for update in updates)))

    async def _outcome(self, update: ServerUpdate, work: _Work) -> ReplicaProof:
        try:
            async with asyncio.timeout(self._timeout_s):
                return update.outcome(checksums=await work(update))
        except TimeoutError:
            failure = f"its update was not done within {self._timeout_s:g} s (policy.vllm.start_timeout_s)"
        except (EngineError, NotProvenError) as error:
            failure = str(error)
        except BaseException:
            await update.give_up()
            raise
        await update.give_up()
        return update.outcome(failure)

    async def _update_by_files(self, update: ServerUpdate) -> Checksums:
        if self._model.has_adapters:
            await update.load()
        else:
            await update.prepare()
            await update.load()
            await update.finish()
        return await update.prove()

    async def _restore_by_files(self, update: ServerUpdate) -> Checksums:
        await update.load()
        if not self._model.has_adapters:
            await update.finish()
        return await update.prove()

    def _compared(self, found: Sequence[ReplicaProof], version: Version) -> list[ReplicaProof]:
        """Return the outcomes after comparing checksums with the previous ones and with one another."""
        checked = [self._checked(proof, version) for proof in found]
        deviating = find_deviating(
            [None if proof.failure else proof.checksums for proof in checked], self._reference
        )
        for i, is_deviating in enumerate(deviating):
            if is_deviating:
                reason = "its checksums are not those of most servers with the same weights"
                checked[i] = replace(checked[i], failure=reason)
        for proof in checked:
            if proof.failure:
                log.warning(
                    "weights_not_proven",
                    server=proof.client.address,
                    version=version.number,
                    why=proof.failure,
                )
            elif proof.checksums is not None:
                self._proven[proof.client] = self._sent.digests, proof.checksums
                self._reference.setdefault(frozenset(proof.checksums), proof.checksums)
        return checked

    def _checked(self, one: ReplicaProof, version: Version) -> ReplicaProof:
        before = self._proven.pop(one.client, None)
        if one.failure or one.checksums is None or before is None:
            return one
        digests, checksums = before
        sent = digests if version.adapter else self._sent.digests  # adapters do not change them
        return replace(one, failure=check_changes(checksums, one.checksums, digests, sent))

    async def _unload(self, client: VllmClient, previous: Version | None) -> None:
        """Unload the previous version's adapter; its requests in flight continue to use it."""
        if previous is None or not previous.adapter or previous.adapter == self.model:
            return
        try:
            await client.unload_adapter(previous.adapter)
        except EngineError as error:  # e.g. on a server started after that version
            log.debug("adapter_not_unloaded", server=client.address, adapter=previous.adapter, why=str(error))

    # --- without files -----------------------------------------------------------------------------

    async def _update_live(
        self, version: int, weights: WeightSource, updates: Sequence[ServerUpdate]
    ) -> tuple[SentWeights, list[ReplicaProof]]:
        """Update all servers that pause in time by one transfer, or by files where it fails."""
        assert self._live is not None
        paused = await self._each(updates, ServerUpdate.prepare)
        ready = [update for update, proof in zip(updates, paused, strict=True) if not proof.failure]
        consumer = self._live.consumer([update.client for update in ready], self._model.dtype)
        try:
            sent, deliver = await self._send_live(version, weights, consumer)
        except BaseException:
            await asyncio.gather(*(update.give_up() for update in ready))
            raise

        async def complete(update: ServerUpdate) -> Checksums:
            await deliver(update)
            await update.finish()
            return await update.prove()

        proven = iter(await self._each(ready, complete))
        return sent, [proof if proof.failure else next(proven) for proof in paused]

    async def _send_live(
        self, version: int, weights: WeightSource, consumer: WeightConsumer
    ) -> tuple[SentWeights, Callable[[ServerUpdate], Awaitable[None]]]:
        """Send the weights, or write them where that fails; return each server's next step."""
        try:
            return await weights.send_weights(consumer), ServerUpdate.stamp
        except PublicationError as error:
            log.warning("live_transfer_failed", version=version, why=str(error), instead="files")
            return await self._write(version, weights), ServerUpdate.load

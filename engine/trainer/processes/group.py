"""Trainer on several ranks: processes that run the same program, and their controller.

The orchestrator stays one process. It plans the update and sends every rank its own rows; each forwards
them and all end with the same weights, sharded. The first rank then sends the whole weights to the sampler's
model, where there is one. ``start`` starts the processes, here or on other machines.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.errors import TrainerError, TrainyardError
from engine.inference.base import WeightConsumer
from engine.processes.launchers import ProcessLauncher
from engine.trainer.batch import Row
from engine.trainer.learner import Learner, Share, StepResult
from engine.trainer.processes.link import RankListener, await_end, shut_down
from engine.trainer.processes.rank import RankSettings, tensor_bytes
from engine.trainer.processes.start import RankProcesses
from engine.trainer.processes.watch import RankWatch
from engine.trainer.shards import Fingerprint

_END_S = 10
"""Time for ranks to end by themselves, seconds."""


class TrainerGroup(Learner):
    """``Trainer`` on ``data_parallel`` × ``context_parallel`` ranks.

    Args:
        settings: what every rank is told.
        launcher: creates the processes; None: people start them with ``torchrun``.
        sampler: receives the whole weights after every update; None: nothing here samples.

    Raises:
        TrainerError: a rank did not start.
        PreflightError: the Ray cluster of the ranks cannot be used.
    """

    def __init__(
        self, settings: RankSettings, launcher: ProcessLauncher | None, *, sampler: nn.Module | None = None
    ) -> None:
        config = settings.config
        super().__init__(settings.algorithm, config, max_context=settings.max_context, seed=settings.seed)
        self._sampler = sampler
        self._size = config.data_parallel * config.context_parallel
        self._ranks = RankProcesses(launcher)
        self._commands: dict[int, Connection] = {}
        self._events: dict[int, Connection] = {}
        self._watch: RankWatch | None = None
        self._closed = False
        try:
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def abandon(self) -> None:
        """Stop the ranks at once, but for a checkpoint being written; called from another thread."""
        assert self._watch is not None
        self._watch.abandon()

    def save(self, folder: Path) -> Future[dict[str, Fingerprint]]:
        """Let every rank write its shards, as ``Trainer.save``. Raises TrainerError."""
        assert self._watch is not None
        self._watch.check()
        saving = self._watch.expect_shards()
        self._ask("save", folder)
        return saving

    def restore(self, folder: Path) -> None:
        """Let every rank read its shards, as ``Trainer.restore``. Raises CheckpointError."""
        self._ask("restore", folder)
        if self._sampler is not None and self._config.lora_rank:  # it was opened without the adapters' values
            self._receive_weights(self._sampler)

    def close(self) -> None:
        """Stop the ranks; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        deadline = time.monotonic() + (_END_S if self._watch is not None else 0)
        for connection in self._commands.values():
            shut_down(connection, how=socket.SHUT_WR)
        for connection in self._commands.values():
            await_end(connection, deadline - time.monotonic())
        self._ranks.close(deadline)
        for connection in (*self._commands.values(), *self._events.values()):
            connection.close()

    def _open(self, settings: RankSettings) -> None:
        config = settings.config
        listener = self._ranks.listen()
        try:
            self._ranks.start(self._size, listener)
            self._accept(listener, config.rank_timeout_s)
        finally:
            listener.close()
        events = [self._events[rank] for rank in range(self._size)]
        self._watch = RankWatch(events, timeout_s=config.rank_timeout_s, stop=self._stop)
        for rank in range(self._size):
            self._send(rank, settings)
        self._answers()

    def _accept(self, listener: RankListener, timeout_s: float) -> None:
        """Wait until both connections of every rank are there."""
        deadline = time.monotonic() + timeout_s
        while len(self._commands) + len(self._events) < 2 * self._size:
            self._ranks.check()
            if time.monotonic() > deadline:
                missing = sorted(set(range(self._size)) - (set(self._commands) & set(self._events)))
                raise TrainerError(
                    f"rank {missing[0]} of the trainer did not connect to {listener.address} within "
                    f"{timeout_s:g} s"
                )
            if (accepted := listener.accept_rank(1.0)) is not None:
                rank, purpose, connection = accepted
                (self._commands if purpose == "commands" else self._events)[rank] = connection

    def _stop(self) -> None:
        """End all ranks at once."""
        self._ranks.kill()
        for connection in (*self._commands.values(), *self._events.values()):
            shut_down(connection)

    def _divergences(self, shares: Sequence[Sequence[Row]], temperature: float) -> dict[int, float]:
        for rank, rows in self._dealt(shares):
            self._send(rank, ("divergences", (len(rows), temperature)))
            self._send_rows(rank, rows)
        sums: dict[int, float] = defaultdict(float)
        for found in self._answers()[:: self._config.context_parallel]:
            for index, total in found.items():
                sums[index] += total
        return sums

    def _learn(self, shares: Sequence[Share]) -> StepResult:
        for rank, share in self._dealt(shares):
            counts = [len(rows) for rows in share.steps]
            self._send(rank, ("learn", (counts, share.rate, share.temperature, share.traced)))
            for rows in share.steps:
                self._send_rows(rank, rows)
        result = self._answers()[0]
        assert isinstance(result, StepResult)
        if self._sampler is not None and result.meter.steps:
            self._receive_weights(self._sampler)
        return result

    def _logprobs(self, row: Row) -> list[float]:
        for rank in range(self._size):
            self._send(rank, ("logprobs", (row,)))
        found: list[float] = self._answers()[0]
        return found

    def _send_weights(self, consumer: WeightConsumer) -> Any:
        assert self._watch is not None
        self._watch.check()
        for rank in range(self._size):
            self._send(rank, ("send_weights", (consumer,)))
        return self._answers()[0]

    @torch.no_grad()
    def _receive_weights(self, sampler: nn.Module) -> None:
        adapted = bool(self._config.lora_rank)
        weights = {name: p for name, p in sampler.named_parameters() if p.requires_grad or not adapted}
        for rank in range(self._size):
            self._send(rank, ("weights", ({name: weight.dtype for name, weight in weights.items()},)))
        for _ in weights:
            _, name = self._receive(0)
            buffer = torch.empty(weights[name].shape, dtype=weights[name].dtype)
            content, received = tensor_bytes(buffer), 0
            while received < len(content):
                try:
                    received += self._commands[0].recv_bytes_into(content, received)
                except (EOFError, OSError):
                    raise self._failure() from None
            weights[name].copy_(buffer)
        self._answers()

    def _dealt(self, shares: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield ranks with the share of each; those along the context have the same."""
        for rank in range(self._size):
            yield rank, shares[rank // self._config.context_parallel]

    def _ask(self, method: str, *arguments: Any) -> None:
        for rank in range(self._size):
            self._send(rank, (method, arguments))
        self._answers()

    def _send_rows(self, rank: int, rows: Sequence[Row]) -> None:
        for row in rows:  # one by one: pickling them all at once would hold the interpreter
            self._send(rank, row)

    def _send(self, rank: int, message: Any) -> None:
        try:
            self._commands[rank].send(message)
        except OSError:
            raise self._failure() from None

    def _receive(self, rank: int) -> Any:
        try:
            return self._commands[rank].recv()
        except (EOFError, OSError):
            raise self._failure() from None

    def _answers(self) -> list[Any]:
        """Return the answers of all ranks, in their order."""
        answers: dict[int, Any] = {}
        errors: list[TrainyardError] = []
        while len(answers) < self._size:
            pending = {c: rank for rank, c in self._commands.items() if rank not in answers}
            for ready in wait(list(pending)):
                assert isinstance(ready, Connection)
                error, answers[pending[ready]] = self._receive(pending[ready])
                errors += [error] if error is not None else []
        if errors:
            raise errors[0]
        return [answers[rank] for rank in range(self._size)]

    def _failure(self) -> TrainerError:
        assert self._watch is not None
        failure = self._watch.failure()
        self.close()
        return failure

"""Program of one rank: ``python -m engine.trainer rank``, started by the controller or by ``torchrun``.

Ranks meet by the usual environment variables (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``,
``MASTER_PORT``) and connect to the controller (``link``), which sends the settings and then commands.
Each rank opens the policy itself. A rank ends when its controller does.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.errors import CheckpointError, PublicationError, TrainerError, TrainyardError, describe_error
from engine.inference.base import WeightConsumer
from engine.models.base import LanguageModel
from engine.models.loader import open_model
from engine.models.precision import weight_type
from engine.trainer.batch import Row
from engine.trainer.learner import Share, StepResult
from engine.trainer.processes.link import connect
from engine.trainer.ranks import Ranks
from engine.trainer.scorer import Unread
from engine.trainer.shards import Fingerprint
from engine.trainer.trainer import Trainer

BEAT_S = 1.0
"""Interval of a rank's signs of life, seconds."""
CHUNK_BYTES = 4 * 2**20
"""Size of the messages in which weights are sent: receiving one holds the interpreter for a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """Settings of all ranks of a trainer."""

    policy: str
    """Reference of the policy to train, as in ``policy.checkpoint``; every machine must have it."""
    reference: str | None
    """Reference of the KL term's frozen policy, where the objective has one."""
    home: Path
    algorithm: AlgorithmConfig
    config: TrainerConfig
    max_context: int
    seed: int
    device: str
    """``cpu`` or ``cuda``: each rank uses the device with its local number."""


def serve() -> int:
    """Run the rank until its controller closes the connection; return the exit code."""
    rank = int(os.environ["RANK"])
    commands, events = connect(rank, "commands"), _Events(connect(rank, "events"))
    try:
        _Rank(commands.recv(), commands, events).answer()
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        events.code = 0  # the controller has closed the connection
        return 0
    except TrainyardError as error:
        events.send("failed", str(error))
        return 1
    except Exception:
        events.send("failed", traceback.format_exc())
        return 1
    return 0


class _Events:
    """The rank's end of the connection ``events``; ends the process when the controller is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.code = 1
        """Exit code for the end of the connection: before the commands' it is a failure."""
        self._lock = threading.Lock()
        for target in (self._beat, self._watch):
            threading.Thread(target=target, name=f"rank{target.__name__}", daemon=True).start()

    def send(self, kind: str, content: Any = None) -> None:
        """Send an event; without a controller it is dropped."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send((kind, content))

    def _beat(self) -> None:
        while True:
            self.send("alive")
            time.sleep(BEAT_S)

    def _watch(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            self._connection.recv()
        os._exit(self.code)  # maybe in the middle of a collective that never returns


class _Rank:
    def __init__(self, settings: RankSettings, commands: Connection, events: _Events) -> None:
        self._commands, self._events = commands, events
        config = settings.config
        device = _device(settings.device)
        shape = config.data_parallel, config.context_parallel
        size = int(os.environ["WORLD_SIZE"])
        if size != shape[0] * shape[1]:
            raise TrainerError(
                f"{size} ranks were started; expected trainer.data_parallel × trainer.context_parallel = "
                f"{shape[0]} × {shape[1]}: start as many"
            )
        # Optimizer state in host memory and checkpoints need collectives on the CPU, too.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=config.rank_timeout_s))
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "context"))
        self._is_first = dist.get_rank() == 0
        reference = None
        if settings.reference is not None:
            reference = open_policy(settings.reference, settings.home, device)
        self._trainer = Trainer(
            open_policy(settings.policy, settings.home, device, weight_type(config)),
            algorithm=settings.algorithm,
            config=config,
            max_context=settings.max_context,
            seed=settings.seed,
            reference=reference,
            ranks=Ranks.of(mesh),
        )

    def answer(self) -> None:
        """Answer commands until the controller closes the connection."""
        self._commands.send((None, None))
        while True:
            method, arguments = self._commands.recv()
            try:
                answer: tuple[TrainyardError | None, Any] = None, getattr(self, f"_{method}")(*arguments)
            except (CheckpointError, PublicationError) as error:
                answer = error, None
            self._commands.send(answer)

    def _rows(self, count: int) -> list[Row]:
        return [self._commands.recv() for _ in range(count)]

    def _divergences(self, count: int, temperature: float) -> dict[int, float]:
        return self._trainer.divergences(self._rows(count), temperature)

    def _logprobs(self, row: Row) -> list[float]:
        return self._trainer.score_row(row)

    def _send_weights(self, consumer: WeightConsumer) -> Any:
        return self._trainer.send_weights(consumer)

    def _learn(
        self, counts: Sequence[int], rate: float, temperature: float, traced: frozenset[int]
    ) -> StepResult | None:
        steps = [self._rows(count) for count in counts]
        share = Share(steps=steps, rate=rate, temperature=temperature, traced=traced)
        result = self._trainer.learn(share)
        return result if self._is_first else None

    def _weights(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Gather the weights one by one; the first rank sends them before its answer."""
        for name, whole in self._trainer.weights():
            if not self._is_first:
                continue
            tensor = whole.to("cpu", dtypes[name]).contiguous()
            self._commands.send((None, name))
            content = tensor_bytes(tensor)
            for start in range(0, len(content), CHUNK_BYTES):
                self._commands.send_bytes(content[start : start + CHUNK_BYTES])

    def _save(self, folder: Path) -> None:
        self._trainer.save(folder).add_done_callback(self._report_written)

    def _report_written(self, saving: Future[dict[str, Fingerprint]]) -> None:
        error = saving.exception()
        if error is None:
            self._events.send("written", saving.result())
        else:
            self._events.send("unwritten", describe_error(error))

    def _restore(self, folder: Path) -> None:
        self._trainer.restore(folder)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor of the CPU, not a copy."""
    flat: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _device(kind: str) -> torch.device:
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def open_policy(
    ref: str,
    home: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> LanguageModel | Unread:
    """Return a policy, whose stored weights are read when it is sharded."""
    opened = open_model(ref, home=home, dtype=dtype, read=False)
    if opened.source is None:
        return opened.model.to(device)
    return Unread(model=opened.model, source=opened.source, device=device)

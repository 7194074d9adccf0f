"""Trainer on several ranks: child processes that run the same ``Trainer``, and their controller.

The orchestrator stays one process. It sends every rank the same groups; each forwards its share and
all end with the same weights, sharded. The first rank then writes the whole weights into the policy's
own tensors, which the processes share, so that the sampler sees an update exactly as it does with one rank.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import tempfile
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.errors import CheckpointError, TrainerError, UpdateAbandonedError
from engine.models.builtin.transformer import Transformer
from engine.trainer.ranks import Ranks
from engine.trainer.trainer import Trainer, UpdateResult
from engine.types import Group

_POLL_S = 0.1
"""Interval at which ``abandon`` is noticed while ranks compute, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    algorithm: AlgorithmConfig
    config: TrainerConfig
    max_context: int
    seed: int
    store: str
    """Address of the rendezvous store."""


class TrainerGroup:
    """``Trainer`` on ``data_parallel`` × ``context_parallel`` ranks of this machine.

    Args:
        model: the policy's; its tensors are shared with the ranks, which write every update into them.
        algorithm: the objective.
        config: settings; with CUDA each rank uses the device of its number.
        max_context: the agent's limit in tokens.
        seed: decides which groups share an optimizer step.
        reference: the frozen reference policy of the KL term.

    Raises:
        TrainerError: a rank did not start.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        algorithm: AlgorithmConfig,
        config: TrainerConfig,
        max_context: int,
        seed: int,
        reference: Transformer | None = None,
    ) -> None:
        self._abandoned = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="trainyard-ranks-")
        settings = _Settings(
            algorithm=algorithm,
            config=config,
            max_context=max_context,
            seed=seed,
            store=f"file://{self._folder.name}/store",
        )
        context = torch.multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(config.data_parallel * config.context_parallel):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, theirs, settings, model, reference),
                daemon=True,
                name=f"rank-{rank}",
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._answers()

    def update(self, groups: Sequence[Group], *, temperature: float) -> UpdateResult:
        """Run ``Trainer.update`` on all ranks. Raises TrainerError when a rank failed or ended."""
        # One by one: pickling them all at once would hold the interpreter lock for seconds.
        pickled = [pickle.dumps(trajectory) for group in groups for trajectory in group.trajectories]
        bare = [(replace(group, trajectories=()), len(group.trajectories)) for group in groups]
        result = self._ask("update", bare, temperature, attached=pickled)
        assert isinstance(result, UpdateResult)
        return result

    def abandon(self) -> None:
        """Kill the ranks at once; called from another thread. Later use is rejected."""
        self._abandoned.set()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``Trainer.state_dict``; the optimizer's is in the shards."""
        state: dict[str, Any] = self._ask("state_dict")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state on all ranks, as ``Trainer.load_state_dict``. Raises CheckpointError."""
        self._ask("load_state_dict", state)

    def save_shards(self, folder: Path) -> bool:
        """Let every rank write its part, as ``Trainer.save_shards``."""
        return bool(self._ask("save_shards", folder))

    def load_shards(self, folder: Path) -> None:
        """Let every rank read its part, as ``Trainer.load_shards``. Raises CheckpointError."""
        self._ask("load_shards", folder)

    def close(self) -> None:
        """Stop the ranks; safe to call twice."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=0 if self._abandoned.is_set() else 5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def _ask(self, method: str, *arguments: Any, attached: Sequence[bytes] = ()) -> Any:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((method, arguments))
                for message in attached:
                    pipe.send_bytes(message)
            except OSError:
                raise self._ended(rank) from None
        return self._answers()

    def _ended(self, rank: int) -> TrainerError:
        self.close()
        return TrainerError(f"rank {rank} of the trainer ended unexpectedly")

    def _answers(self) -> Any:
        """Return the first rank's answer once all have answered; if one fails, stop them all."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            open_pipes = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            if self._abandoned.is_set():
                self.close()
                raise UpdateAbandonedError("the update was abandoned: go on from the last checkpoint")
            for ready in wait(open_pipes, timeout=_POLL_S):
                assert isinstance(ready, Connection)
                rank = self._pipes.index(ready)
                try:
                    error, answers[rank] = ready.recv()
                except (EOFError, OSError):
                    raise self._ended(rank) from None
                if isinstance(error, CheckpointError):
                    raise error
                if error is not None:
                    self.close()
                    raise TrainerError(f"rank {rank} of the trainer failed: {error}")
        return answers[0]


def _received(pipe: Connection, groups: Sequence[tuple[Group, int]]) -> list[Group]:
    """Return the groups, received one trajectory at a time."""
    return [replace(group, trajectories=tuple(pipe.recv() for _ in range(count))) for group, count in groups]


def _serve(
    rank: int, pipe: Connection, settings: _Settings, policy: Transformer, reference: Transformer | None
) -> None:
    """Run a rank: build the trainer, answer commands until the pipe closes."""
    try:
        trainer = _build(rank, settings, policy, reference)
        pipe.send((None, None))
        while True:
            method, arguments = pipe.recv()
            if method == "update":
                arguments = _received(pipe, arguments[0]), *arguments[1:]
            pipe.send(_answer(rank, trainer, policy, method, arguments))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
    except Exception:
        with contextlib.suppress(OSError):  # the group is being closed because another rank failed first
            pipe.send((traceback.format_exc(), None))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _build(rank: int, settings: _Settings, policy: Transformer, reference: Transformer | None) -> Trainer:
    config = settings.config
    device = next(policy.parameters()).device
    if device.type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    shape = config.data_parallel, config.context_parallel
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=settings.store, rank=rank, world_size=shape[0] * shape[1])
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "context"))
    return Trainer(
        copy.deepcopy(policy).to(device),
        algorithm=settings.algorithm,
        config=config,
        max_context=settings.max_context,
        seed=settings.seed,
        reference=None if reference is None else copy.deepcopy(reference).to(device),
        ranks=Ranks.of(mesh),
    )


def _answer(
    rank: int, trainer: Trainer, policy: Transformer, method: str, arguments: tuple[Any, ...]
) -> tuple[Exception | None, Any]:
    if method == "update":
        groups, temperature = arguments
        result = trainer.update(groups, temperature=temperature)
        weights = dict(policy.named_parameters())
        with torch.no_grad():
            for name, whole in trainer.weights():
                if rank == 0:
                    weights[name].copy_(whole)
        return None, result if rank == 0 else None
    try:
        return None, getattr(trainer, method)(*arguments)
    except CheckpointError as error:
        return error, None

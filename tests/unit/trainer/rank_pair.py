"""Two processes joined by gloo that run functions of tests: started once for all cases of a module."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from engine.trainer.ranks import Ranks


class RankPair:
    """Connections to the two ranks."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a module's function in both ranks; return what each returned."""
        for connection in self._connections:
            connection.send_bytes(pickle.dumps((function, arguments)))
        results = []
        for connection in self._connections:
            is_right, result = pickle.loads(connection.recv_bytes())
            assert is_right, result
            results.append(result)
        return results


@cache
def ranks_of(data: int, context: int) -> Ranks:
    """Return this rank's place in a mesh of that shape; only for functions that a pair runs."""
    return Ranks.of(init_device_mesh("cpu", (data, context), mesh_dim_names=("data", "context")))


def _serve(rank: int, folder: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    while True:
        try:
            function, arguments = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = True, function(*arguments)
        except Exception:
            answer = False, f"rank {rank}:\n{traceback.format_exc()}"
        connection.send_bytes(pickle.dumps(answer))


@contextmanager
def rank_pair(folder: Path, module: str) -> Iterator[RankPair]:
    """Start two ranks, which meet in an empty folder; one server imports the module for both."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    ours, processes = [], []
    for rank in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(rank, str(folder), there))
        process.start()
        there.close()
        ours.append(here)
        processes.append(process)
    try:
        yield RankPair(ours)
    finally:
        for connection, process in zip(ours, processes, strict=True):
            connection.close()
            process.kill()
            process.join()

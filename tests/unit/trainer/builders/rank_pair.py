"""A pair of gloo processes that run test functions, started once per module."""

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
        """Call a module-level function in both ranks and return their results."""
        for connection in self._connections:
            connection.send_bytes(pickle.dumps((function, arguments)))
        results = []
        for connection in self._connections:
            succeeded, result = pickle.loads(connection.recv_bytes())
            assert succeeded, result
            results.append(result)
        return results


@cache
def ranks_of(data: int, context: int) -> Ranks:
    """Return this rank's position in a mesh of the given shape; callable only inside a rank pair."""
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
    """Start two ranks that rendezvous in an empty folder; a fork server preloads the module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    connections, processes = [], []
    for rank in range(2):
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_serve, args=(rank, str(folder), child_end))
        process.start()
        child_end.close()
        connections.append(parent_end)
        processes.append(process)
    try:
        yield RankPair(connections)
    finally:
        for connection, process in zip(connections, processes, strict=True):
            connection.close()
            process.kill()
            process.join()

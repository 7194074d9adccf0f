"""Transfer of weights from the trainer's GPU to vLLM's, without files, by vLLM's own transfer engines.

The trainer's process imports vllm. One transfer serves all servers. Over NCCL the trainer is rank 0, followed
by the workers of each server in turn. Over CUDA IPC the workers open the trainer's memory, so that each needs
the trainer's device.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
from torch import Tensor

from engine.config.policies import VllmConfig
from engine.errors import ConfigError, Problem
from engine.inference.base import WeightStream
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.publishing.transfer import SentWeights, digested
from engine.processes.ports import free_port

Way = Literal["nccl", "ipc"]
_connections: list[_Connection] = []
"""This process's connection to its servers, reused for each version; at most one."""


def choose_transfer(config: VllmConfig, *, on_gpu: bool, ranks: int) -> LiveTransfer | None:
    """Return the configured transfer without files; None: files.

    Args:
        config: the servers' settings.
        on_gpu: whether the policy is trained on GPUs.
        ranks: processes that train it.

    Raises:
        ConfigError: the configured way is not possible here.
    """
    way, has_vllm = config.transfer, importlib.util.find_spec("vllm") is not None
    if way == "auto":
        # Attached servers were most likely started without a transfer engine.
        way = "nccl" if on_gpu and has_vllm and not config.addresses else "disk"
    if way == "disk":
        return None
    problem = ""
    if not on_gpu:
        problem = f"'{way}' sends weights from GPU to GPU, but the policy is trained on the CPU: use 'disk'"
    elif not has_vllm:
        problem = f"'{way}' needs vllm in the trainer's environment: install it there, or use 'disk'"
    elif way == "ipc" and ranks > 1:
        problem = f"'ipc' shares the memory of one device, but {ranks} ranks train the policy: use 'nccl'"
    if problem:
        raise ConfigError(Problem(problem, setting="policy.vllm.transfer"))
    return LiveTransfer(way=way, timeout_s=config.stall_timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTransfer:
    """Settings of transfers without files."""

    way: Way
    timeout_s: float
    """Maximum time of a transfer, seconds."""

    def consumer(self, clients: Sequence[VllmClient], dtype: torch.dtype) -> SendLive:
        """Return the consumer that sends weights to these servers."""
        return SendLive(
            way=self.way,
            servers=tuple((client.address, tuple(client.headers.items())) for client in clients),
            dtype=dtype,
            timeout_s=self.timeout_s,
        )

    def server_arguments(self) -> tuple[str, ...]:
        """Return the command-line arguments of servers for the transfer."""
        return ("--weight-transfer-config", f'{{"backend": "{self.way}"}}')

    def server_environment(self) -> dict[str, str]:
        """Return the environment variables of servers: CUDA memory handles are sent as pickles."""
        return {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if self.way == "ipc" else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLive:
    """Consumer that sends weights to servers and keeps the connection for the next version."""

    way: Way
    servers: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Address of each server, and the headers that authorize requests to it."""
    dtype: torch.dtype
    timeout_s: float

    def __call__(self, weights: WeightStream) -> SentWeights:
        """Send the weights. Raises TimeoutError and vLLM's errors, after closing the connection."""
        digests: dict[str, int] = {}
        source = WeightStream(
            infos=weights.infos, tensors=_on_gpu(digested(weights.tensors, digests)), adapter=weights.adapter
        )
        try:
            connection = self._connected(source)
            connection.send(source, self.timeout_s)
        except BaseException:
            _disconnect()
            raise
        num_bytes = sum(info.num_bytes for info in weights.infos.values())
        return SentWeights(digests=digests, num_bytes=num_bytes)

    def _connected(self, stream: WeightStream) -> _Connection:
        if _connections and _connections[0].settings != self:
            _disconnect()
        if not _connections:
            _connections.append(_connect(self, stream))
        return _connections[0]


@dataclass(slots=True, kw_only=True)
class _Connection:
    settings: SendLive
    source: Any
    """The vLLM ``WeightSource`` that the engine sends; its stream is set for each version."""
    engine: Any

    def send(self, stream: WeightStream, timeout_s: float) -> None:
        self.source.stream = stream
        is_late = threading.Event()

        def abort() -> None:
            is_late.set()
            self.engine.shutdown()  # a broadcast that nobody receives would never end

        timer = threading.Timer(timeout_s, abort)
        timer.start()
        try:
            self.engine.send_weights()
        finally:
            timer.cancel()
        if is_late.is_set():
            raise TimeoutError(f"the servers did not take the weights within {timeout_s:g} s")


def _connect(settings: SendLive, stream: WeightStream) -> _Connection:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    servers = _Servers([_server(address, dict(headers), settings) for address, headers in settings.servers])
    source = _make_source()
    source.stream = stream
    engine = WeightTransferTrainerFactory.trainer_init(
        _init_info(settings, servers.world_size), client=servers, source=source
    )
    return _Connection(settings=settings, source=source, engine=engine)


def _disconnect() -> None:
    while _connections:
        _connections.pop().engine.shutdown()


def _init_info(settings: SendLive, workers: int) -> Any:
    if settings.way == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    host = _own_address(settings.servers[0][0])
    return NCCLTrainerInitInfo(
        rank=0, master_address=host, master_port=free_port(host), world_size=1 + workers
    )


def _own_address(server: str) -> str:
    """Return the address of this machine from which it reaches a server."""
    url = urlsplit(server)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((url.hostname, url.port or 80))  # sends nothing
        address: str = route.getsockname()[0]
        return address


def _make_source() -> Any:
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class StreamSource(WeightSource):  # type: ignore[misc]
        stream: WeightStream

        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(name, info.dtype, info.shape) for name, info in self.stream.infos.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return self.stream.tensors

    return StreamSource()


def _server(address: str, headers: Mapping[str, str], settings: SendLive) -> _Server:
    import requests
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

    class AuthorizedClient(HTTPVLLMWeightSyncClient):  # type: ignore[misc]
        def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
            response = requests.post(
                f"{self.base_url}/{path}", json=json, headers=dict(headers), timeout=self.timeout
            )
            response.raise_for_status()

    answer = requests.get(f"{address}/get_world_size", headers=dict(headers), timeout=settings.timeout_s)
    answer.raise_for_status()
    return _Server(
        client=AuthorizedClient(address, timeout=settings.timeout_s), workers=answer.json()["world_size"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    client: Any
    workers: int


class _Servers:
    """Several servers as one ``VLLMWeightSyncClient``: every call is sent to all of them concurrently."""

    def __init__(self, servers: Sequence[_Server]) -> None:
        self._servers = list(servers)

    @property
    def world_size(self) -> int:
        """Return the number of workers of all servers."""
        return sum(server.workers for server in self._servers)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        offset, infos = init_info.get("rank_offset"), []
        for server in self._servers:
            infos.append(init_info if offset is None else {**init_info, "rank_offset": offset})
            offset = None if offset is None else offset + server.workers
        self._all(lambda client, info: client.init_weight_transfer_engine(info), infos)

    def start_weight_update(self) -> None:
        self._all(lambda client, _: client.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._all(lambda client, _: client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda client, _: client.finish_weight_update(weight_version))

    def _all(self, call: Callable[[Any, Any], None], arguments: Sequence[Any] = ()) -> None:
        with ThreadPoolExecutor(max_workers=len(self._servers)) as pool:
            values = arguments or [None] * len(self._servers)
            futures = [
                pool.submit(call, server.client, value)
                for server, value in zip(self._servers, values, strict=True)
            ]
        for future in futures:
            future.result()


def _on_gpu(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        yield name, tensor.cuda()

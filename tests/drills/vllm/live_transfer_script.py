"""Weight transfers without files through vLLM's classes, in vLLM's interpreter; GPU calls are replaced.

Two HTTP servers record their requests, and vLLM's code unpacks the trainer's broadcasts.
"""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine
from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient
from vllm.distributed.weight_transfer.packed_tensor import PackedIpcChunk, pack_tensors, unpack_tensor

from engine.inference.base import WeightStream
from engine.inference.vllm.publishing import live_transfer
from engine.inference.vllm.publishing.live_transfer import SendLive
from engine.inference.vllm.publishing.transfer import tensor_digest
from engine.models.weights.source import TensorInfo

TENSORS = {
    "model.embed_tokens.weight": torch.randn(7, 4).bfloat16(),
    "model.norm.weight": torch.randn(4).bfloat16(),
    "lm_head.weight": torch.randn(7, 4).bfloat16(),
}


class Recorder(BaseHTTPRequestHandler):
    """The weight transfer routes of a vLLM server."""

    def do_GET(self) -> None:
        self._answer({"world_size": self.server.workers})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self._answer({}, json.loads(self.rfile.read(size)) if size else None)

    def _answer(self, content: Any, body: Any = None) -> None:
        server: Any = self.server
        assert self.headers["Authorization"] == "Bearer secret"
        server.calls.append((self.path, body))
        data = json.dumps(content).encode()
        self.send_response(500 if self.path == server.broken else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(workers: int) -> Any:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    server.workers, server.calls, server.broken = workers, [], ""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Group:
    """Fake NCCL communicator that keeps all broadcast tensors."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.blocks = False
        self.destroyed = threading.Event()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        assert src == 0
        if self.blocks:
            self.destroyed.wait()  # nobody receives until the communicator is aborted
        self.sent.append(tensor.clone())

    def destroy(self) -> None:
        self.destroyed.set()


def stream() -> WeightStream:
    infos = {name: TensorInfo.of(tensor) for name, tensor in TENSORS.items()}
    return WeightStream(infos=infos, tensors=iter(TENSORS.items()))


def produce(*, iterator: Any, group: Any, post_iter_func: Any, buffer_size_bytes: int, **_: Any) -> None:
    """Replace ``packed_nccl_broadcast_producer`` without streams."""
    while (chunk := pack_tensors(iterator, post_iter_func, buffer_size_bytes)) is not None:
        group.broadcast(chunk.packed_tensor, src=0)


def consumer(way: Any, servers: list[Any], timeout_s: float = 60) -> SendLive:
    headers = (("Authorization", "Bearer secret"),)
    addresses = tuple((f"http://127.0.0.1:{server.server_address[1]}", headers) for server in servers)
    original = SendLive(way=way, servers=addresses, dtype=torch.bfloat16, timeout_s=timeout_s)
    restored: SendLive = pickle.loads(pickle.dumps(original))
    assert restored == original
    return restored


def paths(server: Any) -> list[str]:
    requested = [path for path, _ in server.calls]
    server.calls.clear()
    return requested


UPDATE = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
OPEN = ["/get_world_size", "/init_weight_transfer_engine"]


def raises(kind: type[BaseException], call: Callable[[], Any]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def check_nccl() -> None:
    groups: list[Group] = []

    def endpoint(info: Any) -> Group:
        assert info.world_size == 4
        groups.append(Group())
        return groups[-1]

    nccl_engine.open_trainer_endpoint = endpoint
    nccl_engine.packed_nccl_broadcast_producer = produce
    servers = [serve(2), serve(1)]
    sent = consumer("nccl", servers)(stream())
    assert sent.num_bytes == sum(t.nbytes for t in TENSORS.values())
    assert dict(sent.digests) == {name: tensor_digest(tensor) for name, tensor in TENSORS.items()}
    init_infos = [dict(server.calls)["/init_weight_transfer_engine"]["init_info"] for server in servers]
    assert [init["rank_offset"] for init in init_infos] == [1, 3], "behind the trainer, one after the other"
    assert {init["world_size"] for init in init_infos} == {4}
    assert all(init["packed"] for init in init_infos)
    info = dict(servers[0].calls)["/update_weights"]["update_info"]
    assert info["names"] == list(TENSORS)
    assert info["shapes"] == [list(t.shape) for t in TENSORS.values()]
    assert info["dtype_names"] == ["bfloat16"] * 3
    sizes = [t.nbytes for t in TENSORS.values()]
    dtypes = [t.dtype for t in TENSORS.values()]
    unpacked = unpack_tensor(groups[0].sent[0], info["names"], info["shapes"], dtypes, sizes)
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in unpacked)
    assert paths(servers[0]) == paths(servers[1]) == [*OPEN, *UPDATE]
    consumer("nccl", servers)(stream())
    assert paths(servers[0]) == UPDATE, "the connection is kept"
    assert len(groups[0].sent) == 2
    nccl_engine.open_trainer_endpoint = lambda info: groups.append(Group()) or groups[-1]  # type: ignore[func-returns-value]
    consumer("nccl", servers[:1])(stream())
    assert groups[0].destroyed.is_set(), "other servers, another group"
    paths(servers[0])
    servers[0].broken = "/update_weights"
    raises(Exception, lambda: consumer("nccl", servers[:1])(stream()))
    assert groups[1].destroyed.is_set()
    servers[0].broken = ""
    paths(servers[0])
    consumer("nccl", servers[:1])(stream())
    assert paths(servers[0]) == [*OPEN, *UPDATE], "a failed connection is opened anew"
    impatient = consumer("nccl", servers[:1], timeout_s=1)
    impatient(stream())
    groups[-1].blocks = True
    raises(TimeoutError, lambda: impatient(stream()))
    assert groups[-1].destroyed.is_set()


def check_ipc() -> None:
    def chunks(*, iterator: Iterator[Any], **_: Any) -> Iterator[PackedIpcChunk]:
        named = list(iterator)
        yield PackedIpcChunk(
            names=[name for name, _ in named],
            shapes=[list(tensor.shape) for _, tensor in named],
            dtype_names=["bfloat16"] * len(named),
            tensor_sizes=[tensor.nbytes for _, tensor in named],
            ipc_handle={"GPU-1": ("handle",)},
        )

    ipc_engine.packed_ipc_producer = chunks
    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.get_device_properties = lambda _: type("Properties", (), {"uuid": "GPU-1"})()  # type: ignore[assignment,misc]
    torch.cuda.ipc_collect = lambda: None
    server = serve(1)
    consumer("ipc", [server])(stream())
    calls = dict(server.calls)
    assert calls["/init_weight_transfer_engine"] == {"init_info": {"packed": True}}
    info = calls["/update_weights"]["update_info"]
    assert pickle.loads(base64.b64decode(info["ipc_handles_pickled"])) == {"GPU-1": ("handle",)}
    assert info["names"] == list(TENSORS)
    assert paths(server) == [*OPEN, *UPDATE]


if __name__ == "__main__":
    live_transfer._on_gpu = lambda tensors: tensors
    assert isinstance(live_transfer._Servers([]), VLLMWeightSyncClient)
    check_nccl()
    live_transfer._disconnect()
    check_ipc()
    print("transferred")

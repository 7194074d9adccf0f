"""Malformed messages of a hostile agent raise typed errors and affect only its own sandbox."""

from __future__ import annotations

import asyncio
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.errors import PatchError, SandboxError, SandboxTransportError
from engine.patches.trees import FileState
from engine.sandbox.agent.wire import decode, encode, frame
from engine.sandbox.agent_sandbox import AgentSandbox
from engine.sandbox.base import SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.responses import Stamp, parse_tree

FILE, LINK = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
Answers = Mapping[str, Callable[[dict[str, Any]], Any]]


class FixedTree:
    """Base tree with the given files."""

    def __init__(self, files: Mapping[str, Stamp]) -> None:
        self.files = files

    def stamps(self) -> Mapping[str, Stamp]:
        return self.files

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        return {name: FileState(FILE, b"old\n") for name in names}


def tree(*files: tuple[str, int, int]) -> dict[str, Any]:
    rows = [part for name, mode, size in files for part in (b"%o %d 7" % (mode, size), name.encode())]
    return {"tree": b"\0".join(rows)}


def always(answer: Any) -> Callable[[dict[str, Any]], Any]:
    """Return an agent's operation that replies ``answer`` to every request."""
    return lambda _request: answer


@asynccontextmanager
async def sandbox(
    answers: Answers, base_tree: Mapping[str, Stamp] | None = None
) -> AsyncIterator[AgentSandbox]:
    """Open a sandbox whose agent replies with ``answers``, called by operation; bytes are sent unframed."""
    ours, theirs = socket.socketpair()
    their_reader, their_writer = await asyncio.open_connection(sock=theirs)

    async def serve() -> None:
        while True:
            size = int.from_bytes(await their_reader.readexactly(4), "big")
            request: Any = decode(await their_reader.readexactly(size))
            reply = answers[request["op"]](request)
            their_writer.write(reply if isinstance(reply, bytes) else frame({"id": request["id"], **reply}))
            await their_writer.drain()

    agent = asyncio.ensure_future(serve())

    async def end() -> None:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        their_writer.close()

    box = AgentSandbox(
        "sb-1",
        SandboxSpec(image="image"),
        AgentClient(*await asyncio.open_connection(sock=ours)),
        startup=Startup(node=""),
        env={},
        base_tree=FixedTree(base_tree or {}),
        end=end,
    )
    try:
        yield box
    finally:
        await box.close()


async def longest_block(work: Awaitable[Any], error: type[Exception]) -> float:
    """Return the most CPU seconds for which ``work``, failing with ``error``, blocked the event loop."""
    longest, is_done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not is_done:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - before)

    watcher = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    with pytest.raises(error):
        await work
    is_done = True
    await watcher  # its pending sleep covers the block that ended with the error
    return longest


EXECUTED = {"exit_code": 0, "stdout": b"", "stderr": b"", "timed_out": False, "ms": 1, "dropped": 0}


async def test_malformed_exec_results_raise_transport_errors() -> None:
    changes: list[dict[str, Any]] = [
        {"exit_code": 10**20}, {"exit_code": "0"}, {"exit_code": True}, {"stdout": "text"},
        {"stdout": b"x" * 1001}, {"timed_out": 1}, {"ms": -1}, {"ms": 10**22}, {"dropped": None},
    ]  # fmt: skip
    errors: list[dict[str, Any]] = [{"errno": "2"}, {"errno": 10**20, "resource": True}, {"errno": -1}]
    for reply in ({}, *({**EXECUTED, **c} for c in changes), *({**e, "message": "x"} for e in errors)):
        async with sandbox({"exec": always(reply)}) as box:
            for _ in range(2):  # all later calls fail, too
                with pytest.raises(SandboxTransportError, match="malformed message"):
                    await box.exec("true", timeout_s=5, output_cap=1000)


async def test_content_beyond_the_requested_size_is_rejected() -> None:
    async with sandbox({"read": lambda _: {"data": b"x" * 101}}) as box:
        with pytest.raises(SandboxTransportError, match="more content"):
            await box.read_file("a", max_bytes=100)
    async with sandbox({"write": lambda _: {"data": b"x" * (1 << 20)}}) as box:
        with pytest.raises(SandboxTransportError, match="a frame of"):
            await box.write_file("a", b"")


async def test_malformed_folder_listings_raise_transport_errors() -> None:
    hostile: list[Any] = [{}, [1], ["x" * 20_000], ["a\0b"], ["a"] * 10_001]
    for paths in hostile:
        async with sandbox({"list": always({"paths": paths})}) as box:
            with pytest.raises(SandboxTransportError, match="malformed message"):
                await box.list_dir("/")


@pytest.mark.parametrize("filling", [b"n", b"l0;"], ids=["nothing", "lists"])
async def test_frame_of_millions_of_values_does_not_block_the_event_loop(filling: bytes) -> None:
    count = 20_000_000 // len(filling)
    body = b"d2;" + encode("id") + b"i1;" + encode("paths") + b"l%d;" % count + filling * count
    bomb = len(body).to_bytes(4, "big") + body
    async with sandbox({"list": lambda _: bomb}) as box:
        assert await longest_block(box.list_dir("/"), SandboxTransportError) < 1.0


async def test_flood_of_unrequested_replies_is_rejected_at_its_first_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []

    def count(body: bytes, max_values: int) -> Any:
        decoded.append(body)
        return decode(body, max_values)

    monkeypatch.setattr("engine.sandbox.client.decode", count)
    flood = frame({"id": 0}) * 50_000
    async with sandbox({"read": lambda _: flood}) as box:
        for _ in range(2):  # the flood is not read later, either
            with pytest.raises(SandboxTransportError, match="without a request"):
                await box.read_file("a")
    assert decoded == [encode({"id": 0})]


async def test_second_reply_to_a_request_is_rejected() -> None:
    twice = frame({"id": 1, "data": b"first"}) + frame({"id": 1, "data": b"again"})
    async with sandbox({"read": lambda request: twice if request["id"] == 1 else {"data": b"x"}}) as box:
        assert await box.read_file("a") == b"first"
        with pytest.raises(SandboxTransportError, match="without a request"):
            await box.read_file("a")


async def test_malformed_greetings_raise_transport_errors() -> None:
    environments: list[Any] = [[], {"A": 1}, {"A=B": "x"}, {"A": "x\0y"}, {"": "x"}, {"A": "x" * (5 << 20)}]
    addresses = (["10.0.0.1"], ["10.0.0.1", 443], ["10.0.0.1", "https"], ["10.0.0.1", "99999"])
    for greeting in (*({"env": env} for env in environments), *({"api": api} for api in addresses)):
        ours, theirs = socket.socketpair()
        client = AgentClient(*await asyncio.open_connection(sock=ours))
        _, writer = await asyncio.open_connection(sock=theirs)
        writer.write(frame({"hello": 1, **greeting}))
        with pytest.raises(SandboxTransportError, match="malformed message"):
            await client.hello(120)
        writer.close()
        await client.close()


async def test_malformed_trees_raise_transport_errors() -> None:
    rows = [b"1\0a", b"1 7 9\0a", b"-1 7\0a", b"1 " + b"9" * 30 + b"\0a", b"1 7"]
    names = [b"", b"/etc/passwd", b"../../etc/passwd", b"a/../../b", b"a//b", b"."]
    rows += [b"1 7\0" + name for name in names]
    for blob in (b"9 1 7\0a", b"777777777 1 7\0a", *(b"100644 " + row for row in rows)):
        with pytest.raises(ValueError):
            parse_tree(blob)
        async with sandbox({"tree": always({"tree": blob})}) as box:
            with pytest.raises(SandboxTransportError, match="malformed message"):
                await box.diff()
            with pytest.raises(SandboxTransportError):
                await box.exec("true", timeout_s=1)


def fetched(**files: tuple[int, bytes]) -> Callable[[dict[str, Any]], Any]:
    return lambda request: {"files": [list(files[name]) for name in request["names"]]}


async def test_files_below_a_link_are_not_written_through_it_on_the_host(tmp_path: Path) -> None:
    """A tree with the link ``a`` and the file ``a/b`` would be written through the link."""
    listed = tree(("a", LINK, 9), ("a/b", FILE, 4))
    files = fetched(**{"a": (LINK, str(tmp_path).encode()), "a/b": (FILE, b"evil")})
    async with sandbox({"tree": lambda _: listed, "fetch": files}) as box:
        with pytest.raises(PatchError, match="no file can be at 'a/b'"):
            await box.diff()
    patch = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n--- a/a/b\n+++ b/a/b\n@@ -1 +1 @@\n-x\n+y\n"
    async with sandbox({"fetch": files}) as box:
        with pytest.raises(PatchError, match="no file can be at 'a/b'"):
            await box.apply_patch(patch)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "state"),
    [("x" * 300, (FILE, b"")), ("a", (LINK, b"")), ("a", (LINK, b"b\0c")), ("a", (LINK, b"x" * 5000))],
    ids=["a name too long", "a link to nothing", "a link with NUL", "a link too long"],
)
async def test_files_that_cannot_be_created_raise_a_patch_error(name: str, state: tuple[int, bytes]) -> None:
    listed = tree((name, state[0], len(state[1])))
    async with sandbox({"tree": lambda _: listed, "fetch": fetched(**{name: state})}) as box:
        with pytest.raises(PatchError, match="cannot create"):
            await box.diff()


async def test_malformed_file_contents_raise_transport_errors() -> None:
    rows: list[Any] = [None, [], [7], [[FILE]], [[FILE, b""]] * 2, [[FILE, "x"]], [["x", b""]], [[-1, b""]]]
    for files in (*rows, [[1 << 40, b""]]):
        answers = {"tree": always(tree(("a", FILE, 1))), "fetch": always({"files": files})}
        async with sandbox(answers) as box:
            with pytest.raises(SandboxTransportError, match="malformed message"):
                await box.diff()


async def test_understated_file_sizes_do_not_exhaust_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files listed as empty, with 640 KiB in every batch: the second batch exceeds the limit."""
    monkeypatch.setattr("engine.sandbox.agent_sandbox._MAX_CHANGES_BYTES", 1 << 20)
    asked: list[str] = []

    def fetch(request: dict[str, Any]) -> dict[str, Any]:
        asked.extend(request["names"])
        return {"files": [[FILE, b"x" * (640 << 10)], *([[FILE, b""]] * (len(request["names"]) - 1))]}

    listed = tree(*((f"f{number}", FILE, 0) for number in range(5000)))
    async with sandbox({"tree": lambda _: listed, "fetch": fetch}) as box:
        with pytest.raises(PatchError, match="more than 1 MiB"):
            await box.diff()
    assert len(asked) == 2000


async def test_removed_files_count_toward_the_limits_of_a_patch() -> None:
    """The host loads removed content from the image, so removals are limited like additions."""
    large = {"data.bin": (FILE, 65 << 20, 7)}
    async with sandbox({"tree": lambda _: tree()}, base_tree=large) as box:
        with pytest.raises(PatchError, match="more than 64 MiB"):
            await box.diff()
    many = {f"f{number}": (FILE, 1, 7) for number in range(50_001)}
    async with sandbox({"tree": lambda _: tree()}, base_tree=many) as box:
        with pytest.raises(PatchError, match="a patch of 50001 files"):
            await box.diff()


async def test_patch_too_large_for_an_event_is_rejected() -> None:
    data = b"0123456789abcde\n" * (1 << 19)
    listed = tree(("a", FILE, len(data)))
    async with sandbox({"tree": lambda _: listed, "fetch": fetched(a=(FILE, data))}) as box:
        with pytest.raises(PatchError, match="longer than 8 MiB"):
            await box.diff()


async def test_unreadable_folder_raises_a_patch_error_not_a_sandbox_error() -> None:
    async with sandbox({"tree": lambda _: {"errno": 13, "message": "Permission denied"}}) as box:
        with pytest.raises(PatchError, match="cannot be read: Permission denied") as caught:
            await box.diff()
    assert not isinstance(caught.value, SandboxError)

"""Sandbox pool over a backend in memory: budgets, fairness, records, clocks, pauses, refused images."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import (
    FencedError,
    ImageError,
    PreflightError,
    SandboxDiedError,
    SandboxQueueTimeoutError,
    SandboxStartError,
)
from engine.events.sandboxes import CLOCK_BOUNDS_S, PoolStatus, SandboxesChanged
from engine.events.types import Alert
from engine.sandbox.base import Population, Sandbox, SandboxSpec, Startup
from engine.sandbox.pool import report
from engine.sandbox.pool.breaker import Breaker, ImageHealth
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.registries import check_registries, refused_registry
from tests.fakes.memory_sandbox import MemoryBackend


class Sink:
    """Event sink that stores validated events and raises once it is fenced."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.fenced = False

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        if self.fenced:
            raise FencedError("a newer attempt exists")
        self.events.append(event_type(seq=len(self.events) + 1, epoch=1, time=0.0, **fields))
        return len(self.events)

    def of(self, event_type: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, event_type)]

    def states(self) -> dict[str, list[str]]:
        """Return lease → its recorded states, in order."""
        states_of: dict[str, list[str]] = {}
        for event in self.of(SandboxesChanged):
            for record in event.records:
                states_of.setdefault(record.lease, []).append(record.state)
        return states_of


class RecordingBackend(MemoryBackend):
    """Backend that notes the number of recorded leases at each start, and the prepared images."""

    def __init__(self, sink: Sink, **changes: Any) -> None:
        super().__init__(**changes)
        self.sink = sink
        self.recorded_before: list[int] = []
        self.prepared: list[Mapping[str, int]] = []
        self.closed = 0

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.recorded_before.append(len(self.sink.states()))
        async with super()._open(spec) as sandbox:
            sandbox.startup = Startup(node=spec.env.get("node", "n1"), pull=3.0, start=0.2)
            yield sandbox

    async def prepare(self, images: Mapping[str, int]) -> None:
        self.prepared.append(images)

    async def close(self) -> None:
        self.closed += 1


def spec(lane: str = "", image: str = "local:pkg", **env: str) -> SandboxSpec:
    return SandboxSpec(image=image, lane=lane, name=f"of {lane}", env=env)


def config(**changes: Any) -> SandboxConfig:
    return SandboxConfig(**{"max_live": 4, "max_starting": 2, **changes})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval between reports."""
    monkeypatch.setattr(report, "REPORT_S", 0.001)


async def hold(pool: SandboxPool, wanted: SandboxSpec, until: asyncio.Event, order: list[str]) -> None:
    async with pool.open(wanted):
        order.append(wanted.lane)
        await until.wait()


async def test_lease_is_recorded_before_its_sandbox_starts_and_when_it_closes() -> None:
    sink = Sink()
    backend = RecordingBackend(sink)
    pool = SandboxPool(backend, config(), sink=sink)
    async with pool.open(spec(image="local:x")) as sandbox:
        assert backend.recorded_before == [1]
        (first,) = sink.of(SandboxesChanged)[0].records
        assert (first.state, first.sandbox_id, first.image) == ("leased", "", "local:x")
        assert first.ended_at is None
    await pool.close()
    (states,) = sink.states().values()
    assert states == ["leased", "closed"], "what lies between two reports is told once, as it ended"
    last = sink.of(SandboxesChanged)[-1].records[-1]
    assert (last.lease, last.sandbox_id, last.node, last.pull_seconds) == (first.lease, sandbox.id, "n1", 3.0)
    assert last.leased_at <= last.started_at <= last.ended_at
    assert backend.closed == 1


async def test_concurrent_requests_stay_within_the_budgets() -> None:
    backend = MemoryBackend()
    pool = SandboxPool(backend, config(max_live=5, max_starting=2))

    async def use(number: int) -> None:
        async with pool.open(spec(f"lane {number % 3}")):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(use(number) for number in range(60)))
    assert (backend.most_live, backend.most_starting, len(backend.started)) == (5, 2, 60)
    assert (pool.waiting, pool.starting, pool.live, pool.wanted) == (0, 0, 0, 0)


async def test_lanes_are_served_round_robin_and_each_first_in_first_out() -> None:
    pool = SandboxPool(MemoryBackend(), config(max_live=1, max_starting=1))
    order: list[str] = []
    until = asyncio.Event()
    until.set()
    wanted = [spec("train", n=str(n)) for n in range(4)] + [spec("grade"), spec("grade")]
    async with pool.open(spec("first")):
        tasks = [asyncio.create_task(hold(pool, request, until, order)) for request in wanted]
        await asyncio.sleep(0)
        assert pool.status()["waiting"] == 6
    await asyncio.gather(*tasks)
    assert order == ["train", "grade", "train", "grade", "train", "train"]


async def test_queue_timeout_is_counted_and_leaves_the_queue() -> None:
    pool = SandboxPool(MemoryBackend(), config(max_live=1, queue_timeout_s=0.02))
    async with pool.open(spec()):
        with pytest.raises(SandboxQueueTimeoutError, match=r"within 0\.02 s: 1 of 1 are live"):
            async with pool.open(spec()):
                raise AssertionError
        assert pool.waiting == 0
    async with pool.open(spec()):
        assert pool.status()["failures"] == {"queue_timeout": 1}


async def test_cancelled_requests_leave_the_queue_even_if_just_admitted() -> None:
    sink = Sink()
    pool = SandboxPool(MemoryBackend(), config(max_live=1), sink=sink)
    until = asyncio.Event()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pool.open(spec()))
        waiting = [asyncio.create_task(hold(pool, spec(), until, [])) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[0].cancel()
        await stack.aclose()  # admits the next request …
        waiting[1].cancel()  # … which is cancelled before it resumes
        with suppress(asyncio.CancelledError):
            await waiting[1]
    until.set()
    await waiting[2]
    assert (pool.waiting, pool.starting, pool.live) == (0, 0, 0)
    await pool.close()
    assert all(states[-1] == "closed" for states in sink.states().values())


async def test_fenced_run_starts_no_sandbox() -> None:
    sink = Sink()
    backend = MemoryBackend()
    pool = SandboxPool(backend, config(), sink=sink)
    sink.fenced = True
    with pytest.raises(FencedError):
        async with pool.open(spec()):
            raise AssertionError
    assert (backend.started, pool.starting, pool.waiting) == ([], 0, 0)


async def test_failed_starts_pause_the_pool_until_a_success(quick: None) -> None:
    sink = Sink()
    backend = MemoryBackend(faults=[SandboxStartError("no room") for _ in range(3)])
    began, breaker = time.monotonic(), Breaker(failures=2, first_pause_s=0.5)
    pool = SandboxPool(backend, config(max_starting=1), sink=sink, breaker=breaker)
    for _ in range(2):
        with pytest.raises(SandboxStartError):
            async with pool.open(spec()):
                raise AssertionError
    (alert,) = sink.of(Alert)
    assert alert.code == "sandbox_pool_paused"
    assert alert.message.endswith("2 starts in a row failed; the last one: no room")
    assert "no room" in pool.status()["paused_reason"]
    until, order = asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(hold(pool, spec(f"{n}"), until, order)) for n in range(4)]
    until.set()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 240)
    assert time.monotonic() - began >= 0.5, "nothing is started during the pause"
    assert [type(result).__name__ for result in results].count("SandboxStartError") == 1, "the first trial"
    assert len(order) == 3
    assert not pool.status()["paused_reason"]
    assert len(sink.of(Alert)) == 1, "a pause that goes on is told once"


async def test_bad_image_is_refused_after_a_few_starts_without_a_pause() -> None:
    sink = Sink()
    backend = MemoryBackend(faults=[ImageError("registry says 404") for _ in range(9)])
    pool = SandboxPool(
        backend, config(), sink=sink, images=ImageHealth(failures=3), breaker=Breaker(failures=2)
    )
    for _ in range(6):
        with pytest.raises(ImageError, match="404"):
            async with pool.open(spec(image="bad")):
                raise AssertionError
    assert len(backend._faults) == 6, "after three failures nothing is started any more"
    backend._faults.clear()
    async with pool.open(spec(image="good")):
        pass
    status = pool.status()
    assert not status["paused_reason"], "an image's failure is not the backend's"
    assert (status["failures"], status["images"][0]["refused"]) == ({"image": 6}, True)
    assert [alert.code for alert in sink.of(Alert)] == ["sandbox_image"]
    await pool.prepare({"bad": 2, "good": 3, "other": 9})


async def test_images_of_unlisted_registries_are_refused() -> None:
    config = SandboxConfig(backend="docker", registries=("docker.io", "reg.test:5000"))
    pool = SandboxPool(MemoryBackend(), config)
    for image in ("python:3.11", "acme/tests@sha256:1", "reg.test:5000/a/b", "local:toy", "dockerfile:1"):
        pool.check_image(image)
    for image in ("ghcr.io/acme/tests:1", "reg.test/a/b", "localhost/a", "docker.io.evil.test/a"):
        with pytest.raises(ImageError, match="TRAINYARD_IMAGE_REGISTRIES"):
            pool.check_image(image)
    mirrored = config.model_copy(
        update={
            "backend": "kubernetes",
            "registries": (),
            "kubernetes": KubernetesConfig(mirrors={"docker.io/a/": "near/", "acme/": "near/acme/"}),
        }
    )
    images = ("a/b", "acme/x", "ghcr.io/a/b", "ghcr.io/acme/x")
    refused = [image for image in images if refused_registry(image, mirrored)]
    assert refused == ["ghcr.io/a/b", "ghcr.io/acme/x"]
    SandboxPool(MemoryBackend(), SandboxConfig(backend="docker")).check_image("ghcr.io/acme/tests:1")
    check_registries(["a/b", "local:toy"], config)
    with pytest.raises(PreflightError, match=r"image 'ghcr\.io/c' is from 'ghcr\.io'"):
        check_registries(["a/b", "ghcr.io/c"], config)


async def test_prepare_stays_within_the_budget_and_skips_refused_images() -> None:
    backend = RecordingBackend(Sink(), faults=[ImageError("404")])
    pool = SandboxPool(backend, config(max_live=4), images=ImageHealth(failures=1))
    with pytest.raises(ImageError):
        async with pool.open(spec(image="bad")):
            raise AssertionError
    await pool.prepare({"bad": 2, "good": 3, "other": 9, "none": 1})
    assert backend.prepared == [{"good": 3, "other": 1}]


async def test_failures_of_leased_sandboxes_are_counted_and_recorded() -> None:
    sink = Sink()
    pool = SandboxPool(MemoryBackend(), config(), sink=sink)
    with pytest.raises(SandboxDiedError):
        async with pool.open(spec()):
            raise SandboxDiedError("gone\nfor \udcff good")
    await pool.close()
    record = sink.of(SandboxesChanged)[-1].records[-1]
    assert (record.state, record.failure, record.reason) == ("failed", "died", "gone for ? good")
    assert sink.of(PoolStatus)[-1].failures == {"died": 1}


async def test_status_reports_clocks_and_nodes() -> None:
    sink = Sink()
    pool = SandboxPool(RecordingBackend(sink), config(), sink=sink)
    async with pool.open(spec(node="a")), pool.open(spec(node="b")):
        pool.observe("exec", 0.3)
        assert pool.status()["nodes"] == {"a": 1, "b": 1}
    await pool.close()
    status = sink.of(PoolStatus)[-1]
    assert status.nodes == {}
    assert {name: sum(clock.counts) for name, clock in status.clocks.items()} == {
        "queue": 2, "pull": 2, "start": 2, "exec": 1,
    }  # fmt: skip
    assert status.clocks["pull"].counts[CLOCK_BOUNDS_S.index(5.0)] == 2
    assert status.clocks["start"].total == pytest.approx(0.4)
    assert (status.opened, status.wanted, status.max_live) == (2, 0, 4)


async def test_surplus_sandboxes_pause_creation_and_live_ones_remain(quick: None) -> None:
    class Cluster(MemoryBackend):
        existing = 50

        def population(self) -> Population:
            return Population(existing=self.existing, idle=self.existing - 2, nodes={"a": self.existing})

        def blocked(self) -> dict[str, str]:
            return {"sb-1": "no node\nhas room", "sb-2": "no node has room", "sb-3": "quota"}

    sink = Sink()
    backend = Cluster()
    pool = SandboxPool(backend, config(), sink=sink, breaker=Breaker(first_pause_s=0.5, patience_s=0.02))
    async with pool.open(spec()), pool.open(spec()):
        while not any("exist, but only 2 are wanted" in alert.message for alert in sink.of(Alert)):
            await asyncio.sleep(0.005)
        third = asyncio.create_task(hold(pool, spec(), asyncio.Event(), []))
        await asyncio.sleep(0.005)
        assert (backend.live, pool.waiting) == (2, 1), "the live ones stay"
        backend.existing = 3
        while pool.live < 3:
            await asyncio.sleep(0.005)
        third.cancel()
        await asyncio.wait([third])
    status = sink.of(PoolStatus)[0]
    assert (status.idle, status.nodes) == (48, {"a": 50})
    assert status.blocked == {"no node has room": 2, "quota": 1}


async def test_thousand_sandboxes_cause_few_and_small_events() -> None:
    sink = Sink()
    pool = SandboxPool(MemoryBackend(), SandboxConfig(max_live=256, max_starting=64), sink=sink)

    async def use() -> None:
        async with pool.open(spec("train")):
            await asyncio.sleep(0)

    await asyncio.gather(*(use() for _ in range(1000)))
    await pool.close()
    states = sink.states()
    assert len(states) == 1000
    assert all(recorded[0] == "leased" and recorded[-1] == "closed" for recorded in states.values())
    assert len(sink.events) < 150
    assert Counter(state for recorded in states.values() for state in recorded)["closed"] == 1000
    assert sum(len(event.model_dump_json()) for event in sink.events) < 1_500_000

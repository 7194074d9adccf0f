"""Pool of sandboxes started ahead of demand, for the images of the next batch.

``prepare`` sets the wanted kinds: missing sandboxes are started within the free capacity, those of other
kinds are removed. Opening a sandbox takes a ready one, or waits for one that is starting. No command has run
in a warm sandbox, and a taken one never returns. Requested sandboxes have precedence over warm ones. A kind
that fails is not started again until ``prepare`` names it again. ``WarmSource`` is the backend-specific part.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import structlog

from engine.sandbox.base import SandboxLimits, SandboxSpec

if TYPE_CHECKING:  # local sandboxes run without pydantic
    from engine.config.kubernetes import KubernetesConfig
    from engine.config.sandbox import DockerConfig, LocalConfig, SandboxConfig

_GRACE_S = 600.0
"""Time added to the lifetime of a warm sandbox, which begins before its start, seconds."""
_ROOM_S = 30.0
_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSettings:
    """Number and kind of the sandboxes that a backend starts ahead of demand."""

    per_image: int
    idle_s: float
    max_live: int
    """Maximum number of sandboxes of the backend, warm ones included."""
    at_once: int
    """Maximum number of warm sandboxes starting at once."""
    limits: SandboxLimits
    run_id: str

    @classmethod
    def none(cls) -> Self:
        """Return the settings of a backend that starts no sandboxes ahead of demand."""
        return cls(
            per_image=0, idle_s=0.0, max_live=sys.maxsize, at_once=1, limits=SandboxLimits(), run_id=""
        )

    @classmethod
    def of(
        cls, config: SandboxConfig, section: LocalConfig | DockerConfig | KubernetesConfig, run_id: str
    ) -> Self:
        """Return the settings of a backend with its own ``section``."""
        return cls(
            per_image=section.warm_per_image,
            idle_s=section.warm_idle_s,
            max_live=config.max_live,
            at_once=max(1, config.max_starting // 2),
            limits=SandboxLimits(
                memory_mb=config.memory_mb, processes=config.processes, disk_mb=config.disk_mb
            ),
            run_id=run_id,
        )

    def wanted(self, image: str) -> SandboxSpec:
        """Return the specification of a sandbox that an agent will request."""
        return SandboxSpec(image=image, run_id=self.run_id, limits=self.limits)

    def ahead_of(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the specification of a warm sandbox for requests like ``spec``, with its own lifetime."""
        limits = replace(spec.limits, lifetime_s=self.idle_s + _GRACE_S)
        return SandboxSpec(image=spec.image, run_id=spec.run_id, name="warm", limits=limits)


def same_limits(limits: SandboxLimits) -> Hashable:
    """Return the part of the limits that cannot change once a sandbox runs: all except the lifetime."""
    return limits.memory_mb, limits.processes, limits.disk_mb, limits.cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSource(Generic[T]):
    """Functions of a backend that its warm pool calls; ``T`` is a started, unused sandbox."""

    launch: Callable[[SandboxSpec], Coroutine[Any, Any, T]]
    """Starts a sandbox, which is counted before the first await. Nothing of it remains after a failure or a
    cancellation. Raises SandboxError."""
    discard: Callable[[T], asyncio.Task[None]]
    """Removes a sandbox in the background; safe to call twice."""
    usable: Callable[[T], bool]
    """Returns whether a started sandbox still runs."""
    existing: Callable[[], int]
    """Returns the number of the backend's sandboxes, including warm ones and those being removed."""


@dataclass(slots=True)
class _WarmGroup(Generic[T]):
    """Warm sandboxes of one kind, ready or starting, with their target number."""

    spec: SandboxSpec
    wanted: int = 0
    starts: list[asyncio.Task[T]] = field(default_factory=list)


class WarmPool(Generic[T]):
    """Pool of warm sandboxes of one backend on one event loop. A kind is any hashable value.

    Args:
        source: starts and removes sandboxes.
        settings: number of sandboxes, and how long an unused one is kept.
    """

    def __init__(self, source: WarmSource[T], settings: WarmSettings) -> None:
        self._source = source
        self.settings = settings
        self._groups: dict[Hashable, _WarmGroup[T]] = {}
        self._expected: set[Callable[[], None]] = set()
        self._requested = 0
        self._room = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Return the number of ready and starting sandboxes."""
        return sum(len(group.starts) for group in self._groups.values())

    @property
    def idle(self) -> int:
        """Return the number of ready sandboxes."""
        return sum(1 for _ in self._ready())

    def prepare(self, kinds: Mapping[Hashable, tuple[SandboxSpec, int]]) -> None:
        """Replace the set of wanted kinds (specification and number); return at once."""
        for group in self._groups.values():
            group.wanted = 0
        for kind, (spec, count) in kinds.items():
            self._groups.setdefault(kind, _WarmGroup(spec)).wanted = min(count, self.settings.per_image)
        for kind, group in list(self._groups.items()):
            for start in group.starts[group.wanted :]:
                self._give_back(group, start)
            if not group.wanted:
                del self._groups[kind]
        self._refill()

    @contextlib.contextmanager
    def requesting(self) -> Iterator[None]:
        """Start no warm sandboxes while a requested one starts."""
        self._requested += 1
        try:
            yield
        finally:
            self._requested -= 1
            self.room()

    @contextlib.contextmanager
    def expecting(self) -> Iterator[Callable[[], None]]:
        """Reserve a place for a sandbox; yield a function to call once ``existing`` counts it."""

        def arrived() -> None:
            self._expected.discard(arrived)

        self._expected.add(arrived)
        try:
            yield arrived
        finally:
            arrived()

    async def take(self, kind: Hashable) -> T | None:
        """Remove a warm sandbox of a kind from the pool and return it; None when there is none."""
        group = self._groups.get(kind)
        while group is not None and group.starts:
            start = next((start for start in group.starts if start.done()), group.starts[0])
            group.starts.remove(start)
            group.wanted -= 1
            try:
                started = await asyncio.shield(start)
            except Exception:  # noqa: S112  # _started logs it; the request starts its own sandbox
                continue
            except asyncio.CancelledError:
                group.starts.append(start)
                group.wanted += 1
                if self._groups.get(kind) is not group:  # its kind is no longer wanted
                    self._give_back(group, start)
                raise
            if self._source.usable(started):
                return started
            self._source.discard(started)
        return None

    def evict(self) -> asyncio.Task[Any] | None:
        """Remove a warm sandbox to make room for a requested one; return the removal task, if any."""
        for group in self._groups.values():
            if group.starts:
                group.wanted -= 1
                return self._give_back(group, group.starts[-1])
        return None

    async def make_room(self) -> None:
        """Beyond ``max_live``, remove a warm sandbox and wait, with a time limit, until it is gone."""
        if self._left() < 0 and (removal := self.evict()) is not None:
            await asyncio.wait((removal,), timeout=_ROOM_S)

    def room(self) -> None:
        """Look for missing sandboxes again: a place may have become free."""
        self._room.set()

    async def close(self) -> list[T]:
        """Stop starting sandboxes; return the ready ones, which the caller removes."""
        ready = list(self._ready())
        tasks: list[asyncio.Task[Any]] = [start for group in self._groups.values() for start in group.starts]
        self._groups.clear()
        if self._filler is not None:
            tasks.append(self._filler)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ready

    # --- filling -----------------------------------------------------------------------------------

    def _refill(self) -> None:
        self.room()
        if self._filler is None:
            self._filler = asyncio.get_running_loop().create_task(self._fill())

    async def _fill(self) -> None:
        """Start missing sandboxes, few enough at once that requested ones need not wait."""
        while True:
            self._room.clear()
            self._forget_the_failed()
            group = next((group for group in self._groups.values() if len(group.starts) < group.wanted), None)
            starting = self.count - self.idle
            if group is None or starting >= self.settings.at_once or self._requested or self._left() <= 0:
                await self._room.wait()
                continue
            start = asyncio.get_running_loop().create_task(self._source.launch(group.spec))
            group.starts.append(start)
            start.add_done_callback(partial(self._started, group))
            await asyncio.sleep(0)  # the source counts the sandbox before the next one starts

    def _left(self) -> int:
        return self.settings.max_live - self._source.existing() - len(self._expected)

    def _forget_the_failed(self) -> None:
        for group in self._groups.values():
            for start in [start for start in group.starts if _is_ready(start)]:
                if not self._source.usable(start.result()):
                    self._give_back(group, start)

    def _started(self, group: _WarmGroup[T], start: asyncio.Task[T]) -> None:
        self.room()
        if start.cancelled():
            return
        if (error := start.exception()) is not None:
            group.wanted = 0
            with contextlib.suppress(ValueError):  # taken while it was starting
                group.starts.remove(start)
            _log.warning("no warm sandboxes of an image", image=group.spec.image, error=str(error))
            return
        asyncio.get_running_loop().call_later(self.settings.idle_s, self._expire, group, start)

    def _expire(self, group: _WarmGroup[T], start: asyncio.Task[T]) -> None:
        if start in group.starts:
            group.wanted -= 1
            self._give_back(group, start)

    def _give_back(self, group: _WarmGroup[T], start: asyncio.Task[T]) -> asyncio.Task[Any]:
        group.starts.remove(start)
        if _is_ready(start):
            return self._source.discard(start.result())
        start.cancel()  # the source removes the partially started sandbox
        return start

    def _ready(self) -> Iterator[T]:
        for group in self._groups.values():
            for start in group.starts:
                if _is_ready(start):
                    yield start.result()


def _is_ready(start: asyncio.Task[T]) -> bool:
    return start.done() and not start.cancelled() and start.exception() is None

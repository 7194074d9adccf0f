"""Supervision of services: started in order, restarted when they die, stopped within a deadline.

A service that dies is restarted immediately, and after 1, 2, 4 … 30 s if it dies again; the number of
attempts is not limited. A service without ``spawn`` is an external server: probed, not started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import PreflightError
from engine.processes import process_start
from webapp.supervisor.embedded import die_with_parent
from webapp.supervisor.home import PROJECT
from webapp.supervisor.interrupts import starting_a_process
from webapp.supervisor.probes import Answer, Probe, Watch
from webapp.supervisor.status import ServiceState, ServiceStatus

BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 30.0
STABLE_S = 60.0
"""Uptime after which a service that dies is restarted without delay."""
SETTLED_S = 3.0
"""Runtime after which a process without a probe counts as up."""
REMIND_S = 30.0
"""Interval at which the terminal repeats which services are down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """Specification of a service: start, probe and stop signal."""

    name: str
    title: str
    """Display name."""
    spawn: Callable[[], subprocess.Popen[bytes]] | None = None
    """Function that starts the process in its own session, on the main thread; None for external servers."""
    probe: Probe | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    log: Path | None = None


def spawn_logged(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a command in its own session, with output to ``log``; it ends with this process."""
    with log.open("ab") as output, starting_a_process():
        return subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=PROJECT,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )


class Service:
    """Supervised service and its status. Call ``check`` often, from the main thread.

    Args:
        spec: specification of the service.
        process: the service's process, if it is running already.
    """

    def __init__(self, spec: ServiceSpec, process: subprocess.Popen[bytes] | None = None) -> None:
        self.spec = spec
        self.process = process
        self.status = ServiceStatus(name=spec.name, state=ServiceState.STARTING, since=time.time())
        self._watch = Watch(spec.probe) if spec.probe is not None else None
        self._deaths = 0
        self._retry_at = self._spawned_at = self._up_at = self._reminded_at = time.monotonic()
        if process is not None:
            self._note_process(process)

    def check(self) -> list[str]:
        """Restart the service if it died and its delay is over; return the changes as sentences."""
        if self.spec.spawn is None:
            return self._look()
        if self.process is None:
            return self._spawn() if time.monotonic() >= self._retry_at else self._remind()
        code = self.process.poll()
        return self._look() if code is None else self._died(_how_it_ended(code))

    def close(self) -> None:
        """Stop the probes."""
        if self._watch is not None:
            self._watch.close()

    def _spawn(self) -> list[str]:
        assert self.spec.spawn is not None
        restart = self._deaths > 0
        try:
            process = self.spec.spawn()
        except (OSError, PreflightError) as error:
            return self._died(f"it cannot be started: {error}")
        self._note_process(process)
        self.status = replace(self.status, restarts=self.status.restarts + restart)
        return []

    def _note_process(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._spawned_at = time.monotonic()
        self.status = replace(self.status, pid=process.pid, started=process_start(process.pid) or 0)

    def _died(self, reason: str) -> list[str]:
        if self.process is not None:
            end_group(self.process.pid)
        self.process = None
        self.status = replace(self.status, pid=0, started=0)
        now = time.monotonic()
        if self.status.state is ServiceState.UP and now - self._up_at > STABLE_S:
            self._deaths = 0
        pause = 0.0 if self._deaths == 0 else min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** (self._deaths - 1))
        self._deaths += 1
        self._retry_at = now + pause
        again = "starting it again" if pause == 0 else f"starting it again in {pause:.0f} s"
        log = f"; its log is {self.spec.log}" if self.spec.log is not None else ""
        return self._down(reason, f"{again}{log}")

    def _look(self) -> list[str]:
        """Update the state from the newest probe and return the changes as sentences."""
        answer = self._answer()
        if answer is None:
            return self._remind()
        up = self.status.state is ServiceState.UP
        if not answer.trouble and not up:
            return self._up()
        if answer.confirmed and up:
            return self._down(f"it does not answer: {answer.trouble}", "waiting for it", since=answer.since)
        return self._remind()

    def _answer(self) -> Answer | None:
        """Return the newest probe of the current process; without a probe it is up after ``SETTLED_S``."""
        if self._watch is None:
            now = time.monotonic()
            return Answer(now, "") if now - self._spawned_at > SETTLED_S else None
        answer = self._watch.answer
        return answer if answer is not None and answer.asked_at >= self._spawned_at else None

    def _up(self) -> list[str]:
        before = self.status
        self._up_at = time.monotonic()
        self.status = replace(before, state=ServiceState.UP, since=time.time())
        if before.state is ServiceState.STARTING:
            return []
        return [f"{self.spec.title} is up again after {self.status.since - before.since:.1f} s."]

    def _down(self, reason: str, next_step: str, *, since: float | None = None) -> list[str]:
        if self.status.state is not ServiceState.DOWN:
            self.status = replace(self.status, state=ServiceState.DOWN, since=since or time.time())
        self.status = replace(self.status, reason=reason)
        self._reminded_at = time.monotonic()
        return [f"{self.spec.title} is down: {reason}; {next_step}."]

    def _remind(self) -> list[str]:
        if self.status.state is not ServiceState.DOWN or time.monotonic() - self._reminded_at < REMIND_S:
            return []
        self._reminded_at = time.monotonic()
        since = time.strftime("%H:%M:%S", time.localtime(self.status.since))
        return [f"{self.spec.title} is still down, since {since}: {self.status.reason}."]


def _how_it_ended(code: int) -> str:
    return f"it ended with exit code {code}" if code >= 0 else f"it was ended by {signal.Signals(-code).name}"


def end_group(group: int) -> None:
    """Kill the remaining processes of a group led by a child process."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


class ServiceTable:
    """Services of one supervisor."""

    def __init__(self) -> None:
        self.services: list[Service] = []

    def start(self, spec: ServiceSpec, process: subprocess.Popen[bytes] | None = None) -> None:
        """Start a service, or take over its process, and supervise it.

        Raises:
            PreflightError, OSError: the service cannot be started.
        """
        if process is None and spec.spawn is not None:
            process = spec.spawn()
        self.services.append(Service(spec, process))

    def __getitem__(self, name: str) -> Service:
        return next(service for service in self.services if service.spec.name == name)

    def check(self) -> list[str]:
        """Restart services that died; return the changes as sentences."""
        return [note for service in self.services for note in service.check()]

    def statuses(self) -> list[ServiceStatus]:
        """Return the state of every service."""
        return [service.status for service in self.services]

    def stop(self, names: Collection[str], *, seconds: float) -> None:
        """Stop services concurrently; kill those that have not ended after ``seconds``."""
        stopped = [service for service in self.services if service.spec.name in names]
        self.services = [service for service in self.services if service not in stopped]
        for service in stopped:
            service.close()
            if service.process is not None:
                service.process.send_signal(service.spec.stop_signal)
        deadline = time.monotonic() + seconds
        for process in [service.process for service in stopped if service.process is not None]:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            end_group(process.pid)
            process.wait()

"""Memory, process and CPU limits by control groups, version 1 or 2, whichever is writable.

A sandbox's groups are made below the caller's own, so that a container's or a service's limit still holds
over them. To support another controller, add its files to ``_settings_v1`` and ``_settings_v2``.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from engine.sandbox.base import SandboxLimits

_PERIOD_US = 100_000
_OVERHEAD_PROCESSES = 2
"""Processes of bubblewrap and the agent, which count against the group's limit."""
_ABANDONED_S = 600.0


def _memory_bytes(limits: SandboxLimits) -> int:
    return (limits.memory_mb + limits.disk_mb) << 20  # files live in a tmpfs, which is memory to the kernel


def _settings_v1(limits: SandboxLimits) -> dict[str, list[tuple[str, int]]]:
    memory = _memory_bytes(limits)
    return {
        "memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
        "pids": [("pids.max", limits.processes + _OVERHEAD_PROCESSES)],
        "cpu": [("cpu.cfs_period_us", _PERIOD_US), ("cpu.cfs_quota_us", int(limits.cpus * _PERIOD_US))],
    }


def _settings_v2(limits: SandboxLimits) -> list[tuple[str, str]]:
    return [
        ("memory.max", str(_memory_bytes(limits))),
        ("memory.swap.max", "0"),
        ("pids.max", str(limits.processes + _OVERHEAD_PROCESSES)),
        ("cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"),
    ]


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Parent folders of sandbox groups: by controller in version 1, under ``""`` in version 2."""

    parents: dict[str, Path]

    def plan(self, name: str) -> tuple[str, ...]:
        """Return the folders that ``create`` will make, so that the ledger can name them beforehand."""
        return tuple(str(parent / f"trainyard-{name}") for parent in self.parents.values())

    def create(self, name: str, limits: SandboxLimits) -> None:
        """Create a sandbox's groups and set its limits."""
        v1 = _settings_v1(limits)
        for controller, parent in self.parents.items():
            folder = parent / f"trainyard-{name}"
            folder.mkdir()
            settings = (
                [(key, str(value)) for key, value in v1[controller]] if controller else _settings_v2(limits)
            )
            for key, text in settings:
                file = folder / key
                if file.exists():  # swap accounting may be compiled out
                    file.write_text(text)


def kill(folders: tuple[str, ...]) -> None:
    """Kill every process in the groups, new ones too, until they are empty (two seconds at most)."""
    give_up = time.monotonic() + 2.0
    while time.monotonic() < give_up:
        pids = {pid for folder in folders for pid in _members(Path(folder))}
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def _members(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def remove(folders: tuple[str, ...]) -> bool:
    """Remove empty groups; return False when one is still busy."""
    clean = True
    for folder in folders:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            clean = False
    return clean


def remove_abandoned(found: Cgroups | None) -> None:
    """Remove empty, long unused groups whose ledger entry is gone."""
    for parent in found.parents.values() if found is not None else ():
        for folder in parent.glob("trainyard-sb-*"):
            try:
                if time.time() - folder.stat().st_mtime > _ABANDONED_S and not _members(folder):
                    os.rmdir(folder)
            except OSError:
                continue  # somebody else was faster, or it is in use after all


def oom_killed(folders: tuple[str, ...]) -> bool:
    """Return whether the kernel killed a process of the group for its memory use."""
    for folder in folders:
        for file in ("memory.oom_control", "memory.events"):
            try:
                rows = dict(line.split() for line in (Path(folder) / file).read_text().splitlines())
            except OSError:
                continue
            if int(rows.get("oom_kill", "0")) > 0:
                return True
    return False


def detect(mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")) -> Cgroups | None:
    """Find writable groups for this process; return None when there are none."""
    paths: dict[str, str] = {}
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mounts.read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup":
            for controller in {"memory", "pids", "cpu"} & set(options.split(",")):
                v1[controller] = _own_folder(Path(mount), paths.get(controller, "/"))
        elif kind == "cgroup2":
            v2 = _delegated(Path(mount), _own_folder(Path(mount), paths.get("", "/")))
    if len(v1) == 3 and all(os.access(folder, os.W_OK) for folder in v1.values()):
        return Cgroups(v1)
    return Cgroups({"": v2}) if v2 is not None else None


def _own_folder(mount: Path, path: str) -> Path:
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount  # inside a container the path may be the host's


def _delegated(mount: Path, folder: Path) -> Path | None:
    """Return the nearest ancestor group that delegates all three controllers."""
    while True:
        try:
            enabled = set((folder / "cgroup.subtree_control").read_text().split())
        except OSError:
            enabled = set()
        if {"memory", "pids", "cpu"} <= enabled and os.access(folder, os.W_OK):
            return folder
        if folder == mount:
            return None
        folder = folder.parent

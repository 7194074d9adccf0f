"""Memory, process and CPU limits by control groups, version 1 or 2, whichever is writable.

Groups are made below the caller's own, so that a container's or a service's limit still holds over them. To
support another controller, add its files to ``_settings_v1`` and ``_settings_v2``.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNTS, _OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")
_CONTROLLERS = {"memory", "pids", "cpu"}
_PERIOD_US = 100_000
_ABANDONED_S = 600.0


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of one group; None sets none."""

    memory_bytes: int
    processes: int | None = None
    cpus: float | None = None


def _settings_v1(limits: GroupLimits) -> dict[str, list[tuple[str, int]]]:
    memory = limits.memory_bytes
    settings = {"memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]}
    if limits.processes is not None:
        settings["pids"] = [("pids.max", limits.processes)]
    if limits.cpus is not None:
        quota = int(limits.cpus * _PERIOD_US)
        settings["cpu"] = [("cpu.cfs_period_us", _PERIOD_US), ("cpu.cfs_quota_us", quota)]
    return settings


def _settings_v2(limits: GroupLimits) -> list[tuple[str, str]]:
    settings = [("memory.max", str(limits.memory_bytes)), ("memory.swap.max", "0")]
    if limits.processes is not None:
        settings.append(("pids.max", str(limits.processes)))
    if limits.cpus is not None:
        settings.append(("cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"))
    return settings


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Parent folders of groups: by controller in version 1, under ``""`` in version 2."""

    parents: dict[str, Path]

    def plan(self, name: str) -> tuple[str, ...]:
        """Return the folders that ``create`` makes with all limits, so that a ledger can name them first."""
        return tuple(str(parent / f"trainyard-{name}") for parent in self.parents.values())

    def create(self, name: str, limits: GroupLimits) -> tuple[str, ...]:
        """Create a group with its limits; return its folders."""
        v1 = _settings_v1(limits)
        folders = []
        for controller, parent in self.parents.items():
            if controller and controller not in v1:
                continue
            folder = parent / f"trainyard-{name}"
            folder.mkdir()
            folders.append(str(folder))
            settings = (
                [(key, str(value)) for key, value in v1[controller]] if controller else _settings_v2(limits)
            )
            for key, text in settings:
                file = folder / key
                if file.exists():  # swap accounting may be compiled out
                    file.write_text(text)
        return tuple(folders)


def join(folders: tuple[str, ...]) -> None:
    """Move this process, with what it starts from now on, into groups."""
    for folder in folders:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))


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
            Path(folder).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            clean = False
    return clean


def remove_abandoned(found: Cgroups | None) -> None:
    """Remove empty, long unused groups that no ledger names."""
    for parent in found.parents.values() if found is not None else ():
        for folder in parent.glob("trainyard-*"):
            try:
                if time.time() - folder.stat().st_mtime > _ABANDONED_S and not _members(folder):
                    folder.rmdir()
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


def detect(mounts: Path = _MOUNTS, own: Path = _OWN) -> Cgroups | None:
    """Find writable groups for this process; return None when there are none."""
    folders = _own_folders(mounts, own)
    v1 = {controller: folder for controller, folder in folders.items() if controller}
    if v1.keys() == _CONTROLLERS and all(os.access(folder, os.W_OK) for folder in v1.values()):
        return Cgroups(v1)
    delegated = _delegated(folders[""]) if "" in folders else None
    return Cgroups({"": delegated}) if delegated is not None else None


def memory_limit(mounts: Path = _MOUNTS, own: Path = _OWN) -> int | None:
    """Return the smallest limit over this process's memory, bytes; None where no group has any."""
    folders = _own_folders(mounts, own)
    files = []
    if folder := folders.get("memory"):
        files += [parent / "memory.limit_in_bytes" for parent in (folder, *folder.parents)]
    if folder := folders.get(""):
        files += [parent / "memory.max" for parent in (folder, *folder.parents)]
    limits = []
    for file in files:
        with suppress(OSError, ValueError):  # no such group, or "max"
            limits.append(int(file.read_text()))
    return min(limits, default=None)


def throttled_periods(mounts: Path = _MOUNTS, own: Path = _OWN) -> dict[Path, tuple[int, int]]:
    """Return periods that reached a processor quota, and all, by group over this process that has one."""
    folders = _own_folders(mounts, own)
    found = {}
    for folder in (folders[name] for name in ("cpu", "") if name in folders):
        for parent in (folder, *folder.parents):
            with suppress(OSError, KeyError):  # no such group, or no quota in it
                stat = dict(line.split() for line in (parent / "cpu.stat").read_text().splitlines())
                found[parent] = int(stat["nr_throttled"]), int(stat["nr_periods"])
    return found


def _own_folders(mounts: Path, own: Path) -> dict[str, Path]:
    """Return the groups of this process: by controller in version 1, under ``""`` in version 2."""
    paths: dict[str, str] = {}
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    folders: dict[str, Path] = {}
    for line in mounts.read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup":
            for controller in _CONTROLLERS & set(options.split(",")):
                folders[controller] = _own_folder(Path(mount), paths.get(controller, "/"))
        elif kind == "cgroup2":
            folders[""] = _own_folder(Path(mount), paths.get("", "/"))
    return folders


def _own_folder(mount: Path, path: str) -> Path:
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount  # inside a container the path may be the host's


def _delegated(own: Path) -> Path | None:
    """Return the nearest ancestor group that delegates all three controllers."""
    for folder in (own, *own.parents):
        try:
            enabled = set((folder / "cgroup.subtree_control").read_text().split())
        except OSError:
            return None  # above the root group
        if enabled >= _CONTROLLERS and os.access(folder, os.W_OK):
            return folder
    return None

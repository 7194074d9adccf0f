"""Detection and limits of control groups of both versions, on folders that imitate them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.processes import cgroups

LIMITS = cgroups.GroupLimits(128 << 20, processes=12, cpus=0.5)


def files(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")


def test_cgroups_v2_use_the_nearest_delegating_group(tmp_path: Path) -> None:
    own = tmp_path / "cg/user/session"
    files(own, "cgroup.subtree_control")
    (tmp_path / "cg/user/cgroup.subtree_control").write_text("cpu io memory pids\n")
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path}/cg cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/user/session\n")
    groups = cgroups.detect(tmp_path / "mounts", tmp_path / "own")
    assert groups is not None
    assert groups.plan("x") == (str(tmp_path / "cg/user/trainyard-x"),)


def test_cgroups_v2_without_delegation_are_not_detected(tmp_path: Path) -> None:
    files(tmp_path / "cg", "cgroup.subtree_control")
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path}/cg cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/\n")
    assert cgroups.detect(tmp_path / "mounts", tmp_path / "own") is None


def test_cgroups_v1_need_all_three_controllers_and_fall_back_to_the_mount(tmp_path: Path) -> None:
    files(tmp_path / "memory/mine")
    files(tmp_path / "pids")
    lines = [f"c {tmp_path}/memory cgroup rw,memory 0 0", f"c {tmp_path}/pids cgroup rw,pids 0 0"]
    (tmp_path / "mounts").write_text("\n".join(lines))
    (tmp_path / "own").write_text("3:memory:/mine\n2:pids:/docker/of-the-host\n1:cpu,cpuacct:/\n")
    assert cgroups.detect(tmp_path / "mounts", tmp_path / "own") is None
    files(tmp_path / "cpu")
    lines.append(f"c {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0")
    (tmp_path / "mounts").write_text("\n".join(lines))
    groups = cgroups.detect(tmp_path / "mounts", tmp_path / "own")
    assert groups is not None
    assert groups.parents["memory"] == tmp_path / "memory/mine"
    assert groups.parents["pids"] == tmp_path / "pids"


def test_only_old_empty_groups_are_removed_as_abandoned(tmp_path: Path) -> None:
    for name, members in (("old", ""), ("young", ""), ("used", "1\n")):
        (tmp_path / f"trainyard-sb-{name}").mkdir()
        if members:
            (tmp_path / f"trainyard-sb-{name}" / "cgroup.procs").write_text(members)
    for name in ("old", "used"):
        os.utime(tmp_path / f"trainyard-sb-{name}", (0, 0))
    cgroups.remove_abandoned(cgroups.Cgroups({"": tmp_path}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainyard-sb-used", "trainyard-sb-young"]


def test_limits_are_applied_on_this_machine() -> None:
    groups = cgroups.detect()
    if groups is None:
        pytest.skip("no control groups are delegated to this process")
    name = "unit-test"
    groups.create(name, LIMITS)
    try:
        shown = {}
        for folder in groups.plan(name):
            for key in ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max"):
                path = Path(folder) / key
                if path.exists():
                    shown[key] = path.read_text().strip()
        assert shown.get("memory.limit_in_bytes", shown.get("memory.max")) == str(128 << 20)
        assert shown["pids.max"] == "12"
        assert shown.get("cpu.cfs_quota_us", shown.get("cpu.max", "").split(" ")[0]) == "50000"
        assert not cgroups.oom_killed(groups.plan(name))
    finally:
        assert cgroups.remove(groups.plan(name))
    assert cgroups.remove(groups.plan(name))

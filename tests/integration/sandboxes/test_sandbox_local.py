"""Local backend: conformance as root and as an ordinary user, cleanup, and images."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stamina
import structlog
import tenacity

from engine.errors import SandboxDiedError, SandboxStartError
from engine.processes import cgroups
from engine.sandbox.base import SandboxSpec
from engine.sandbox.conformance import CHECKS, Subject, reference_tree
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import OWNER, build_image, image_exists
from engine.sandbox.preflight import preflight

REPO = Path(__file__).parents[3]
_PATIENCE_S = 120.0

_OWNER = """
import asyncio, json, sys
from pathlib import Path
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.local.backend import LocalBackend

async def hold(backend, marker, lifetime):
    limits = SandboxLimits(memory_mb=96, processes=16, disk_mb=16, lifetime_s=lifetime)
    spec = SandboxSpec(image="reference", run_id="owned", limits=limits)
    async with backend.open(spec) as box:
        ready.append(box.id)
        if len(ready) == 3:
            print(json.dumps(ready), flush=True)
        await box.exec(f"(setsid sleep {marker} &) ; sleep {marker}", timeout_s=600)

async def main(home, marker, lifetime):
    backend = LocalBackend(Path(home))
    await asyncio.gather(*(hold(backend, marker, float(lifetime)) for _ in range(3)))

ready = []
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tree = folder / "tree"
    tree.mkdir()
    reference_tree(tree)
    build_image(folder, "reference", tree)
    (folder / "secret").write_text(SECRET)
    return folder


@pytest.fixture
def subject(home: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    return Subject(backend=LocalBackend(home), image="local:reference", secret_file=home / "secret")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_local_backend_conforms(check: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await check(subject)


@pytest.fixture
def readable_packages() -> Iterator[Path]:
    """World-readable copies of the third-party packages that the local backend imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for module in (stamina, structlog, tenacity):
            shutil.copytree(Path(module.__file__ or "").parent, folder / module.__name__)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_local_backend_conforms_for_an_ordinary_user(readable_packages: Path) -> None:
    python = Path("/usr/bin/python3")  # the tested Python may be in a folder that only root can read
    folders = [REPO, *REPO.resolve().parents]
    if not python.exists() or any((folder.stat().st_mode & 0o005) != 0o005 for folder in folders):
        pytest.skip("no Python and source tree that an ordinary user can read")
    parts = ["whole_tree", "every_kind_of_edit", "privileges", "host_is_visible", "memory_bomb", "forged"]
    done = subprocess.run(
        [python, "-B", "-m", "engine.sandbox.conformance", *parts],
        cwd=REPO,
        user=65532,
        group=65532,
        extra_groups=[],
        env={"PATH": os.defpath, "PYTHONPATH": str(readable_packages)},
        capture_output=True,
        text=True,
    )
    if "A sandbox does not start" in done.stdout or "unshare: Operation not permitted" in done.stdout:
        pytest.skip("this kernel gives ordinary users no user namespaces")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == len(parts)


@pytest.fixture
def marker() -> str:
    return f"7{secrets.randbelow(10**8):08d}"


def processes_with(marker: str) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", marker.encode()]:
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


@pytest.fixture
def owner(home: Path, marker: str, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    lifetime = getattr(request, "param", 600)
    command = [sys.executable, "-c", _OWNER, str(home), marker, str(lifetime)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert len(json.loads(process.stdout.readline())) == 3
            wait_until(lambda: len(processes_with(marker)) == 6)
            yield process
        finally:
            process.kill()


def leftovers(backend: LocalBackend) -> list[str]:
    entries = list(backend.ledger.entries())
    return [
        path
        for entry in entries
        for path in (entry.id, *entry.cgroups)
        if "/" not in path or Path(path).exists()
    ]


@pytest.mark.parametrize("with_spawner", [False, True], ids=["owner", "owner and spawner"])
async def test_killed_owner_leaves_no_processes_entries_or_cgroups(
    home: Path, marker: str, owner: subprocess.Popen[str], with_spawner: bool
) -> None:
    backend = LocalBackend(home)
    assert await backend.reap() == 0
    entries = [entry for entry in backend.ledger.entries() if entry.run_id == "owned"]
    assert len(entries) == 3
    victims = [owner.pid]
    if with_spawner:
        victims.append(int(Path(f"/proc/{entries[0].pid}/stat").read_text().rpartition(")")[2].split()[1]))
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    owner.wait()
    wait_until(lambda: processes_with(marker) == [])
    assert await backend.reap(run_id="another") == 0
    assert await backend.reap(run_id="owned") == 3
    assert leftovers(backend) == []
    assert not any(Path(path).exists() for entry in entries for path in entry.cgroups)


@pytest.mark.parametrize("owner", [3], indirect=True)
async def test_reaper_removes_sandboxes_past_their_deadline(
    home: Path, marker: str, owner: subprocess.Popen[str]
) -> None:
    backend = LocalBackend(home)
    os.kill(owner.pid, signal.SIGSTOP)  # alive, but unable to enforce its sandboxes' deadlines
    removed = 0
    deadline = time.monotonic() + _PATIENCE_S
    while removed < 3 and time.monotonic() < deadline:
        removed += await backend.reap()
        time.sleep(0.1)
    assert removed == 3
    wait_until(lambda: processes_with(marker) == [])
    assert leftovers(backend) == []


async def test_killed_spawner_is_replaced_and_its_sandboxes_are_dead(home: Path) -> None:
    backend = LocalBackend(home)
    async with backend.open(SandboxSpec(image="reference")) as box:
        (entry,) = backend.ledger.entries()
        spawner = int(Path(f"/proc/{entry.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(spawner, signal.SIGKILL)
        with pytest.raises(SandboxDiedError):
            await box.exec("sleep 600", timeout_s=60)
        async with backend.open(SandboxSpec(image="reference")) as another:
            assert (await another.exec("echo fine", timeout_s=20)).stdout == b"fine\n"
    assert leftovers(backend) == []


def test_backend_serves_successive_event_loops(home: Path) -> None:
    backend = LocalBackend(home)

    async def use() -> bytes:
        async with backend.open(SandboxSpec(image="reference")) as box:
            return (await box.exec("echo fine", timeout_s=20)).stdout

    assert [asyncio.run(use()) for _ in range(2)] == [b"fine\n"] * 2
    assert leftovers(backend) == []


async def test_closing_removes_the_ledger_entry_and_cgroups(home: Path) -> None:
    backend = LocalBackend(home)
    async with backend.open(SandboxSpec(image="reference", run_id="r", name="key")):
        (entry,) = backend.ledger.entries()
        assert (entry.run_id, entry.name, entry.image, entry.owner_pid) == (
            "r",
            "key",
            "reference",
            os.getpid(),
        )
        assert entry.alive()
    assert leftovers(backend) == []
    assert not any(Path(path).exists() for path in entry.cgroups)
    assert not entry.alive()


async def test_slow_ledger_and_cgroup_calls_do_not_block_the_event_loop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each patched call waits for the event loop to make progress."""
    backend = LocalBackend(home)
    calls, loop = 0, asyncio.get_running_loop()

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            progressed = threading.Event()
            loop.call_soon_threadsafe(progressed.set)
            assert progressed.wait(_PATIENCE_S), f"{function} holds the event loop"
            return function(*arguments)

        return called

    for name in ("write", "remove"):
        monkeypatch.setattr(backend.ledger, name, slow(getattr(backend.ledger, name)))
    monkeypatch.setattr(cgroups.Cgroups, "create", slow(cgroups.Cgroups.create))
    monkeypatch.setattr(cgroups, "remove", slow(cgroups.remove))
    async with backend.open(SandboxSpec(image="reference")) as box:
        assert (await box.exec("echo up", timeout_s=_PATIENCE_S)).stdout == b"up\n"
    assert calls >= 4
    assert leftovers(backend) == []


async def test_failed_start_reports_its_reason_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    backend = LocalBackend(home)
    with pytest.raises(SandboxStartError, match="image 'nothing' is not built here"):
        async with backend.open(SandboxSpec(image="local:nothing")):
            pass
    with pytest.raises(SandboxStartError, match="has no folder /elsewhere"):
        async with backend.open(SandboxSpec(image="reference", workdir="/elsewhere")):
            pass
    (tmp_path / "file").touch()
    build_image(home, "broken", tmp_path, binds={"/opt/tool": str(tmp_path / "missing")})
    with pytest.raises(SandboxStartError, match="image 'broken' is not built here: .*missing is missing"):
        async with backend.open(SandboxSpec(image="broken")):
            pass
    build_image(home, "broken", tmp_path, binds={"/opt/tool": str(tmp_path / "file")})
    with pytest.raises(SandboxStartError, match="did not start: .*Not a directory"):
        async with backend.open(SandboxSpec(image="broken")):
            pass
    assert leftovers(backend) == []


def descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


@pytest.mark.parametrize("function", ["socket.socketpair", "os.pipe"])
async def test_a_start_without_free_descriptors_leaves_none_open_and_is_not_counted(
    home: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit itself is no test: other threads open and close descriptors meanwhile."""
    backend = LocalBackend(home)

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with backend.open(SandboxSpec(image="reference")):
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(f"engine.sandbox.local.backend.{function}", fail)
            with pytest.raises(OSError, match="Too many open files"):
                async with backend.open(SandboxSpec(image="reference")):
                    pass
        assert not descriptors() - before
        assert backend.population().existing == 1
    assert leftovers(backend) == []


async def test_images_set_environment_and_binds_and_can_be_rebuilt(home: Path, tmp_path: Path) -> None:
    tool, tree = tmp_path / "tool", tmp_path / "tree"
    for folder in (tool, tree):
        folder.mkdir()
    (tool / "module.py").write_text("value = 42\n")
    backend = LocalBackend(home)
    assert not image_exists(home, "local:tools")
    for version in ("one", "two"):
        (tree / "version").write_text(version)
        build_image(home, "tools", tree, env={"PYTHONPATH": "/opt/tool"}, binds={"/opt/tool": str(tool)})
        async with backend.open(SandboxSpec(image="local:tools")) as box:
            result = await box.exec(
                "cat version; python3 -c 'import module; print(module.value)'", timeout_s=20
            )
            assert result.stdout.decode() == f"{version}42\n"
            assert (await box.exec("touch /opt/tool/x", timeout_s=20)).exit_code != 0
            await box.write_file("version", b"changed")
    assert (tree / "version").read_text() == "two"
    assert image_exists(home, "tools")


async def test_image_binds_are_read_only(home: Path, tmp_path: Path) -> None:
    tool, tree = tmp_path / "tool", tmp_path / "tree"
    for folder in (tool, tree):
        folder.mkdir()
        folder.chmod(0o777)
    build_image(home, "vendored", tree, binds={"/testbed/vendor/tool": str(tool), "/opt/tool": str(tool)})
    async with LocalBackend(home).open(SandboxSpec(image="vendored")) as box:
        for name in ("/testbed/vendor/tool", "/opt/tool"):
            result = await box.exec(["touch", f"{name}/x"], timeout_s=_PATIENCE_S)
            assert b"Read-only file system" in result.stderr
        assert (await box.exec("touch x", timeout_s=_PATIENCE_S)).exit_code == 0
    assert list(tool.iterdir()) == []


async def test_home_folder_name_may_be_invalid_utf8(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(b"caf\xe9, and: more")
    home.mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("content")
    build_image(home, "odd", tmp_path / "tree")
    async with LocalBackend(home).open(SandboxSpec(image="odd")) as box:
        assert (await box.exec("cat file", timeout_s=_PATIENCE_S)).stdout == b"content"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root owns files as root")
async def test_commands_do_not_run_as_root_in_images_owned_by_root(home: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    build_image(home, "copied", tmp_path / "tree")
    rootfs = home / "images/copied/rootfs"
    for path in (rootfs, *rootfs.rglob("*")):
        os.chown(path, 0, 0, follow_symlinks=False)
    async with LocalBackend(home).open(SandboxSpec(image="copied")) as box:
        assert (await box.exec("chmod 666 /dev/null", timeout_s=_PATIENCE_S)).exit_code != 0
    assert {path.lstat().st_uid for path in rootfs.rglob("*")} == {OWNER}


async def test_preflight_reports_missing_requirements(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(home)
    assert [finding for finding in await preflight(backend) if finding.severity == "error"] == []
    backend.groups = None
    assert any("control groups" in finding.message for finding in await preflight(backend))
    monkeypatch.setenv("PATH", "/nowhere")
    assert any(
        "apt-get install bubblewrap" in finding.message for finding in await preflight(LocalBackend(home))
    )


async def test_images_are_copied_without_overlay_support(home: Path) -> None:
    backend = LocalBackend(home)
    backend.copies = True
    subject = Subject(backend=backend, image="reference", secret_file=home / "secret")
    checks = {check.__name__: check for check in CHECKS}
    for name in ("the_diff_of_every_kind_of_edit_applies_to_a_fresh_sandbox", "lists_folders"):
        await checks[name](subject)


def test_command_line_works_under_a_restrictive_umask(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("content")
    build_image(tmp_path, "masked", tmp_path / "tree")
    command = [sys.executable, "-m", "engine.sandbox", "--home", str(tmp_path)]
    cat = [*command, "exec", "masked", "cat", "file", "missing"]
    done = subprocess.run(cat, cwd=REPO, umask=0o077, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"content"), done.stderr
    assert b"missing" in done.stderr
    reaped = subprocess.run([*command, "reap"], cwd=REPO, capture_output=True, text=True, check=True)
    assert reaped.stdout == "0 removed\n"
    checked = subprocess.run([*command, "preflight", "--json"], cwd=REPO, capture_output=True, check=True)
    assert [row for row in json.loads(checked.stdout) if row["severity"] == "error"] == []

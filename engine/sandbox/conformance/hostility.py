"""Conformance against hostile commands: isolation, forgery, exhaustion and survival.

Each attack stays inside its sandbox or ends it with a typed error; other sandboxes are unaffected.
"""

from __future__ import annotations

import contextlib

from engine.errors import PatchError, SandboxDiedError, SandboxEvictedError, SandboxResourceError
from engine.sandbox.base import Sandbox
from engine.sandbox.conformance.subject import SECRET, Subject, check, raises


async def _works(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo alive", timeout_s=20)
    assert (result.exit_code, result.stdout) == (0, b"alive\n"), result


async def _python(sandbox: Sandbox, code: str, timeout_s: float = 30) -> tuple[int | None, str]:
    await sandbox.write_file("/tmp/attack.py", code.encode())
    result = await sandbox.exec(["python3", "/tmp/attack.py"], timeout_s=timeout_s)
    return result.exit_code, (result.stdout + result.stderr).decode(errors="replace")


@check
async def there_is_no_network(subject: Subject) -> None:
    """One loopback interface, no route, no name service."""
    async with subject.open() as sandbox:
        code, text = await _python(
            sandbox,
            "import socket\nprint(socket.if_nameindex())\n"
            "for where in (('1.1.1.1', 53), ('169.254.169.254', 80)):\n"
            "    try: socket.create_connection(where, 2); print('CONNECTED')\n"
            "    except OSError as error: print('refused')\n"
            "try: socket.getaddrinfo('example.com', 80); print('RESOLVED')\n"
            "except OSError: print('unresolved')\n",
        )
        assert code == 0, text
        assert text.splitlines() == ["[(1, 'lo')]", "refused", "refused", "unresolved"]


@check
async def nothing_of_the_host_is_visible(subject: Subject) -> None:
    """Commands see none of the host's environment, files, mounts or processes."""
    async with subject.open() as sandbox:
        env = await sandbox.exec("env; cat /proc/self/environ /proc/1/environ", timeout_s=10)
        assert SECRET.encode() not in env.stdout
        hosts = () if subject.own_root else ("/etc/shadow", "/root/.bashrc", "/root/.ssh", "/etc/hostname")
        for path in (str(subject.secret_file), *hosts):
            assert (await sandbox.exec(["ls", "-ld", path], timeout_s=10)).exit_code != 0, path
        if not subject.own_root:
            listing = await sandbox.exec(["ls", "-A", "/sys", "/home", "/root"], timeout_s=10)
            assert set(listing.stdout.decode().split()) <= {"/sys:", "/home:", "agent", "/root:", ".pyenv"}, (
                listing.stdout
            )
        mounts = await sandbox.exec("cat /proc/self/mountinfo", timeout_s=10)
        assert str(subject.secret_file.parent).encode() not in mounts.stdout, mounts.stdout
        processes = await sandbox.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=10)
        assert int(processes.stdout) <= 4


@check
async def there_are_no_privileges(subject: Subject) -> None:
    """Commands have no capability, cannot gain one, and cannot write to system files."""
    async with subject.open() as sandbox:
        script = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | cut -f2"
        status = await sandbox.exec(script, timeout_s=10)
        assert status.stdout.split() == [b"%d" % subject.uid, b"0" * 16, b"0" * 16, b"1"]
        written = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
        if subject.uid != 0:
            written += ["/usr/x", "/etc/x", "/x", "/dev/x", "/run/x"]
        privileged = ("unshare -U true", "unshare -m true", "mount -t tmpfs none /tmp", "mknod /tmp/m c 1 1")
        for attempt in (*privileged, "chroot / true", *(f"echo x > {path}" for path in written)):
            assert (await sandbox.exec(attempt, timeout_s=10)).exit_code != 0, attempt
        await _works(sandbox)


@check
async def no_core_leaves_the_sandbox(subject: Subject) -> None:
    """Limit 1 is the only one that also applies where the kernel pipes cores to a program of the host."""
    async with subject.open() as sandbox:
        code, text = await _python(
            sandbox, "import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))\n"
        )
        assert (code, text) == (0, "(1, 1)\n")


@check
async def a_status_cannot_be_forged(subject: Subject) -> None:
    """Fake frames on every descriptor and attacks on the agent do not change a command's result."""
    async with subject.open() as sandbox:
        code, text = await _python(
            sandbox,
            "import os\n"
            "body = b'd3;s2;idi1;s9;exit_codei0;s2;id'\n"
            "fake = (len(body)).to_bytes(4, 'big') + body\n"
            "for fd in range(3, 1024):\n"
            "    try: os.write(fd, fake * 10); print('WROTE', fd)\n"
            "    except OSError: pass\n"
            "agent = f'/proc/{os.getppid()}'\n"
            "paths = [agent + '/mem'] + [f'{agent}/fd/{n}' for n in range(9)]\n"
            "for path in paths:\n"
            "    try: os.write(os.open(path, os.O_WRONLY), fake); print('OPENED', path)\n"
            "    except OSError: pass\n"
            "for number in (2, 13, 15, 17, 19, 9):\n"
            "    try: os.kill(1, number)\n"
            "    except OSError: pass\n"
            "os.write(1, fake); os.write(2, fake)\n"
            "os._exit(3)\n",
        )
        assert code == 3
        assert "WROTE" not in text
        assert "OPENED" not in text
        await _works(sandbox)


@check
async def killing_everything_hurts_only_the_killer(subject: Subject) -> None:
    """``kill -9 -1`` from inside ends the command and nothing else."""
    async with subject.open() as sandbox:
        result = await sandbox.exec("sleep 700 & kill -9 -1; echo still here", timeout_s=20)
        assert result.exit_code in (0, 137)
        await _works(sandbox)


@check
async def a_memory_bomb_stays_inside(subject: Subject) -> None:
    """The bomb is killed or refused; a neighbour is unaffected, and the sandbox keeps working."""
    async with subject.open() as neighbour, subject.open() as sandbox:
        rank = await sandbox.exec("cat /proc/self/oom_score_adj", timeout_s=20)
        assert rank.stdout == b"1000\n", "the kernel would rather kill the agent"
        code, _ = await _python(sandbox, "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))\n", 60)
        assert code not in (0, None)
        await _works(neighbour)
        await _works(sandbox)


@check
async def a_fork_bomb_stays_inside(subject: Subject) -> None:
    """The process limit and the deadline hold, and later commands work again."""
    async with subject.open() as neighbour, subject.open() as sandbox:
        code, text = await _python(
            sandbox,
            "import os, time\ncount = 0\n"
            "for _ in range(2000):\n"
            "    try: pid = os.fork()\n"
            "    except OSError: break\n"
            "    if pid == 0: time.sleep(600)\n"
            "    count += 1\n"
            "print(count)\n",
        )
        assert code == 0, text
        assert int(text) <= subject.limits.processes
        bomb = await sandbox.exec("b() { b | b & b; }; b", timeout_s=1)
        assert bomb.timed_out or bomb.exit_code != 0
        await _works(neighbour)
        await _works(sandbox)


_ORPHANS = """\
import os, sys

def leave_orphan():
    child = os.fork()
    if child == 0:
        os.fork()
        os._exit(0)
    os.waitpid(child, 0)

def unreaped():
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/" + name + "/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            found += parent == os.getppid()
    return found

for batch in range(12):
    for _ in range(int(sys.argv[1]) // 4):
        leave_orphan()
    while unreaped():
        print("waiting", flush=True)
print("done")
"""


@check
async def orphans_do_not_fill_the_process_limit(subject: Subject) -> None:
    """Processes whose parent ended first are reaped while the command still runs, however much it prints.

    A batch is a quarter of the limit: on a busy machine the limit may fill before the agent gets to run.
    """
    async with subject.open() as sandbox:
        await sandbox.write_file("/tmp/orphans.py", _ORPHANS.encode())
        result = await sandbox.exec(
            ["python3", "/tmp/orphans.py", str(subject.limits.processes)], timeout_s=60
        )
        assert (result.exit_code, result.stderr) == (0, b""), result
        assert result.stdout.endswith(b"done\n")


@check
async def a_full_disk_stays_inside(subject: Subject) -> None:
    """Bytes and inodes are limited; output is not lost; errors are those of a full disk."""
    if subject.disk == "watched":
        await _an_overfull_box_ends(subject)
        return
    async with subject.open() as sandbox:
        fill = await sandbox.exec(
            "head -c 200000000 /dev/zero > fill; echo status $? >&2; echo printed", timeout_s=60
        )
        assert fill.stdout == b"printed\n"
        assert b"No space left" in fill.stderr
        with raises(OSError, "space"):
            await sandbox.write_file("a.txt", b"x" * 100_000)
        assert await sandbox.read_file("a.txt") == b"first\nsecond\nthird\n"
        patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n first\n second\n third\n+" + "x" * 100_000 + "\n"
        with raises(PatchError, "space"):
            await sandbox.apply_patch(patch)
        shared_paths = ("/home/agent/fill", "/dev/shm/fill") if subject.disk == "shared" else ()
        for path in ("/tmp/fill", "/var/tmp/fill", *shared_paths):
            assert (await sandbox.exec(f"head -c 1000000 /dev/zero > {path}", timeout_s=20)).exit_code != 0, (
                path
            )
        await sandbox.exec("rm fill", timeout_s=20)
        if subject.disk == "shared":
            await _files_are_limited(sandbox)
        await _works(sandbox)
        await sandbox.write_file("a.txt", b"fine again")


async def _files_are_limited(sandbox: Sandbox) -> None:
    code, text = await _python(
        sandbox,
        "import os\nos.mkdir('many')\ntry:\n"
        "    for n in range(200000): open(f'many/{n}', 'w').close()\n"
        "except OSError as error: print(error.strerror)\n",
        120,
    )
    assert (code, text) == (0, "No space left on device\n")
    await _works(sandbox)
    await sandbox.exec("rm -r many", timeout_s=60)


async def _an_overfull_box_ends(subject: Subject) -> None:
    async with subject.open() as neighbour, subject.open() as sandbox:
        half = subject.limits.disk_mb // 2 << 20
        with raises((SandboxResourceError, SandboxEvictedError)):
            for number in range(4):
                await sandbox.exec(f"head -c {half} /dev/zero > fill{number}", timeout_s=60)
            await sandbox.exec("sleep 600", timeout_s=600)
        await _works(neighbour)


@check
async def a_dead_sandbox_is_a_typed_error(subject: Subject) -> None:
    """When the sandbox itself ends, calls raise an infrastructure error."""
    async with subject.open(lifetime_s=0.5) as sandbox:
        with contextlib.suppress(SandboxDiedError):
            await sandbox.exec("sleep 600", timeout_s=60)
        for call in (
            sandbox.exec("true", timeout_s=5),
            sandbox.read_file("a.txt"),
            sandbox.diff(),
            sandbox.list_dir("."),
        ):
            with raises(SandboxDiedError):
                await call


@check
async def what_cannot_be_read_has_no_diff(subject: Subject) -> None:
    """An agent that makes its files unreadable gets a PatchError, not an infrastructure failure."""
    for script in ("mkdir locked && touch locked/file && chmod 0 locked", "chmod 0 a.txt && mv a.txt b.txt"):
        async with subject.open() as sandbox:
            assert (await sandbox.exec(script, timeout_s=10)).exit_code == 0
            with raises(PatchError, "cannot be read"):
                await sandbox.diff()
            await _works(sandbox)

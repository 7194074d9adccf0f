"""Conformance against hostile commands: isolation, forgery, exhaustion and survival.

Each attack stays inside its sandbox or ends it with a typed error; other sandboxes are unaffected.
"""

from __future__ import annotations

import contextlib

from engine.errors import PatchError, SandboxDiedError, SandboxEvictedError, SandboxResourceError
from engine.sandbox.base import Sandbox
from engine.sandbox.conformance.subject import SECRET, Subject, check, raises


async def _works(box: Sandbox) -> None:
    result = await box.exec("echo alive", timeout_s=20)
    assert (result.exit_code, result.stdout) == (0, b"alive\n"), result


async def _python(box: Sandbox, code: str, timeout_s: float = 30) -> tuple[int | None, str]:
    await box.write_file("/tmp/attack.py", code.encode())
    result = await box.exec(["python3", "/tmp/attack.py"], timeout_s=timeout_s)
    return result.exit_code, (result.stdout + result.stderr).decode(errors="replace")


@check
async def there_is_no_network(subject: Subject) -> None:
    """One loopback interface, no route, no name service."""
    async with subject.open() as box:
        code, text = await _python(
            box,
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
    async with subject.open() as box:
        env = await box.exec("env; cat /proc/self/environ /proc/1/environ", timeout_s=10)
        assert SECRET.encode() not in env.stdout
        hosts = () if subject.own_root else ("/etc/shadow", "/root/.bashrc", "/root/.ssh", "/etc/hostname")
        for path in (str(subject.secret_file), *hosts):
            assert (await box.exec(["ls", "-ld", path], timeout_s=10)).exit_code != 0, path
        if not subject.own_root:
            listing = await box.exec(["ls", "-A", "/sys", "/home", "/root"], timeout_s=10)
            assert set(listing.stdout.decode().split()) <= {"/sys:", "/home:", "agent", "/root:", ".pyenv"}, (
                listing.stdout
            )
        mounts = await box.exec("cat /proc/self/mountinfo", timeout_s=10)
        assert str(subject.secret_file.parent).encode() not in mounts.stdout, mounts.stdout
        processes = await box.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=10)
        assert int(processes.stdout) <= 4


@check
async def there_are_no_privileges(subject: Subject) -> None:
    """Commands have no capability, cannot gain one, and cannot write to system files."""
    async with subject.open() as box:
        script = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | cut -f2"
        status = await box.exec(script, timeout_s=10)
        assert status.stdout.split() == [b"%d" % subject.uid, b"0" * 16, b"0" * 16, b"1"]
        written = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
        if subject.uid != 0:
            written += ["/usr/x", "/etc/x", "/x", "/dev/x", "/run/x"]
        privileged = ("unshare -U true", "unshare -m true", "mount -t tmpfs none /tmp", "mknod /tmp/m c 1 1")
        for attempt in (*privileged, "chroot / true", *(f"echo x > {path}" for path in written)):
            assert (await box.exec(attempt, timeout_s=10)).exit_code != 0, attempt
        await _works(box)


@check
async def no_core_leaves_the_sandbox(subject: Subject) -> None:
    """Limit 1 is the only one that also applies where the kernel pipes cores to a program of the host."""
    async with subject.open() as box:
        code, text = await _python(box, "import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))\n")
        assert (code, text) == (0, "(1, 1)\n")


@check
async def a_status_cannot_be_forged(subject: Subject) -> None:
    """Fake frames on every descriptor and attacks on the agent do not change a command's result."""
    async with subject.open() as box:
        code, text = await _python(
            box,
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
        await _works(box)


@check
async def killing_everything_hurts_only_the_killer(subject: Subject) -> None:
    """``kill -9 -1`` from inside ends the command and nothing else."""
    async with subject.open() as box:
        result = await box.exec("sleep 700 & kill -9 -1; echo still here", timeout_s=20)
        assert result.exit_code in (0, 137)
        await _works(box)


@check
async def a_memory_bomb_stays_inside(subject: Subject) -> None:
    """The bomb is killed or refused; a neighbour is unaffected, and the sandbox keeps working."""
    async with subject.open() as neighbour, subject.open() as box:
        rank = await box.exec("cat /proc/self/oom_score_adj", timeout_s=20)
        assert rank.stdout == b"1000\n", "the kernel would rather kill the agent"
        code, _ = await _python(box, "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))\n", 60)
        assert code not in (0, None)
        await _works(neighbour)
        await _works(box)


@check
async def a_fork_bomb_stays_inside(subject: Subject) -> None:
    """The process limit and the deadline hold, and later commands work again."""
    async with subject.open() as neighbour, subject.open() as box:
        code, text = await _python(
            box,
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
        bomb = await box.exec("b() { b | b & b; }; b", timeout_s=1)
        assert bomb.timed_out or bomb.exit_code != 0
        await _works(neighbour)
        await _works(box)


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
    async with subject.open() as box:
        await box.write_file("/tmp/orphans.py", _ORPHANS.encode())
        result = await box.exec(["python3", "/tmp/orphans.py", str(subject.limits.processes)], timeout_s=60)
        assert (result.exit_code, result.stderr) == (0, b""), result
        assert result.stdout.endswith(b"done\n")


@check
async def a_full_disk_stays_inside(subject: Subject) -> None:
    """Bytes and inodes are limited; output is not lost; errors are those of a full disk."""
    if subject.disk == "watched":
        await _an_overfull_box_ends(subject)
        return
    async with subject.open() as box:
        fill = await box.exec(
            "head -c 200000000 /dev/zero > fill; echo status $? >&2; echo printed", timeout_s=60
        )
        assert fill.stdout == b"printed\n"
        assert b"No space left" in fill.stderr
        with raises(OSError, "space"):
            await box.write_file("a.txt", b"x" * 100_000)
        assert await box.read_file("a.txt") == b"first\nsecond\nthird\n"
        patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n first\n second\n third\n+" + "x" * 100_000 + "\n"
        with raises(PatchError, "space"):
            await box.apply_patch(patch)
        shared_paths = ("/home/agent/fill", "/dev/shm/fill") if subject.disk == "shared" else ()
        for path in ("/tmp/fill", "/var/tmp/fill", *shared_paths):
            assert (await box.exec(f"head -c 1000000 /dev/zero > {path}", timeout_s=20)).exit_code != 0, path
        await box.exec("rm fill", timeout_s=20)
        if subject.disk == "shared":
            await _files_are_limited(box)
        await _works(box)
        await box.write_file("a.txt", b"fine again")


async def _files_are_limited(box: Sandbox) -> None:
    code, text = await _python(
        box,
        "import os\nos.mkdir('many')\ntry:\n"
        "    for n in range(200000): open(f'many/{n}', 'w').close()\n"
        "except OSError as error: print(error.strerror)\n",
        120,
    )
    assert (code, text) == (0, "No space left on device\n")
    await _works(box)
    await box.exec("rm -r many", timeout_s=60)


async def _an_overfull_box_ends(subject: Subject) -> None:
    async with subject.open() as neighbour, subject.open() as box:
        half = subject.limits.disk_mb // 2 << 20
        with raises((SandboxResourceError, SandboxEvictedError)):
            for number in range(4):
                await box.exec(f"head -c {half} /dev/zero > fill{number}", timeout_s=60)
            await box.exec("sleep 600", timeout_s=600)
        await _works(neighbour)


@check
async def a_dead_sandbox_is_a_typed_error(subject: Subject) -> None:
    """When the sandbox itself ends, calls raise an infrastructure error."""
    async with subject.open(lifetime_s=0.5) as box:
        with contextlib.suppress(SandboxDiedError):
            await box.exec("sleep 600", timeout_s=60)
        for call in (box.exec("true", timeout_s=5), box.read_file("a.txt"), box.diff(), box.list_dir(".")):
            with raises(SandboxDiedError):
                await call


@check
async def what_cannot_be_read_has_no_diff(subject: Subject) -> None:
    """An agent that makes its files unreadable gets a PatchError, not an infrastructure failure."""
    for script in ("mkdir locked && touch locked/file && chmod 0 locked", "chmod 0 a.txt && mv a.txt b.txt"):
        async with subject.open() as box:
            assert (await box.exec(script, timeout_s=10)).exit_code == 0
            with raises(PatchError, "cannot be read"):
                await box.diff()
            await _works(box)

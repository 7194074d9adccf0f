"""Conformance of the system call filter: it refuses unneeded calls, and ordinary programs still work.

Each attempt would succeed, or fail with another error, if the call reached the kernel. To refuse another
call, change ``engine.sandbox.seccomp`` and add an attempt that needs no privilege to ``_ATTEMPTS``.
"""

from __future__ import annotations

import json

from engine.sandbox.base import Sandbox
from engine.sandbox.conformance.subject import Subject, check
from engine.sandbox.seccomp.profile import RULES, Syscall, Verdict, syscalls

_REFUSED = ("EPERM", "ENOSYS", "EAFNOSUPPORT", "ENOTSUP", "EINVAL")
_CALLS = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = json.loads(sys.argv[1])[os.uname().machine]
page = ctypes.create_string_buffer(4096)
def call(name, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    words += [ctypes.c_long(0)] * (6 - len(words))
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(numbers[name]), *words) >= 0:
        return "succeeded"
    return errno.errorcode[ctypes.get_errno()]
def tell(name, *arguments):
    if name in numbers:
        print(name, call(name, *arguments), flush=True)
"""
_ATTEMPTS = """
tell("io_uring_setup", 1, page)
tell("io_setup", 1, page)
tell("userfaultfd", 1)
tell("keyctl", 0, -3, 1)
tell("add_key", b"user", b"name", b"secret", 6, -3)
tell("request_key", b"user", b"name", 0, -3)
tell("bpf", 0, 0, 0)
tell("perf_event_open", 0, 0, -1, -1, 0)
tell("process_vm_readv", os.getpid(), page, 0, page, 0, 0)
tell("process_vm_writev", os.getpid(), page, 0, page, 0, 0)
tell("pidfd_getfd", -1, 0, 0)
tell("kcmp", os.getpid(), os.getpid(), 1, 0, 0)
tell("clone3", 0, 0)
tell("unshare", 0)
tell("setns", 0, 0)
tell("open_by_handle_at", -100, 0, 0)
tell("quotactl", 0, 0, 0, 0)
tell("fanotify_init", 0, 0)
tell("open_tree", -100, b"/", 0)
tell("fsopen", 0, 0)
tell("mq_open", b"name", os.O_RDWR | os.O_CREAT, 0o600, 0)
tell("syslog", 10, 0, 0)
tell("statmount", 0, 0, 0, 0)
tell("get_mempolicy", 0, 0, 0, 0, 0)
tell("mincore", page, 4096, page)
tell("cachestat", -1, 0, 0, 0)
tell("preadv2", -1, 0, 0, 0, 0, 8)
tell("fadvise64", os.open(sys.executable, os.O_RDONLY), 0, 0, 4)
tell("madvise", 0, 0, 20)
tell("madvise", 0, 0, 21)
tell("personality", 0x40000)
tell("clone", 0x10000000 | 17, 0, 0, 0, 0)
tell("prlimit64", os.getppid(), 7, 0, 0)
"""
_SOCKETS = """
import socket
for family in range(64):
    for kind in range(1, 7):
        try:
            socket.socket(family, kind).close()
            print(family)
        except OSError: pass
for protocol in range(1, 32):
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
        print("netlink", protocol)
    except OSError: pass
"""
_ORDINARY = """
import asyncio, concurrent.futures, ctypes, mmap, multiprocessing, os, select, signal, socket, subprocess, sys
import tempfile, threading, time
def work(number): return number * 2
if __name__ == "__main__":
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(4)]
    [thread.start() for thread in threads]; [thread.join() for thread in threads]
    subprocess.run(["true"], check=True, start_new_session=True)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
            assert list(pool.map(work, range(3))) == [0, 2, 4]
    async def talk():
        async def serve(reader, writer):
            writer.write(await reader.readline()); await writer.drain(); writer.close()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"echo\\n")
        assert await reader.readline() == b"echo\\n"
        child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
        assert await child.wait() == 3
    asyncio.run(talk())
    a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
    socket.if_nameindex()
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(0)
    with tempfile.TemporaryDirectory() as folder:
        assert libc.inotify_add_watch(watch, folder.encode(), 0x100) > 0
        open(os.path.join(folder, "new"), "w").close()
        assert select.select([watch], [], [], 10)[0]
    memory = mmap.mmap(-1, 4096); memory[:1] = b"m"
    os.memfd_create("name"); os.eventfd(0) if hasattr(os, "eventfd") else None
    signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
    os.sched_getaffinity(0); os.getrandom(8); os.utime("/tmp"); os.nice(0)
    print("works")
"""
_FOREIGN = """
import ctypes, mmap, os, platform
def ended(code):
    pid = os.fork()
    if pid == 0:
        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        os._exit(3 if function() == os.getpid() else 4)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if platform.machine() == "x86_64":
    print("i386", ended(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"))
    print("x32", ended(b"\\xb8\\x27\\x00\\x00\\x40\\x0f\\x05\\xc3"))
"""
_SUCCESS = 3
"""Exit status of a child in ``_FOREIGN`` whose system call returned its process id."""


async def _run(sandbox: Sandbox, code: str, *arguments: str) -> list[list[str]]:
    await sandbox.write_file("/tmp/calls.py", code.encode())
    result = await sandbox.exec(["python3", "/tmp/calls.py", *arguments], timeout_s=60)
    assert result.exit_code == 0, result
    return [line.split() for line in result.stdout.decode().splitlines()]


def _numbers() -> str:
    """Return the system call numbers as JSON: architecture → name → number."""

    def of(row: Syscall, architecture: str) -> int | None:
        return next((value for key, value in row.numbers.items() if key == architecture), None)

    machines = ("x86_64", "aarch64")
    return json.dumps(
        {
            machine: {row.name: of(row, machine) for row in syscalls() if of(row, machine) is not None}
            for machine in machines
        }
    )


@check
async def refuses_system_calls_that_agents_do_not_need(subject: Subject) -> None:
    """Refused: io_uring, keys, BPF, counters, namespaces, mounts, others' memory and limits, page cache."""
    async with subject.open() as sandbox:
        answers = await _run(sandbox, _CALLS + _ATTEMPTS, _numbers())
        assert len(answers) >= 20
        refused = {row.name for row in syscalls() if row.verdict is not Verdict.ALLOWED}
        for name, answer in answers:
            assert answer in _REFUSED, (name, answer)
            assert name in refused | {rule.name for rule in RULES}, name


@check
async def has_sockets_of_the_common_families_only(subject: Subject) -> None:
    """Unix, IPv4, IPv6 and netlink's interfaces; no virtual machine sockets, no kernel cryptography."""
    async with subject.open() as sandbox:
        families = await _run(sandbox, _SOCKETS)
        assert {tuple(words) for words in families} == {("1",), ("2",), ("10",), ("16",)}


@check
async def refuses_system_calls_of_other_architectures(subject: Subject) -> None:
    """A filter for one architecture does not cover the call numbers of another."""
    async with subject.open() as sandbox:
        for name, status in await _run(sandbox, _FOREIGN):
            assert int(status) != _SUCCESS, name


@check
async def ordinary_programs_run_under_the_filter(subject: Subject) -> None:
    """Threads, process pools, subprocesses, event loops, sockets, file watches, timers, shared memory."""
    async with subject.open() as sandbox:
        assert await _run(sandbox, _ORDINARY) == [["works"]]


_KEEPER = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
key = ctypes.create_string_buffer(b"the key of the parent")
child = os.fork()
if child == 0:
    parent = os.getppid()
    for file in ("mem", "environ", "maps", "fd/0"):
        try:
            os.close(os.open(f"/proc/{parent}/{file}", os.O_RDONLY)); print("opened", file)
        except OSError: pass
    buffer = ctypes.create_string_buffer(64)
    class Part(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    here, there = Part(ctypes.addressof(buffer), 8), Part(ctypes.addressof(key), 8)
    if libc.process_vm_readv(parent, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0: print("read")
    if libc.ptrace(16, parent, 0, 0) == 0: print("traced")
    if libc.ptrace(0x4206, parent, 0, 0) == 0: print("seized")
    print("tried", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@check
async def a_process_that_is_not_dumpable_keeps_its_memory(subject: Subject) -> None:
    """Its own child, of the same user, can neither read nor trace it."""
    async with subject.open() as sandbox:
        assert await _run(sandbox, _KEEPER) == [["tried"]]

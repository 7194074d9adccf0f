"""Seccomp profile: its table, the BPF programs compiled from it, and the JSON for container runtimes."""

from __future__ import annotations

import ctypes
import errno
import json
import struct
from collections.abc import Sequence

import pytest

from engine.sandbox.seccomp.bpf import program
from engine.sandbox.seccomp.oci import docker_option, docker_profile, runtime_profile
from engine.sandbox.seccomp.profile import RULES, Architecture, Verdict, syscalls

X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
TOKENS = {Architecture.X86_64: X86_64, Architecture.AARCH64: AARCH64}
ALLOW, KILL = 0x7FFF0000, 0x80000000


def refuse(number: int) -> int:
    return 0x00050000 | number


def run(code: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """Interpret a BPF program as the kernel does and return its verdict."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *[*arguments, *[0] * 6][:6])
    instructions = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at = accumulator = 0
    while True:
        kind, when_true, when_false, operand = instructions[at]
        at += 1
        match kind:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, operand)[0]
            case 0x54:
                accumulator &= operand
            case 0x05:
                at += operand
            case 0x15:
                at += when_true if accumulator == operand else when_false
            case 0x35:
                at += when_true if accumulator >= operand else when_false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"instruction {kind:#x}")


@pytest.mark.parametrize("architecture", list(Architecture))
def test_programs_return_the_verdict_of_every_listed_syscall(architecture: Architecture) -> None:
    code, conditional = program(architecture), {rule.name for rule in RULES}
    for row in syscalls():
        if architecture in row.numbers and row.name not in conditional:
            verdict = run(code, TOKENS[architecture], row.numbers[architecture], [0xFFFFFFFFFFFFFFFF] * 6)
            assert verdict == (refuse(row.verdict.errno) if row.verdict.errno else ALLOW), row.name


@pytest.mark.parametrize("architecture", list(Architecture))
def test_unknown_syscalls_and_foreign_architectures_are_refused(architecture: Architecture) -> None:
    code, token = program(architecture), TOKENS[architecture]
    known = {row.numbers[architecture] for row in syscalls() if architecture in row.numbers}
    for number in [*sorted(set(range(1024)) - known), 0x40000000, 0x40000027, 0x7FFFFFFF, 0xFFFFFFFF]:
        assert run(code, token, number) == refuse(errno.ENOSYS), number
    for foreign in {X86_64, AARCH64, I386} - {token}:
        assert run(code, foreign, 20) == KILL


ARGUMENTS = [
    ("socket", (1, 1, 0), 0),
    ("socket", (2, 2, 17), 0),
    ("socket", (10, 1, 0), 0),
    ("socket", (16, 3, 0), 0),
    ("socket", (16, 3, 9), errno.EAFNOSUPPORT),
    ("socket", (40, 1, 0), errno.EAFNOSUPPORT),
    ("socket", (38, 5, 0), errno.EAFNOSUPPORT),
    ("socket", (0x100000028, 1, 0), errno.EAFNOSUPPORT),
    ("socketpair", (1, 1, 0), 0),
    ("socketpair", (30, 5, 0), errno.EAFNOSUPPORT),
    ("clone", (0x1200011,), 0),
    ("clone", (0x3D0F00,), 0),
    *(("clone", (flag | 17,), errno.EPERM) for flag in (1 << 17, *(1 << bit for bit in range(25, 31)))),
    ("prlimit64", (0,), 0),
    ("prlimit64", (1,), errno.EPERM),
    ("personality", (0,), 0),
    ("personality", (0xFFFFFFFF,), 0),
    ("personality", (0x40000,), errno.EPERM),
    *(("fadvise64", (3, 0, 0, advice), 0) for advice in (0, 1, 2, 3, 5)),
    ("fadvise64", (3, 0, 0, 4), errno.EINVAL),
    *(("madvise", (0, 4096, advice), 0) for advice in (4, 8, 14, 18, 23)),
    *(("madvise", (0, 4096, advice), errno.EINVAL) for advice in (20, 21, 100)),
]


@pytest.mark.parametrize("architecture", list(Architecture))
def test_syscall_arguments_are_checked(architecture: Architecture) -> None:
    code, token = program(architecture), TOKENS[architecture]
    numbers = {row.name: row.numbers.get(architecture, -1) for row in syscalls()}
    for name, arguments, error in ARGUMENTS:
        verdict = run(code, token, numbers[name], arguments)
        assert verdict == (refuse(error) if error else ALLOW), (name, arguments)


def test_needless_and_dangerous_syscalls_are_not_allowed() -> None:
    verdicts = {row.name: row.verdict for row in syscalls()}
    for name in (
        *("io_uring_setup", "userfaultfd", "keyctl", "add_key", "request_key", "bpf", "perf_event_open"),
        *("kexec_load", "mount", "umount2", "move_mount", "open_tree", "open_by_handle_at", "quotactl"),
        *("process_vm_readv", "process_vm_writev", "pidfd_getfd", "unshare", "setns", "clone3", "mq_open"),
    ):
        assert verdicts[name] is not Verdict.ALLOWED, name


@pytest.mark.parametrize("architecture", list(Architecture))
def test_syscall_numbers_match_libseccomp(architecture: Architecture) -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    mismatches = []
    for row in syscalls():
        expected = resolve(TOKENS[architecture], row.name.encode())
        known = expected != -1  # otherwise the call is newer than the library
        if known and (expected if expected >= 0 else None) != row.numbers.get(architecture):
            mismatches.append((row.name, expected))
    assert mismatches == []


def test_runtime_profiles_match_the_syscall_table() -> None:
    for profile in (docker_profile(), runtime_profile()):
        assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
        named: dict[str, list[dict[str, object]]] = {}
        for entry in profile["syscalls"]:
            for name in entry["names"]:
                named.setdefault(name, []).append(entry)
        conditional = {rule.name: rule for rule in RULES}
        for row in syscalls():
            entries = named.get(row.name, [])
            if row.name in conditional:
                assert len(entries) == len(conditional[row.name].alternatives)
                assert all(entry["args"] for entry in entries)
            elif row.verdict is Verdict.ALLOWED:
                assert [entry["action"] for entry in entries] == ["SCMP_ACT_ALLOW"]
                assert "args" not in entries[0]
            elif row.verdict is Verdict.ABSENT:
                assert [entry["errnoRet"] for entry in entries] == [errno.ENOSYS]
            else:
                assert entries == []
    assert json.loads(docker_option().removeprefix("seccomp=")) == docker_profile()

"""Seccomp profile: a verdict for every system call, and rules on the arguments of a few.

A call that the table does not name is answered like an ``absent`` one, so a newer kernel adds nothing to a
sandbox. To change a verdict, edit ``syscalls.tsv``; for a condition on arguments, edit ``RULES``.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("syscalls.tsv")
_NEW_NAMESPACES = 0x7E020000
"""The CLONE_NEW… flags: mount, cgroup, UTS, IPC, user, PID and network namespace."""
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_RWF_NOWAIT = 0x8
_FILE_ADVICE = (0, 1, 2, 3, 5)
"""All of ``posix_fadvise`` but DONTNEED."""
_MEMORY_ADVICE = (*range(5), *range(8, 20), *range(22, 26))
"""All of ``madvise`` but COLD and PAGEOUT, which kernels before 5.4 lack, and the poisoning of pages."""
_PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, UNAME26 and 32-bit variants of both, and the query: no personality that weakens protections."""


class Architecture(StrEnum):
    """Machine of the kernel, as ``os.uname`` names it."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class Verdict(StrEnum):
    """Answer of the profile to a system call."""

    ALLOWED = "allowed"
    PRIVILEGED = "privileged"
    """EPERM, as for every process without capabilities."""
    ABSENT = "absent"
    """ENOSYS, as on a kernel built without it: programs have a fallback."""

    @property
    def errno(self) -> int:
        """Return the error number; 0 for an allowed call."""
        return {"allowed": 0, "privileged": errno.EPERM, "absent": errno.ENOSYS}[self.value]


@dataclass(frozen=True, slots=True)
class Argument:
    """A condition on the lower 32 bits of an argument: ``argument & mask == value``."""

    index: int
    value: int
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Rule:
    """An allowed system call that is refused with ``errno`` unless all conditions of one alternative hold."""

    name: str
    errno: int
    alternatives: tuple[tuple[Argument, ...], ...]


RULES = (
    Rule(
        "socket",
        errno.EAFNOSUPPORT,
        (
            *((Argument(0, family),) for family in (_AF_UNIX, _AF_INET, _AF_INET6)),
            (Argument(0, _AF_NETLINK), Argument(2, _NETLINK_ROUTE)),
        ),
    ),
    Rule("socketpair", errno.EAFNOSUPPORT, ((Argument(0, _AF_UNIX),),)),
    Rule("clone", errno.EPERM, ((Argument(0, 0, mask=_NEW_NAMESPACES),),)),
    Rule("personality", errno.EPERM, tuple((Argument(0, value),) for value in _PERSONALITIES)),
    Rule("preadv2", errno.ENOTSUP, ((Argument(5, 0, mask=_RWF_NOWAIT),),)),
    Rule("fadvise64", errno.EINVAL, tuple((Argument(3, advice),) for advice in _FILE_ADVICE)),
    Rule("madvise", errno.EINVAL, tuple((Argument(2, advice),) for advice in _MEMORY_ADVICE)),
    Rule("prlimit64", errno.EPERM, ((Argument(0, 0),),)),
)
"""Sandboxes share the host's page cache. Non-blocking ``preadv2``, ``mincore`` and ``cachestat`` would show a
submission which pages an earlier run of its tests left there, and advice to drop pages would control them.
With ``prlimit64`` on other processes, a submission could end its sandbox's agent.

``clone3`` is absent because it takes its flags through memory, which no filter can read."""


@dataclass(frozen=True, slots=True)
class Syscall:
    """A row of ``syscalls.tsv``."""

    name: str
    numbers: dict[Architecture, int]
    """Number on each architecture that has the call."""
    verdict: Verdict


@cache
def syscalls() -> tuple[Syscall, ...]:
    """Return the rows of ``syscalls.tsv``."""
    rows = []
    for line in _TABLE.read_text().splitlines():
        name, *numbers, verdict = line.split("\t")
        known = {arch: int(text) for arch, text in zip(Architecture, numbers, strict=True) if text != "-"}
        rows.append(Syscall(name, known, Verdict(verdict)))
    return tuple(rows)

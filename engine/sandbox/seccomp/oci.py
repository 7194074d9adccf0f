"""The profile as the JSON that container runtimes read: Docker's ``seccomp=`` option, a node's profile file.

i386 and x32 are not listed, and a runtime kills a process that makes a call of an unlisted architecture. A
call that no row allows is refused with EPERM; the BPF form instead returns a rule's own error number for
arguments that break it. runc answers ENOSYS to calls that are newer than all named ones.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from engine.sandbox.seccomp.profile import RULES, Argument, Verdict, syscalls

_ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")
_ALLOW, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"


def docker_profile() -> dict[str, Any]:
    """Return the profile in Docker's form, for every architecture; the daemon chooses."""
    return {
        "defaultAction": _ERRNO,
        "defaultErrnoRet": Verdict.PRIVILEGED.errno,
        "archMap": [{"architecture": name, "subArchitectures": []} for name in _ARCHITECTURES],
        "syscalls": _rows(),
    }


def runtime_profile() -> dict[str, Any]:
    """Return the profile in the form of the OCI runtime specification, as the kubelet reads it on a node."""
    return {
        "defaultAction": _ERRNO,
        "defaultErrnoRet": Verdict.PRIVILEGED.errno,
        "architectures": list(_ARCHITECTURES),
        "syscalls": _rows(),
    }


@cache
def docker_option() -> str:
    """Return the profile as a value of a container's ``SecurityOpt``."""
    return "seccomp=" + json.dumps(docker_profile(), separators=(",", ":"))


def _rows() -> list[dict[str, Any]]:
    conditional = {rule.name for rule in RULES}
    names = {verdict: [row.name for row in syscalls() if row.verdict == verdict] for verdict in Verdict}
    plain = [name for name in names[Verdict.ALLOWED] if name not in conditional]
    absent = {"names": names[Verdict.ABSENT], "action": _ERRNO, "errnoRet": Verdict.ABSENT.errno}
    rules = [
        {"names": [rule.name], "action": _ALLOW, "args": [_condition(argument) for argument in alternative]}
        for rule in RULES
        for alternative in rule.alternatives
    ]
    return [{"names": plain, "action": _ALLOW}, absent, *rules]


def _condition(argument: Argument) -> dict[str, Any]:
    if argument.mask == 0xFFFFFFFF:
        return {"index": argument.index, "value": argument.value, "op": "SCMP_CMP_EQ"}
    return {
        "index": argument.index,
        "value": argument.mask,
        "valueTwo": argument.value,
        "op": "SCMP_CMP_MASKED_EQ",
    }

"""The profile as a classic BPF program, as the kernel and bubblewrap's ``--seccomp`` expect it.

Written here because the maintained libraries either need ``libseccomp.so`` on the host (pyseccomp, Debian's
python3-seccomp) or are in their first release; the tests compare the numbers with libseccomp's where it is
installed. A program first kills on calls of another architecture (i386 on x86-64), then finds the call by
binary search, in about eight comparisons; x32 calls have numbers beyond every known one.
"""

from __future__ import annotations

import os
import struct
from functools import cache

from engine.errors import PreflightError
from engine.sandbox.seccomp.profile import RULES, Architecture, Argument, Rule, Verdict, syscalls

_LOAD, _AND = 0x20, 0x54
_JUMP, _IF_EQUAL, _IF_AT_LEAST = 0x05, 0x15, 0x35
_RETURN = 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``; the lower half of an argument comes first on both architectures."""
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_AUDIT_ARCHITECTURES = {Architecture.X86_64: 0xC000003E, Architecture.AARCH64: 0xC00000B7}
_FARTHEST = 255
"""Largest distance of a conditional jump, in instructions."""

Instruction = tuple[int, int, int, int]
"""Code, distance when true, distance when false, operand."""
Segment = tuple[int, list[Instruction]]
"""First system call number, and the code for it and all numbers up to the next segment."""


def native_program() -> bytes:
    """Return the program for this machine. Raises PreflightError on an architecture without one."""
    machine = os.uname().machine
    if machine not in tuple(Architecture):
        raise PreflightError(
            f"local sandboxes filter system calls on {' and '.join(Architecture)}, and this machine is "
            f"{machine}: use the Docker or the Kubernetes backend"
        )
    return program(Architecture(machine))


@cache
def program(architecture: Architecture) -> bytes:
    """Return the program as an array of ``struct sock_filter``."""
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[architecture]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        *_search(_segments(architecture)),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _segments(architecture: Architecture) -> list[Segment]:
    """Return the whole range of numbers as segments with the same code, in ascending order."""
    unknown = [_answer(Verdict.ABSENT.errno)]
    rules = {rule.name: _conditions(rule) for rule in RULES}
    known = {}
    for row in syscalls():
        if architecture in row.numbers:
            plain = [_answer(row.verdict.errno)]
            known[row.numbers[architecture]] = rules.get(row.name, plain)
    segments: list[Segment] = []
    for number in range(max(known) + 2):
        code = known.get(number, unknown)
        if not segments or segments[-1][1] != code:
            segments.append((number, code))
    return segments


def _answer(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number if number else _ALLOW)


def _search(segments: list[Segment]) -> list[Instruction]:
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, above = _search(segments[:middle]), _search(segments[middle:])
    first = segments[middle][0]
    if len(below) <= _FARTHEST:
        return [(_IF_AT_LEAST, len(below), 0, first), *below, *above]
    return [(_IF_AT_LEAST, 0, 1, first), (_JUMP, 0, 0, len(below)), *below, *above]


def _conditions(rule: Rule) -> list[Instruction]:
    code: list[Instruction] = []
    for alternative in rule.alternatives:
        tests = [_test(argument) for argument in alternative]
        left = sum(map(len, tests)) + 1  # instructions up to the next alternative
        for test in tests:
            left -= len(test)
            (kind, _, _, value) = test[-1]
            code += [*test[:-1], (kind, 0, left, value)]
        code.append(_answer(0))
    return [*code, _answer(rule.errno)]


def _test(argument: Argument) -> list[Instruction]:
    masked: list[Instruction] = [] if argument.mask == 0xFFFFFFFF else [(_AND, 0, 0, argument.mask)]
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument.index),
        *masked,
        (_IF_EQUAL, 0, 0, argument.value),
    ]

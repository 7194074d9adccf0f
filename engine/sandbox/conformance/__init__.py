"""Conformance suite for sandbox backends: each check is an async function that takes a ``Subject``.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_conformance(check, subject): await check(subject)

``python -m engine.sandbox.conformance [PART OF A NAME…]`` runs it against the local backend on this machine.

To add a check, write a function in ``commands``, ``files``, ``hostility`` or ``syscalls``, decorated with
``@check``.
"""

from engine.sandbox.conformance import commands, files, hostility, syscalls
from engine.sandbox.conformance.subject import CHECKS, Subject, reference_tree

__all__ = ["CHECKS", "Subject", "commands", "files", "hostility", "reference_tree", "syscalls"]

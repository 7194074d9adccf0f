"""Warnings of the preflight's trial sandbox."""

from __future__ import annotations

import pytest

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.base import ExecResult, SandboxSpec
from engine.sandbox.kubernetes.preflight.trial import needless_calls
from tests.fakes.memory_sandbox import MemorySandbox, printed


@pytest.mark.parametrize("reached", ["", "io_uring, AF_VSOCK"])
async def test_seccomp_profile_that_allows_needless_syscalls_is_reported(reached: str) -> None:
    async def command(_command: str) -> ExecResult:
        return printed(f"{reached}\n")

    sandbox = MemorySandbox(SandboxSpec(image="any"), 1, {}, command)
    messages = [str(finding) for finding in await needless_calls(sandbox, KubernetesConfig())]
    if reached:
        (message,) = messages
        assert "seccomp=RuntimeDefault lets io_uring, AF_VSOCK reach" in message
    else:
        assert messages == []

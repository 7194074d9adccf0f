"""The environment of software-engineering tasks: a sandbox of the task's image and its tools.

Nothing is installed inside the sandbox; tools run on the host and use its protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from engine.config.rollout import AgentConfig
from engine.environments.base import EnvironmentStep
from engine.errors import SandboxError
from engine.sandbox.base import Sandbox, Startup
from engine.sandbox.integrity import prepare_for_agent
from engine.sandbox.pool.pool import PooledSandbox
from engine.tools import (
    CommandResult,
    ExecuteBash,
    FileEditor,
    Finish,
    ObservationStyle,
    Search,
    Think,
    Tool,
    framed,
    printable,
    to_text,
)
from engine.tools.schemas import EXECUTE_BASH, FILE_EDITOR, FINISH, SEARCH, THINK, Tools
from engine.tools.tool_sets import TOOL_SETS
from engine.types import Grade, ToolCall

_GRACE_S = 30.0
"""Seconds beyond a command's deadline after which the environment counts as hanging."""
_FILE_COMMAND_S = 20.0


class OwnBoxJudge(Protocol):
    """Interface of ``engine.grading.own_box.OwnBoxGrading``: grading in the agent's own sandbox."""

    async def begin(self, box: Sandbox) -> None:
        """Record the state of the sandbox before the agent starts."""

    async def grade(self, box: Sandbox, patch: str) -> Grade:
        """Grade the sandbox in the agent's final state."""


class SandboxFileStore:
    """``engine.tools.FileStore`` over a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file."""
        return await self._sandbox.read_file(path)

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file; an existing file keeps its mode."""
        await self._sandbox.write_file(path, data)

    async def remove(self, path: str) -> None:
        """Delete a file."""
        result = await self._sandbox.exec(["rm", "--", path], timeout_s=_FILE_COMMAND_S)
        if result.exit_code != 0:
            raise OSError(result.stderr.decode("utf-8", "replace").strip())

    async def list_dir(self, path: str, *, depth: int) -> list[str]:
        """List paths below a folder."""
        return await self._sandbox.list_dir(path, depth=depth)


class SandboxShell:
    """``engine.tools.Shell`` over a sandbox."""

    def __init__(self, sandbox: Sandbox, *, timeout_s: float, env: Mapping[str, str] | None = None) -> None:
        self._sandbox = sandbox
        self._env = env
        self.timeout_s = timeout_s

    async def run(self, command: str | list[str], *, split: bool = False) -> CommandResult:
        """Run a command in the workdir; a string is one bash command line."""
        merge = "" if split else "exec 2>&1; "
        argv = ["/bin/bash", "-c", f"{merge}{command}"] if isinstance(command, str) else command
        result = await self._sandbox.exec(argv, timeout_s=self.timeout_s, env=self._env)
        return CommandResult(
            exit_code=None if result.timed_out else result.exit_code,
            output=printable(to_text(result.stdout if split else result.stdout + result.stderr)),
            errors=printable(to_text(result.stderr)) if split else "",
            dropped_bytes=result.dropped_bytes,
        )


class SweEnvironment:
    """Implements ``engine.environments.base.Environment`` for one rollout of one task.

    Args:
        pooled_sandbox: the sandbox to open; its workdir is the repository.
        agent: tool set, command deadline and editor settings.
        style: observation style of the prompt.
        judge: grades a patch of the task in a fresh sandbox.
        own_box: grades in this environment's sandbox instead; None grades the patch alone.
        setup_patch: patch that turns the image into the task.
        hidden_paths: paths of the image that the agent must not see.
    """

    def __init__(
        self,
        pooled_sandbox: PooledSandbox,
        *,
        agent: AgentConfig,
        style: ObservationStyle,
        judge: Callable[[str], Awaitable[Grade]],
        own_box: OwnBoxJudge | None = None,
        setup_patch: str = "",
        hidden_paths: Sequence[str] = (),
    ) -> None:
        self._tool_set = TOOL_SETS[agent.tools]
        self.tools: Tools = self._tool_set.tools
        self.step_deadline_s = agent.command_timeout_s + _GRACE_S
        self._pooled_sandbox = pooled_sandbox
        self._agent = agent
        self._style = style
        self._judge = judge
        self._own_box = own_box
        self._setup_patch = setup_patch
        self._hidden_paths = tuple(hidden_paths)
        self._sandbox: Sandbox | None = None
        self._failure: SandboxError | None = None
        self._shell: SandboxShell | None = None
        self._by_name: dict[str, Tool] = {}

    @property
    def grades_in_place(self) -> bool:
        """Return whether the tests run in the agent's own sandbox."""
        return self._own_box is not None

    @property
    def queue_seconds(self) -> float:
        """Return the seconds spent waiting for admission of the sandbox."""
        return self._pooled_sandbox.lease.queue_seconds

    @property
    def startup(self) -> Startup | None:
        """Return node and duration of the sandbox start."""
        return self._pooled_sandbox.lease.startup

    async def reset(self) -> str:
        """Open the sandbox and prepare it for the agent; callable once."""
        sandbox = await self._pooled_sandbox.__aenter__()
        workdir = sandbox.spec.workdir
        self._sandbox = sandbox
        with self._noted():
            env = await prepare_for_agent(
                sandbox, setup_patch=self._setup_patch, hidden_paths=self._hidden_paths
            )
            if self._own_box is not None:
                await self._own_box.begin(sandbox)
        shell = self._shell = SandboxShell(sandbox, timeout_s=self._agent.command_timeout_s, env=env)
        self._by_name = {
            FILE_EDITOR.name: FileEditor(
                SandboxFileStore(sandbox),
                workdir=workdir,
                style=self._style,
                snippet_lines=self._agent.snippet_lines,
            ),
            EXECUTE_BASH.name: ExecuteBash(shell, style=self._style),
            SEARCH.name: Search(shell, workdir=workdir, style=self._style),
            FINISH.name: Finish(),
            THINK.name: Think(),
        }
        return sandbox.id

    async def step(self, call: ToolCall, *, timeout_s: float) -> EnvironmentStep:
        """Run the call's tool."""
        _, shell = self._opened()
        shell.timeout_s = timeout_s
        with self._noted():
            tool_call = self._tool_set.implementation_call(call)
            result = await self._by_name[tool_call.name].run(tool_call.arguments)
        own_frame = self._style != "r2e_gym" or tool_call.name == EXECUTE_BASH.name
        return EnvironmentStep(
            observation=result.observation if own_frame else framed(call.name, result),
            error=result.error,
            exit_code=result.exit_code,
            truncated_chars=result.truncated_chars,
            done=result.done,
        )

    async def patch(self) -> str:
        """Return all changes below the workdir as a patch."""
        sandbox, _ = self._opened()
        with self._noted():
            return await sandbox.diff()

    async def close(self) -> None:
        """Close the sandbox."""
        if self._sandbox is not None:
            self._sandbox = None
            failure = self._failure
            await self._pooled_sandbox.__aexit__(type(failure) if failure else None, failure, None)

    async def grade(self, patch: str) -> Grade:
        """Run the task's hidden tests on the patch, or in the agent's own sandbox."""
        if self._own_box is None:
            return await self._judge(patch)
        sandbox, _ = self._opened()
        with self._noted():
            return await self._own_box.grade(sandbox, patch)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Record a failure of the sandbox, for the pool's statistics."""
        try:
            yield
        except SandboxError as error:
            self._failure = error
            raise

    def _opened(self) -> tuple[Sandbox, SandboxShell]:
        if self._sandbox is None or self._shell is None:
            raise SandboxError("the environment was used before reset or after close")
        return self._sandbox, self._shell

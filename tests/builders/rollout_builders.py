"""Builders for rollouts: rows, keys, and minimal policies and graders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from engine.agent.replay import FinishedTurn
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.inference.base import ChatPolicy, ChatRequest, ChatResponse, GenerationContext, Policy
from engine.inference.scripted.policies import ScriptedPolicy
from engine.inference.scripted.tokens import TokenizedPolicy
from engine.models.chat.chatml import ChatML
from engine.rollout import RolloutScheduler, SweEnvironments
from engine.rollout.environments import RolloutGrader
from engine.sandbox.base import SandboxBackend
from engine.sandbox.pool.pool import SandboxPool
from engine.tools.rendering import render_response
from engine.types import (
    Grade,
    RolloutKey,
    RolloutPhase,
    Task,
    TaskAnswer,
    TaskRow,
    ToolCall,
    Trajectory,
    Verdict,
)
from tests.fakes.bytes_tokenizer import BytesTokenizer

SOURCE = "def f(a):\n    return a - 1\n"
FIXED = SOURCE.replace("-", "+")
GOLD = (
    "diff --git a/pkg/m.py b/pkg/m.py\n--- a/pkg/m.py\n+++ b/pkg/m.py\n"
    "@@ -1,2 +1,2 @@\n def f(a):\n-    return a - 1\n+    return a + 1\n"
)


def make_row(task_id: str = "a" * 16, *, patch: str = GOLD, **task: Any) -> TaskRow:
    return TaskRow(
        task=Task(
            id=task_id,
            instance_id=f"pkg__{task_id[:4]}",
            repo="pkg",
            base_commit="0" * 40,
            problem_statement="f subtracts",
            **{"image": "local:pkg", **task},
        ),
        answer=TaskAnswer(gold_patch=patch),
        split="train",
    )


def make_key(**changes: Any) -> RolloutKey:
    return RolloutKey(**{"iteration": 0, "phase": "train", "task_id": "a" * 16, "index": 0, **changes})


def quick_agent(**changes: Any) -> AgentConfig:
    return AgentConfig(**{"max_steps": 6, "step_reminder": False, "snippet_lines": 0, **changes})


def respond(name: str, **arguments: Any) -> str:
    """Render the text of a turn in XML."""
    return render_response("because", ToolCall(name=name, arguments=arguments), "xml")


SUBMIT = respond("finish", command="submit")


class ChatScript(ScriptedPolicy):
    """Policy with scripted responses, or with a callable that derives one from the context or raises."""

    name = "script"

    def __init__(
        self, answers: Sequence[str | ChatResponse] | Callable[[GenerationContext], str | ChatResponse]
    ) -> None:
        self._answers = answers
        self.requests: list[ChatRequest] = []
        self.released: list[RolloutKey] = []

    async def respond(self, request: ChatRequest) -> ChatResponse:
        self.requests.append(request)
        context = request.context
        if callable(self._answers):
            answer = self._answers(context)
        else:
            answer = self._answers[min(len(context.steps), len(self._answers) - 1)]
        return ChatResponse(content=answer) if isinstance(answer, str) else answer

    def release(self, key: RolloutKey) -> None:
        self.released.append(key)


class TextPolicy(TokenizedPolicy):
    """Token policy with scripted texts, or with a callable that derives one from the context or raises."""

    def __init__(self, texts: Sequence[str] | Callable[[GenerationContext], str]) -> None:
        super().__init__(ChatScript(texts), ChatML(BytesTokenizer()))


def in_bytes(policy: ChatPolicy) -> TokenizedPolicy:
    """Return a token policy with the texts of a scripted policy; its tokens are bytes."""
    return TokenizedPolicy(policy, ChatML(BytesTokenizer()))


class PatchGrader:
    """Grader that passes patches with a given text."""

    def __init__(self, wanted: str = "+    return a + 1") -> None:
        self.wanted = wanted
        self.graded: list[str] = []

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        self.graded.append(patch)
        await asyncio.sleep(0)
        passed = self.wanted in patch
        return Grade(verdict=Verdict.PASSED if passed else Verdict.FAILED, reward=float(passed))

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> None:
        return None


class Recorder:
    """Rollout observer that records all notifications in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, RolloutKey]] = []
        self.finished: list[Trajectory] = []
        self.sandboxes: list[str] = []
        self.phases: list[tuple[RolloutKey, RolloutPhase | None]] = []
        self.turns: list[tuple[RolloutKey, FinishedTurn]] = []

    def phase_changed(self, key: RolloutKey, phase: RolloutPhase | None) -> None:
        self.phases.append((key, phase))

    def trajectory_started(self, key: RolloutKey, sandbox_id: str) -> None:
        self.told.append(("started", key))
        self.sandboxes.append(sandbox_id)

    def step_finished(self, key: RolloutKey, turn: FinishedTurn) -> None:
        self.told.append((f"step {turn.step.index}", key))
        self.turns.append((key, turn))

    async def trajectory_finished(self, trajectory: Trajectory) -> None:
        self.told.append(("finished", trajectory.key))
        self.finished.append(trajectory)

    def of(self, key: RolloutKey) -> list[str]:
        return [name for name, told_key in self.told if told_key == key]


async def until_idle() -> None:
    """Run all tasks of this event loop until they wait for something outside of it."""
    for _ in range(100):
        await asyncio.sleep(0)


def swe_scheduler(
    backend: SandboxBackend,
    policy: Policy,
    *,
    agent: AgentConfig | None = None,
    sandbox: SandboxConfig | None = None,
    grader: RolloutGrader | None = None,
    **changes: Any,
) -> RolloutScheduler:
    """Return a scheduler of software-engineering rollouts; a backend without a pool gets one."""
    agent, sandbox = agent or quick_agent(), sandbox or SandboxConfig()
    pool = backend if isinstance(backend, SandboxPool) else SandboxPool(backend, sandbox)
    environments = SweEnvironments(
        pool=pool, grader=grader or PatchGrader(), agent=agent, sandbox=sandbox, run_id="r1"
    )
    parts: dict[str, Any] = {"rollout": RolloutConfig(), "seed": 7, "observer": Recorder()}
    return RolloutScheduler(environments=environments, policy=policy, agent=agent, **{**parts, **changes})

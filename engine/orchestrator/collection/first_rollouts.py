"""Check of a collection's first rollouts: if all fail in the same way, the others would too.

A solve rate of 0 is no measurement of a model whose calls cannot be parsed, or that has no room to answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from engine.config.policies import PolicyConfig, TransformerPolicyConfig
from engine.config.rollout import AgentConfig
from engine.errors import EarlyStopError
from engine.tools.formats import written_call
from engine.types import CUT_OFF, INFRASTRUCTURE_REASONS, Trajectory

_EXCERPT_CHARS = 160


class FirstRollouts:
    """Check of the first rollouts of a run.

    Args:
        count: number of rollouts after which the run ends if all failed alike; 0 never ends it.
        agent: settings of the agent.
        tools: names of its tools.
    """

    def __init__(self, count: int, agent: AgentConfig, tools: Collection[str]) -> None:
        self._count = count
        self._agent = agent
        self._tools = tools
        self._failed: list[Trajectory] = []

    @classmethod
    def of(
        cls, policy: PolicyConfig, count: int, *, agent: AgentConfig, tools: Collection[str]
    ) -> FirstRollouts | None:
        """Return the check for a policy; None for random weights, which write no readable calls."""
        is_random = isinstance(policy, TransformerPolicyConfig) and policy.checkpoint.startswith("fresh:")
        return None if is_random else cls(count, agent, tools)

    def add(self, trajectory: Trajectory) -> None:
        """Count a finished rollout, unless infrastructure lost it.

        Raises:
            EarlyStopError: all first rollouts have finished, and none had a readable tool call.
        """
        if len(self._failed) >= self._count or trajectory.termination in INFRASTRUCTURE_REASONS:
            return
        if any(step.call is not None for step in trajectory.steps):
            self._count = 0
            self._failed.clear()
            return
        self._failed.append(trajectory)
        if len(self._failed) == self._count:
            raise EarlyStopError(self._message())

    def _message(self) -> str:
        """Return the error message: the common ending, an example, and the settings to change."""
        endings = Counter(trajectory.termination.value for trajectory in self._failed)
        ended = ", ".join(f"{reason} ({count})" for reason, count in endings.most_common())
        responses = sum(len(trajectory.steps) for trajectory in self._failed)
        cut_off = sum(len(t.steps) == 1 and t.termination in CUT_OFF for t in self._failed)
        first = f"the first {len(self._failed)} rollouts all ended by {ended}"
        if not responses:
            return (
                f"{first} before a first response: the opening prompt leaves no room, or no time, for one; "
                f"check agent.max_context ({self._agent.max_context}) and agent.max_response "
                f"({self._agent.max_response}) against the model's context, agent.prompt and "
                f"agent.rollout_timeout_s ({self._agent.rollout_timeout_s:g})"
            )
        if 2 * cut_off > len(self._failed):
            return (
                f"{first} in their first response, which was cut off before a tool call: raise "
                f"agent.max_response ({self._agent.max_response}) and agent.max_context "
                f"({self._agent.max_context}), or reduce the model's thinking"
            )
        return f"{first}, and none of their {responses} responses had a readable tool call: {self._example()}"

    def _example(self) -> str:
        """Return the last unreadable response, and the setting to change."""
        step = next(t.steps[-1] for t in reversed(self._failed) if t.steps)
        written, tool_format = written_call(step.response, self._tools), self._agent.tool_format
        if not written:
            remedy = "check it, agent.prompt, and whether the model can call tools at all"
        elif tool_format == "native":
            remedy = (
                "if it holds a call, have the server parse its calls (vLLM: --enable-auto-tool-choice "
                "--tool-call-parser ...), or set agent.tool_format to 'xml'"
            )
        else:
            remedy = "set it to the format that the model was trained with, such as 'native'"
        return (
            f"the last one has '{written or _shown(step.response)}' and was answered with "
            f"'{_shown(step.error)}'; agent.tool_format is '{tool_format}': {remedy}"
        )


def _shown(text: str) -> str:
    plain = " ".join(text[: 2 * _EXCERPT_CHARS].split())
    return plain if len(plain) <= _EXCERPT_CHARS else f"{plain[:_EXCERPT_CHARS]}..."

"""Tool calls in a model's responses: counts, and the advice that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

ENOUGH = 0.5
"""Share of valid calls from which a model can be trained by reinforcement learning."""
OFTEN_CUT = 0.25
"""Share of responses at the response limit from which the limit is advised against."""
MOSTLY_CUT = 0.5
"""Share of responses at the response limit from which a try says little about the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Responses of a model to a prompt in one tool format.

    Fields are named as in the summaries of runs that collect or evaluate.
    """

    responses: int
    """Sampled responses; those that an earlier attempt of the run sampled are not counted."""
    responses_with_call: int
    """Responses that held a call in the tool format, valid or not."""
    valid_calls: int
    """Responses with exactly one call that fits its tool."""
    responses_cut_off: int
    """Responses that ended at the response limit, or at the end of the context."""
    response_tokens: int
    """Tokens of all responses; 0 where the policy does not report them."""
    sampling_seconds: float
    """Time in which at least one rollout waited for a response."""

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any]) -> Self | None:
        """Return the counts in a run's summary, which any program may have sent; None where it has none."""
        values: dict[str, Any] = {name: summary.get(name) for name in cls.__dataclass_fields__}
        if not all(isinstance(value, int | float) and value >= 0 for value in values.values()):
            return None
        return cls(**values)

    def summary(self) -> dict[str, float | int]:
        """Return the counts as entries of a run's summary."""
        return asdict(self)

    @property
    def call_rate(self) -> float | None:
        """Return the share of responses with a call; None without responses."""
        return self._share(self.responses_with_call)

    @property
    def valid_rate(self) -> float | None:
        """Return the share of responses with a valid call; None without responses."""
        return self._share(self.valid_calls)

    @property
    def cut_rate(self) -> float | None:
        """Return the share of responses that were cut off; None without responses."""
        return self._share(self.responses_cut_off)

    @property
    def mean_tokens(self) -> float | None:
        """Return the mean length of a response, tokens; None where it is unknown."""
        return self._share(self.response_tokens) if self.response_tokens else None

    @property
    def tokens_per_s(self) -> float | None:
        """Return the rate of sampled tokens over all rollouts at once; None where it is unknown."""
        if not self.response_tokens or self.sampling_seconds <= 0:
            return None
        return self.response_tokens / self.sampling_seconds

    def advice(self, tool_format: str, *, max_response: int) -> str:
        """Return what follows for training with this tool format, in one sentence.

        Args:
            tool_format: as in ``agent.tool_format``.
            max_response: response limit under which the responses were sampled, tokens.
        """
        count = self.responses
        if not count:
            return (
                "no rollout had room or time for a response: check agent.max_context against the model's "
                "context, and agent.rollout_timeout_s"
            )
        ready = self.valid_calls >= ENOUGH * count
        if not ready and self.responses_cut_off > MOSTLY_CUT * count:
            return (
                f"{self.responses_cut_off} of {count} responses were cut off, the try stops them at "
                f"{max_response:,} tokens: try again with more (trainyard model try NAME --set "
                f"agent.max_response={2 * max_response})"
            )
        text = f"{self.valid_calls} of {count} responses held a valid call"
        if not self.responses_with_call:
            text = f"{count} of {count} responses held no call in this format"
        remedies = (
            [] if ready else [f"fine-tune first (recipe fine-tune, conversation.tool_format={tool_format})"]
        )
        if self.responses_cut_off > OFTEN_CUT * count:
            text += f", {self.responses_cut_off} were cut off"
            remedies.insert(0, "raise agent.max_response")
        return f"{text}: {' or '.join(remedies) or 'it can be trained in this format'}"

    def _share(self, amount: float) -> float | None:
        return amount / self.responses if self.responses else None

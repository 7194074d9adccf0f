"""Construction of a verifier's judge from its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import torch

from engine.config.policies import EndpointPolicyConfig, TransformerPolicyConfig
from engine.config.run import VerifierRun
from engine.errors import ConfigError, Problem
from engine.models.loader import OpenedModel, open_model
from engine.models.precision import sampling_type
from engine.orchestrator.context import RunContext
from engine.orchestrator.policies.policies import open_endpoint
from engine.verifiers.execution_free import EndpointJudge, Judge, TokenJudge
from engine.verifiers.execution_free.token_judge import ModelScorer


class OpenedJudge(NamedTuple):
    """Judge with its resources and costs."""

    judge: Judge
    close: Callable[[], Awaitable[None]]
    """Releases its resources."""
    spent: Callable[[], float | None]
    """Returns the US dollars paid by all attempts of the run, answers without a score included; None where no
    price is known."""


async def open_judge(config: VerifierRun, run: RunContext) -> OpenedJudge:
    """Open the judge that a configuration describes.

    Raises:
        ConfigError: the endpoint is unknown here, or the context exceeds that of the model.
        CheckpointError: the checkpoint is missing or unusable.
        RunEndingError: the endpoint does not answer.
    """
    settings = config.verifier
    if isinstance(config.policy, EndpointPolicyConfig):
        policy = open_endpoint(config.policy, run.run_dir)
        try:
            await policy.check(())
        except BaseException:
            await policy.close()
            raise
        endpoint_judge = EndpointJudge(
            policy,
            max_context=settings.max_context,
            max_response=settings.max_response,
            part=settings.part,
            forced=settings.answers == "forced",
        )
        return OpenedJudge(endpoint_judge, policy.close, lambda: policy.spent or None)
    opened = await asyncio.to_thread(_open, config.policy, run)
    if settings.max_context > opened.model.max_context:
        raise ConfigError(
            Problem(
                f"{settings.max_context} tokens exceed the {opened.model.max_context} that "
                f"'{config.policy.checkpoint}' was made for: lower it",
                "verifier.max_context",
            )
        )
    scorer = ModelScorer(opened.model)
    judge = TokenJudge(scorer, opened.chat(), max_context=settings.max_context, part=settings.part)
    return OpenedJudge(judge, scorer.close, lambda: None)


def _open(config: TransformerPolicyConfig, run: RunContext) -> OpenedModel:
    cuda = torch.cuda.is_available()
    opened = open_model(config.checkpoint, home=run.home, dtype=sampling_type(config.precision))
    opened.model.to("cuda" if cuda else "cpu")
    return opened

"""Training of a judge: graded trajectories of finished runs ─▶ pairs ─▶ judgements ─▶ fine-tuning.

The prompts are those that the judge is given later (``engine.verifiers.execution_free``); the answer alone is
learned. The checkpoint is used as any other: ``policy.checkpoint=run:N`` of a verifier's run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.config.run import JudgeTrainingRun
from engine.config.verifier import JudgementsConfig
from engine.errors import ConfigError, DatasetError, Problem
from engine.models.chat.base import Chat, Message
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.fine_tune import imitate
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories, open_sources
from engine.tokens import TokenRecord
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.sft.examples import Example, Examples, heldout_instances
from engine.verifiers.execution_free.prompts import ANSWER_END, ANSWER_START, ANSWERS
from engine.verifiers.execution_free.training_set import Labelled, choose, examples


async def train_judge(config: JudgeTrainingRun, run: RunContext) -> RunResult:
    """Train a judge, or resume from the run's last checkpoint.

    Raises:
        ConfigError: no run is named, or a named one is not there.
        DatasetError: no pair of a right and a wrong trajectory is left to train on.
    """
    return await imitate(config, run, lambda trainer: _examples(config, run, trainer))


def labelled(source: StoredTrajectories, origin: str) -> Iterator[Labelled]:
    """Yield the graded trajectories of a run, without those whose task is unknown."""
    for stored in source.read(source.ids):
        yield Labelled(
            key=str(stored.id),
            task_id=stored.id.key.task_id,
            origin=origin,
            transcript=stored.transcript,
            resolved=stored.resolved,
            submitted=stored.submitted,
        )


def _labelled(config: JudgementsConfig, run: RunContext) -> Iterator[Labelled]:
    if not config.on_policy and not config.off_policy:
        message = "no run is named: name finished runs here, in off_policy, or in both"
        raise ConfigError(Problem(message, "judgements.on_policy"))
    for origin in ("on_policy", "off_policy"):
        names, setting = getattr(config, origin), f"judgements.{origin}"
        for source in open_sources(run, names, setting=setting, phases=config.phases):
            yield from labelled(source, origin)


def _examples(config: JudgeTrainingRun, run: RunContext, trainer: AsyncTrainer) -> Examples:
    settings, chat = config.judgements, trainer.chat.without_thinking()
    chosen = choose(_labelled(settings, run), seed=config.seed, extra=settings.extra)
    tasks = sorted({one.task_id for pair in chosen for one in pair})
    heldout = heldout_instances(tasks, config.trainer.heldout_share, config.seed)
    replies = {answer: chat.reply_ids(f"{ANSWER_START}{answer}{ANSWER_END}") for answer in ANSWERS}
    too_long: list[str] = []
    judgements = examples(
        chosen,
        limit=min(config.trainer.max_tokens, trainer.model.max_context) - max(map(len, replies.values())),
        prompt_tokens=lambda messages: len(chat.open(messages)),
        text_tokens=lambda text: len(chat.tokenizer.encode(text)),
        part=settings.part,
        too_long=too_long,
    )
    found = Examples()
    for number, one in enumerate(judgements):
        run.check()
        record = _record(chat, one.messages[:-1], replies[ANSWERS[0] if one.resolved else ANSWERS[1]])
        example = Example(trajectory=number, task_id=one.task_id, records=(record,))
        (found.heldout if one.task_id in heldout else found.train).append(example)
        found.rendered += 1
        found.cut += one.shortened > 0
    for _ in too_long:
        found.drop("too_long")
    if not found.train:
        raise DatasetError(
            f"no pair of a right and a wrong trajectory is left to train on ({len(chosen)} found, "
            f"{len(too_long)} trajectories too long): name runs whose tasks have both outcomes, or set "
            "judgements.extra or trainer.max_tokens higher"
        )
    return found


def _record(chat: Chat, prompt: Sequence[Message], reply: Sequence[int]) -> TokenRecord:
    ids = chat.open(prompt)
    return TokenRecord(ids=[*ids, *reply], mask=[False] * len(ids) + [True] * len(reply))

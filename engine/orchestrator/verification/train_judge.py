"""Training of a judge: graded trajectories of finished runs ─▶ pairs ─▶ judgements ─▶ fine-tuning.

The first attempt chooses the pairs and writes them into the run folder; later ones train on the same pairs.
Prompts are those of verification (``engine.verifiers.execution_free``); only the answer is trained on. A
verification run uses the checkpoint with ``policy.checkpoint=run:N``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pydantic import TypeAdapter

from engine.config.learning.verifier import TRAINING_SPLITS, JudgementsConfig
from engine.config.run import JudgeTrainingRun
from engine.errors import ConfigError, DatasetError, Problem, ScoreError
from engine.files import atomic_write
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.fine_tune import imitate
from engine.orchestrator.verification.stored_trajectories import (
    StoredTrajectories,
    TrajectoryId,
    open_sources,
)
from engine.tokens import TokenRecord
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.sft.examples import Example, Examples, heldout_instances
from engine.verifiers.execution_free.prompts import ANSWER_END, ANSWER_START, ANSWERS
from engine.verifiers.execution_free.training_set import Example as Judgement
from engine.verifiers.execution_free.training_set import ExampleFormat, Labelled, choose
from engine.verifiers.execution_free.transcripts import Transcript

PAIRS_NAME = "judgements.json"
"""File of a run folder with the pairs that the first attempt chose."""
_NO_TRANSCRIPT = Transcript(problem="", turns=(), patch="")


class _Chosen(NamedTuple):
    origin: str
    trajectory: str
    epoch: int | None


class _Rendered(NamedTuple):
    task_id: str
    instance_id: str
    is_shortened: bool
    record: TokenRecord


class _Stored(NamedTuple):
    source: StoredTrajectories
    id: TrajectoryId


_ChosenPair = tuple[_Chosen, _Chosen]
_PAIRS = TypeAdapter(list[_ChosenPair])


async def train_judge(config: JudgeTrainingRun, run: RunContext) -> RunResult:
    """Train a judge, or resume from the run's last checkpoint.

    Raises:
        ConfigError: no run is named, or a named one does not exist.
        DatasetError: no pair of a right and a wrong trajectory is left to train on.
    """
    return await imitate(config, run, lambda trainer: _examples(config, run, trainer))


def labelled(
    source: StoredTrajectories,
    origin: str,
    *,
    splits: Collection[str] = (),
    wanted: Collection[TrajectoryId] | None = None,
) -> Iterator[Labelled]:
    """Yield the graded trajectories of a run, without those whose task is unknown.

    Args:
        source: the run's trajectories.
        origin: ``on_policy`` or ``off_policy``.
        splits: splits of the tasks; empty yields all.
        wanted: trajectories to yield; None yields all.
    """
    for stored in source.read(source.ids if wanted is None else wanted):
        if splits and stored.split not in splits:
            continue
        yield Labelled(
            key=str(stored.id),
            task_id=stored.id.key.task_id,
            instance_id=stored.instance_id,
            origin=origin,
            transcript=stored.transcript,
            resolved=stored.resolved,
            submitted=stored.submitted,
        )


def _open(config: JudgementsConfig, run: RunContext) -> list[tuple[str, StoredTrajectories]]:
    """Open the sources, each with its origin."""
    if not config.on_policy and not config.off_policy:
        message = "no run is named: name finished runs here, in off_policy, or in both"
        raise ConfigError(Problem(message, "judgements.on_policy"))
    return [
        (origin, source)
        for origin in ("on_policy", "off_policy")
        for source in open_sources(
            run, getattr(config, origin), setting=f"judgements.{origin}", phases=config.phases
        )
    ]


def _chosen(
    config: JudgeTrainingRun, run: RunContext, sources: Sequence[tuple[str, StoredTrajectories]]
) -> list[_ChosenPair]:
    """Return the stored pairs; the first attempt chooses and stores them."""
    path = run.run_dir / PAIRS_NAME
    try:
        return _PAIRS.validate_json(path.read_bytes())
    except FileNotFoundError:
        chosen = _choose(config, run, sources)
        atomic_write(path, _PAIRS.dump_json(chosen).decode())
        return chosen


def _located(
    chosen: Sequence[_ChosenPair], sources: Sequence[tuple[str, StoredTrajectories]]
) -> dict[_Chosen, _Stored]:
    """Return the source and id of each chosen trajectory. Raises DatasetError if one is missing."""
    stored = {
        _Chosen(origin, str(name), name.epoch): _Stored(source, name)
        for origin, source in sources
        for name in source.ids
        if name.key.task_id in source.rows
    }
    wanted = {choice for pair in chosen for choice in pair}
    if missing := wanted - stored.keys():
        raise DatasetError(
            f"{len(missing)} of the {len(wanted)} trajectories that the first attempt chose are gone, such "
            f"as {next(iter(missing)).trajectory}: start a new run, which chooses again"
        )
    return {choice: entry for choice, entry in stored.items() if choice in wanted}


def _rendered(
    stored: Mapping[_Chosen, _Stored],
    run: RunContext,
    form: ExampleFormat,
    record: Callable[[Judgement], TokenRecord],
) -> dict[_Chosen, _Rendered]:
    """Render the chosen trajectories that fit the context; every source is read once.

    Args:
        record: returns the tokens of a judgement.
    """
    wanted: defaultdict[StoredTrajectories, dict[str, _Chosen]] = defaultdict(dict)
    for choice, entry in stored.items():
        wanted[entry.source][choice.trajectory] = choice
    examples: dict[_Chosen, _Rendered] = {}
    for source, names in wanted.items():
        origin = next(iter(names.values())).origin
        for trajectory in labelled(source, origin, wanted={stored[choice].id for choice in names.values()}):
            run.check()
            with suppress(ScoreError):  # too long
                judgement = form.example(trajectory)
                examples[names[trajectory.key]] = _Rendered(
                    task_id=trajectory.task_id,
                    instance_id=trajectory.instance_id,
                    is_shortened=judgement.shortened > 0,
                    record=record(judgement),
                )
    return examples


def _choose(
    config: JudgeTrainingRun, run: RunContext, sources: Sequence[tuple[str, StoredTrajectories]]
) -> list[_ChosenPair]:
    """Choose pairs of stored trajectories, without keeping transcripts in memory."""
    settings = config.judgements
    epochs: dict[str, int | None] = {}
    others = [name for name in settings.splits if name not in TRAINING_SPLITS]
    if others or not settings.splits:
        run.alert(
            "warning",
            "judge_of_other_splits",
            f"the judge is trained on outcomes of tasks of {', '.join(others) or 'every split'} "
            "(judgements.splits): Best@K selected by it is inflated on these tasks",
        )

    def candidates() -> Iterator[Labelled]:
        for origin, source in sources:
            epochs.update({str(name): name.epoch for name in source.ids})
            for trajectory in labelled(source, origin, splits=settings.splits):
                run.check()
                yield replace(trajectory, transcript=_NO_TRANSCRIPT)

    def named(one: Labelled) -> _Chosen:
        return _Chosen(one.origin, one.key, epochs[one.key])

    pairs = choose(candidates(), seed=config.seed, per_task=settings.per_task, extra=settings.extra)
    return [(named(first), named(second)) for first, second in pairs]


def _examples(config: JudgeTrainingRun, run: RunContext, trainer: AsyncTrainer) -> Examples:
    settings, chat = config.judgements, trainer.chat.without_thinking()
    sources = _open(settings, run)
    chosen = _chosen(config, run, sources)
    stored = _located(chosen, sources)
    instances = (entry.source.rows[entry.id.key.task_id].task.instance_id for entry in stored.values())
    heldout = heldout_instances(instances, config.trainer.heldout_share, config.seed)
    replies = {answer: chat.reply_ids(f"{ANSWER_START}{answer}{ANSWER_END}") for answer in ANSWERS}
    form = ExampleFormat(
        limit=min(config.trainer.max_tokens, trainer.model.max_context) - max(map(len, replies.values())),
        prompt_tokens=lambda messages: len(chat.open(messages)),
        text_tokens=lambda text: len(chat.tokenizer.encode(text)),
        part=settings.part,
    )

    def record(one: Judgement) -> TokenRecord:
        prompt = chat.open(one.messages[:-1])
        reply = replies[ANSWERS[0] if one.resolved else ANSWERS[1]]
        return TokenRecord(ids=[*prompt, *reply], mask=[False] * len(prompt) + [True] * len(reply))

    rendered = _rendered(stored, run, form, record)
    examples = Examples()
    for pair in chosen:
        fitting = [rendered[choice] for choice in pair if choice in rendered]
        if len(fitting) < len(pair):
            examples.dropped["too_long"] = examples.dropped.get("too_long", 0) + len(pair)
            continue
        for fit in fitting:
            example = Example(trajectory=examples.rendered, task_id=fit.task_id, records=(fit.record,))
            (examples.heldout if fit.instance_id in heldout else examples.train).append(example)
            examples.rendered += 1
            examples.cut += fit.is_shortened
    if not examples.train:
        too_long = examples.dropped.get("too_long", 0)
        raise DatasetError(
            f"no pair of a right and a wrong trajectory is left to train on ({len(chosen)} found, "
            f"{too_long} trajectories too long): name runs whose tasks have both outcomes, or set "
            "judgements.extra or trainer.max_tokens higher; only tasks of judgements.splits are used"
        )
    return examples

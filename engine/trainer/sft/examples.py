"""Fine-tuning data: examples from a file of stored trajectories, and the optimizer steps of all epochs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.config.learning.fine_tuning import FineTuningConfig
from engine.errors import DatasetError, ModelError
from engine.events.stored_trajectories import StoredTrajectory
from engine.events.token_block import decode
from engine.models.chat.base import Chat
from engine.tokens import TokenRecord
from engine.trainer.sft.recorded import ConversationRenderer, cut, fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A trajectory to imitate."""

    trajectory: int
    """Number of the stored trajectory."""
    task_id: str
    records: tuple[TokenRecord, ...]
    """Its samples, each with sampled tokens."""


@dataclass(slots=True, kw_only=True)
class Examples:
    """Examples of a run, with counts of used and dropped trajectories."""

    train: list[Example] = field(default_factory=list)
    heldout: list[Example] = field(default_factory=list)
    """Examples of tasks that are not trained on; they measure the evaluation loss."""
    recorded: int = 0
    """Examples whose recorded ids are used."""
    rendered: int = 0
    """Examples that were rendered as conversations of the trained model."""
    cut: int = 0
    """Sequences that were cut off."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Trajectories that are not used, by reason."""

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts for a run's summary."""
        lost = {f"dropped_{reason}": count for reason, count in self.dropped.items()}
        return {
            "train_trajectories": len(self.train),
            "heldout_trajectories": len(self.heldout),
            "recorded_ids": self.recorded,
            "rendered": self.rendered,
            "train_samples": sum(len(example.records) for example in self.train),
            "cut_sequences": self.cut,
            "sampled_tokens": sum(r.num_sampled for example in self.train for r in example.records),
            **lost,
        }

    def drop(self, reason: str) -> None:
        """Count a trajectory that is not used."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


def make_examples(
    trajectories: Iterable[StoredTrajectory],
    chat: Chat,
    renderer: ConversationRenderer,
    config: FineTuningConfig,
    *,
    heldout: frozenset[str],
    max_tokens: int,
    progress: Callable[[int], None] = lambda _done: None,
) -> Examples:
    """Return the examples of stored trajectories, in their order.

    Args:
        trajectories: in the order of training before shuffling.
        chat: the trained model's conversations.
        renderer: renders trajectories without ids of this model.
        config: treatment of long sequences.
        heldout: instances that are not trained on (``heldout_instances``).
        max_tokens: maximum length of a sequence.
        progress: called with the number of trajectories read.

    Raises:
        DatasetError: no trajectory is left to train on.
    """
    examples = Examples()
    for done, trajectory in enumerate(trajectories, start=1):
        record = _record(trajectory, chat, renderer, examples)
        progress(done)
        if record is None:
            continue
        longest = max((len(sample) for sample in record.samples()), default=0)
        if longest > max_tokens and config.overlong == "drop":
            examples.drop("overlong")
            continue
        examples.cut += sum(len(sample) > max_tokens for sample in record.samples())
        records = tuple(cut(record, max_tokens))
        if not records:
            examples.drop("prompt_too_long")
            continue
        example = Example(trajectory=trajectory.id, task_id=trajectory.task_id, records=records)
        (examples.heldout if trajectory.instance_id in heldout else examples.train).append(example)
    if not examples.train:
        raise DatasetError(_nothing_left(examples))
    return examples


def _nothing_left(found: Examples) -> str:
    """Return why there is nothing to train on, and what to do."""
    lost = [f"{count} {reason.replace('_', ' ')}" for reason, count in found.dropped.items()]
    lost += [f"{len(found.heldout)} held out"] if found.heldout else []
    remedy = "choose others"
    if found.dropped.keys() & {"overlong", "prompt_too_long"}:
        remedy += ", or raise max_tokens"
    return f"no trajectory is left to train on ({', '.join(lost) or 'the file is empty'}): {remedy}"


def _record(
    trajectory: StoredTrajectory, chat: Chat, renderer: ConversationRenderer, found: Examples
) -> TokenRecord | None:
    if not trajectory.steps:
        found.drop("without_steps")
        return None
    if trajectory.tokens is not None and fits(trajectory, chat.tokenizer):
        found.recorded += 1
        return decode(trajectory.tokens.data)
    if not trajectory.problem_statement:
        found.drop("without_task")
        return None
    try:
        record = renderer.render(trajectory)
    except ModelError:
        found.drop("not_expressible")
        return None
    found.rendered += 1
    return record


def heldout_instances(instance_ids: Iterable[str], share: float, seed: int) -> frozenset[str]:
    """Return the instances that measure the evaluation loss; with a share, at least one and never all.

    Versions of a task (other tests, other statements) have different ids, but one instance.
    """
    known = sorted(set(instance_ids), key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    if not share or len(known) < 2:
        return frozenset()
    return frozenset(known[: min(max(1, round(share * len(known))), len(known) - 1)])


def plan_steps(count: int, config: FineTuningConfig, seed: int) -> list[tuple[int, ...]]:
    """Return the indices of the examples of each optimizer step, over all epochs.

    Every epoch has another order, a function of the seed and the epoch's number.
    """
    steps: list[tuple[int, ...]] = []
    for epoch in range(config.epochs):
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        steps += [
            tuple(order[start : start + config.batch_size]) for start in range(0, count, config.batch_size)
        ]
    return steps[: config.max_steps]


def epoch_ends(count: int, config: FineTuningConfig) -> frozenset[int]:
    """Return the numbers of optimizer steps after which an epoch is complete."""
    per_epoch = -(-count // config.batch_size)
    return frozenset(per_epoch * (epoch + 1) for epoch in range(config.epochs))


def records_of(examples: Sequence[Example], chosen: Iterable[int]) -> list[TokenRecord]:
    """Return the records of the chosen examples."""
    return [record for index in chosen for record in examples[index].records]

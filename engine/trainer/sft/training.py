"""Supervised warm start: from random weights to a policy that fixes some simple faults.

An agent that never succeeds gives reinforcement learning no signal. The warm start teaches a tiny
transformer the tool format and much of the skill on an endless stream of faults in real code
(``data``): nearly nothing is seen twice, so little is memorised. Muon for matrices, AdamW for the
rest, loss on every token with prompts down-weighted, a schedule in wall time. Any other model is trained
in its family's chat format: pass it as ``start``.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.config.run import SftRun
from engine.inference.builtin.sampler import TransformerPolicy
from engine.models.base import LanguageModel
from engine.models.builtin.architectures import ARCHITECTURES
from engine.models.builtin.tokenizer import BpeTokenizer, train_tokenizer
from engine.models.builtin.transformer import Transformer
from engine.models.chat.base import Chat
from engine.models.loader import OpenedModel, save_policy
from engine.models.weights.policy_files import write_json
from engine.trainer.sft.data import RESERVED_PACKAGES, Episode, EpisodeMaker, SourceFile, source_files
from engine.trainer.sft.evaluation import exact_fix_rate
from engine.trainer.sft.loss import make_batch, token_losses
from engine.trainer.sft.muon import MuonWithAdam
from engine.trainer.sft.stream import BatchStream, Episodes, episode_maker

Progress = Callable[[str, int, int], None]
_WARMUP_STEPS = 60
_CONSTANT_UNTIL = 0.35
_FINAL_SHARE = 0.04
_REPORT_EVERY_S = 15.0
_SAVE_EVERY_S = 240.0
_TOKENIZER_FILES = 500


@dataclass(slots=True)
class _Tally:
    """Data consumed so far, and losses since the last report."""

    steps: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    episodes: int = 0
    bodies: set[int] = field(default_factory=set)
    losses: list[tuple[float, float]] = field(default_factory=list)

    def counts(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "answer_tokens": self.answer_tokens,
            "episodes": self.episodes,
            "functions": len(self.bodies),
        }


def train_sft(
    config: SftRun,
    *,
    out: Path,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    start: OpenedModel | None = None,
) -> dict[str, float]:
    """Train a policy and write its checkpoint folder.

    Args:
        config: the run; ``sft.minutes`` of wall time, then an evaluation.
        out: checkpoint folder; also written every few minutes on the way.
        progress: called with a message, elapsed seconds and total seconds.
        should_stop: polled every step; if true, training ends early, without evaluation. The time of the call
            does not count.
        start: the initial model, which is changed; by default a fresh one of the ``quickstart``
            architecture with a tokenizer trained on the stream's sources.

    Returns:
        Losses, data counts and held-out exact-fix rates, greedy and at temperature 1.

    Raises:
        TrainyardError: no episode fits into ``sft.max_tokens`` and the model's context.
    """
    torch.set_num_threads(config.sft.threads)
    opened = start or _fresh(config)
    model = opened.model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    max_tokens = min(config.sft.max_tokens, model.max_context)
    tally = _Tally()
    metrics: dict[str, float] = {}

    def save() -> None:
        save_policy(out, opened, _provenance(config, metrics), dtype=torch.bfloat16)

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stream = stack.enter_context(
            BatchStream(config, _chat_folder(opened, scratch), max_tokens=max_tokens)
        )
        next_save = _SAVE_EVERY_S
        for elapsed, losses in _train(model, config, stream.next, tally, should_stop):
            metrics.update(tally.counts(), **losses, seconds=elapsed)
            if progress is not None:
                limit = int(config.sft.minutes * 60)
                progress(_message(metrics), min(int(elapsed), limit), limit)
            if elapsed > next_save:
                next_save += _SAVE_EVERY_S
                save()
    if not should_stop():
        metrics.update(evaluate_sft(config, model, opened.chat(), tally.bodies))
    save()
    return metrics


def _fresh(config: SftRun) -> OpenedModel:
    architecture = ARCHITECTURES["quickstart"]
    files = source_files("train", excluded=config.sft.excluded_packages)
    texts = _tokenizer_texts(files, config.seed)
    return OpenedModel(
        model=Transformer(architecture, seed=config.seed),
        tokenizer=train_tokenizer(texts, vocab_size=architecture.vocab_size),
        folder=None,
        provenance={},
    )


def _chat_folder(opened: OpenedModel, scratch: Path) -> Path:
    """Return a folder from which another process opens the model's chat format."""
    if not isinstance(opened.tokenizer, BpeTokenizer):
        assert opened.folder is not None
        return opened.folder
    opened.tokenizer.save(scratch)
    write_json(scratch / "provenance.json", {})
    return scratch


def evaluate_sft(
    config: SftRun,
    model: LanguageModel,
    chat: Chat,
    seen: Iterable[int] = (),
) -> dict[str, float]:
    """Return the held-out exact-fix rates on single-fault episodes with the line named.

    Args:
        config: ``sft.evaluation_episodes`` is their number; 0 evaluates nothing.
        model: the policy.
        chat: its conversations.
        seen: fingerprints of functions trained on; their copies in held-out files are left out.
    """
    if not config.sft.evaluation_episodes:
        return {}
    episodes = heldout_episodes(config, seen=set(seen), count=config.sft.evaluation_episodes)
    model.eval()

    async def measure() -> dict[str, float]:
        policy = TransformerPolicy(model, chat)
        results: dict[str, float] = {"heldout_episodes": len(episodes)}
        for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
            rates = await exact_fix_rate(
                policy,
                episodes,
                temperature=temperature,
                max_context=min(config.agent.max_context, model.max_context),
                max_response=config.agent.max_response,
            )
            results.update({f"heldout_{name}_{key}": value for key, value in rates.items()})
        await policy.close()
        return results

    return asyncio.run(measure())


def heldout_episodes(config: SftRun, *, seen: set[int], count: int) -> list[Episode]:
    """Return single-fault episodes with the line named, from files excluded from the stream."""
    maker = episode_maker(config, random.Random(config.seed + 1), max_edits=1, hints=(("line", 1.0),))
    picks: list[Episode] = []
    files = source_files("heldout", excluded=config.sft.excluded_packages)
    maker.rng.shuffle(files)
    for file in files:
        picks += [episode for episode in list(maker.file_episodes(file))[:4] if episode.body_key not in seen]
        if len(picks) >= count:
            break
    return picks[:count]


def _train(
    model: LanguageModel,
    config: SftRun,
    next_batch: Callable[[], Episodes],
    tally: _Tally,
    should_stop: Callable[[], bool],
) -> Iterator[tuple[float, dict[str, float]]]:
    """Train until the time is up; yield elapsed seconds and mean losses at intervals and at the end."""
    optimizer = MuonWithAdam(
        model, muon_rate=config.sft.muon_learning_rate, adam_rate=config.sft.adam_learning_rate
    )
    batch = next_batch()
    started = reported = time.monotonic()
    total = config.sft.minutes * 60
    while (elapsed := time.monotonic() - started) < total:
        must_stop = should_stop()
        started = time.monotonic() - elapsed  # a pause does not count as training
        if must_stop:
            break
        factor = learning_rate_factor(elapsed / total, tally.steps)
        tally.losses.append(_accumulate(model, batch, config, tally))
        optimizer.step(factor)
        batch = next_batch()
        if time.monotonic() - reported > _REPORT_EVERY_S:
            reported = time.monotonic()
            yield reported - started, _mean_losses(tally)  # ``elapsed`` was taken before the step
    yield time.monotonic() - started, _mean_losses(tally)


def learning_rate_factor(done: float, step: int) -> float:
    """Return the share of the peak learning rate: linear warm-up, constant, then linear down to 4 %.

    Args:
        done: share of the training time that has passed.
        step: optimizer steps taken.
    """
    decay = min(1.0, max(0.0, (done - _CONSTANT_UNTIL) / (1 - _CONSTANT_UNTIL)))
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - (1 - _FINAL_SHARE) * decay)


def _accumulate(
    model: LanguageModel, episodes: Episodes, config: SftRun, tally: _Tally
) -> tuple[float, float]:
    """Accumulate the gradient of one batch; return the mean losses of answer and of prompt tokens."""
    batch = make_batch(episodes, next(model.parameters()).device)
    losses, sampled = token_losses(model, batch), batch.sampled
    weights = torch.where(sampled, 1.0, config.sft.prompt_weight)
    torch.autograd.backward((losses * weights).sum() / weights.sum())
    tally.steps += 1
    tally.episodes += len(episodes)
    tally.tokens += len(batch.targets) + len(episodes)
    tally.answer_tokens += int(sampled.sum())
    tally.bodies.update(episode.body_key for episode in episodes)
    plain = losses.detach()
    return float(plain[sampled].mean()), float(plain[~sampled].mean())


def _mean_losses(tally: _Tally) -> dict[str, float]:
    """Return the losses since the last report; nothing where there was no step."""
    recent, tally.losses = tally.losses, []
    if not recent:
        return {}
    count = len(recent)
    answer, prompt = sum(a for a, _ in recent) / count, sum(p for _, p in recent) / count
    return {"answer_loss": answer, "prompt_loss": prompt}


def _message(metrics: dict[str, float]) -> str:
    message = f"step {metrics['steps']:.0f}, {metrics['tokens'] / 1e6:.2f}M tokens"
    if metrics["seconds"] >= 1:  # a rate over no time is no rate
        message += f", {metrics['tokens'] / metrics['seconds']:,.0f} tokens/s"
    if "answer_loss" not in metrics:
        return message
    return f"{message}, answer loss {metrics['answer_loss']:.3f}, prompt loss {metrics['prompt_loss']:.3f}"


def _tokenizer_texts(files: list[SourceFile], seed: int) -> Iterator[str]:
    """Yield sources and statements of the training split."""
    rng = random.Random(seed)
    for file in rng.sample(files, min(_TOKENIZER_FILES, len(files))):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield file.path.read_text(encoding="utf-8")[:40_000]
    stream = EpisodeMaker(rng).stream(files)
    for _ in range(_TOKENIZER_FILES):
        yield next(stream).statement


def _provenance(config: SftRun, metrics: dict[str, float]) -> dict[str, Any]:
    return {
        "command": "engine.trainer.sft.training.train_sft",
        "config": config.model_dump(mode="json"),
        "data": "standard library and installed packages, by file: 24 of 25 train, 1 of 25 held out",
        "excluded_packages": sorted({*RESERVED_PACKAGES, *config.sft.excluded_packages}),
        "metrics": metrics,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }

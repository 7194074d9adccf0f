"""Data folder with a curated toy dataset and a tiny policy that solves about half of its tasks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any

import torch

from engine.config.curation import CurationConfig
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import EvaluationConfig, ScheduleConfig
from engine.config.policies import OraclePolicyConfig, TransformerPolicyConfig
from engine.config.rollout import AgentConfig, DatasetConfig, GradingConfig, RolloutConfig
from engine.config.run import AnyRun, CurateRun, RolloutRun, TrainRun
from engine.config.sandbox import SandboxConfig
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SpoolSink, read_lines
from engine.inference.scripted.policies import OraclePolicy
from engine.inference.scripted.tokens import TokenizedPolicy
from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.tokenizer import BpeTokenizer, train_tokenizer
from engine.models.builtin.transformer import Transformer
from engine.models.chat.chatml import ChatML
from engine.models.loader import save_policy_checkpoint
from engine.orchestrator import execute
from engine.orchestrator.context import RunContext
from engine.orchestrator.setup import build_scheduler, open_environments
from engine.orchestrator.tasks.selection import run_rows
from engine.rollout.scheduler import GroupRequest
from engine.tokens import TokenRecord
from tests.builders.dataset_builders import toolchain_or_skip
from tests.services import SHARED, made_once

DATASET = "toy"
AGENT = AgentConfig(
    prompt="compact_v1",
    max_steps=4,
    max_context=1024,
    max_response=192,
    command_timeout_s=90.0,
    rollout_timeout_s=600.0,
    observation_chars=2_000,
    snippet_lines=0,
    step_reminder=False,
)
SANDBOX = SandboxConfig(memory_mb=256, disk_mb=32, max_live=8, max_starting=2)
GRADING = GradingConfig(timeout_s=120.0)
PATIENCE_S = 400.0
"""Deadline, in seconds, of an attempt in its own process."""
SOLVED_HALF_THE_TIME = 0.7
"""Negative log-likelihood of an episode, nats, at which a policy samples it with probability 0.5."""
ARCHITECTURE = TransformerConfig(
    vocab_size=450,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=64,
)

_FILES = {
    "toykit/__init__.py": "",
    "toykit/numbers.py": """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


def total(values):
    result = 0
    for value in values:
        result += value
    return result
""",
    "toykit/words.py": """\
def initials(text):
    letters = []
    for word in text.split():
        letters.append(word[0])
    return "".join(letters)


def longest(words):
    best = ""
    for word in words:
        if len(word) > len(best):
            best = word
    return best
""",
    "tests/test_numbers.py": """\
from toykit.numbers import clamp, total


def test_clamp():
    assert [clamp(v, 0, 5) for v in (-1, 0, 3, 5, 9)] == [0, 0, 3, 5, 5]


def test_total():
    assert total([1, 2, 3]) == 6
""",
    "tests/test_words.py": """\
from toykit.words import initials, longest


def test_initials():
    assert initials("ab cd ef") == "ace"


def test_longest():
    assert longest(["a", "ccc", "bb"]) == "ccc"
""",
}

_EPISODE = """\
toykit/words.py: `initials` (lines 1-5) is broken.
line 3: `for word in letters.split():`
Failing: tests/test_words.py::test_initials (AttributeError)
look at lines 1-6 line 1: the change done
<function=file_editor>
<parameter=command>view</parameter>
<parameter=path>/testbed/toykit/words.py</parameter>
<parameter=view_range>[1, 6]</parameter>
</function>
<function=file_editor>
<parameter=command>str_replace</parameter>
<parameter=path>/testbed/toykit/words.py</parameter>
<parameter=old_str>
</parameter>
<parameter=new_str>
</parameter>
</function>
<function=finish>
<parameter=command>submit</parameter>
</function>
"""


def write_source(folder: Path) -> Path:
    """Write a small package with tests."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def curation(source: Path) -> CurateRun:
    """Return a curation of two training tasks from one file and one held-out task from the other."""
    return CurateRun(
        name="toy dataset",
        sandbox=SANDBOX,
        curation=CurationConfig(
            sources=(str(source),), output=DATASET, train_tasks=2, heldout_tasks=1, stability_runs=1
        ),
    )


def training(home: Path, *, concurrent: int = 8, **trainer: Any) -> TrainRun:
    """Return a run of two iterations of two groups; entropy trains groups with equal rewards."""
    return TrainRun(
        name="toy",
        dataset=DatasetConfig(name=DATASET),
        sandbox=SANDBOX,
        agent=AGENT,
        grading=GRADING,
        policy=TransformerPolicyConfig(checkpoint=str(home / "policies" / "toy"), max_batch=concurrent),
        rollout=RolloutConfig(group_size=4, max_concurrent=concurrent),
        algorithm=AlgorithmConfig(filtered_reasons=(), entropy_coefficient=0.01),
        trainer=TrainerConfig(
            **{
                "iterations": 2,
                "tasks_per_iteration": 2,
                "learning_rate": 1e-3,
                "threads": 1,
                "keep_checkpoints": 3,
                **trainer,
            }
        ),
        evaluation=EvaluationConfig(samples=2, train_samples=2),
    )


def overlapping(home: Path, **schedule: Any) -> TrainRun:
    """Return a run of four iterations of one group with the given schedule."""
    config = training(home, iterations=4, tasks_per_iteration=1, minibatches=1, checkpoint_every=2)
    changes = {
        "schedule": ScheduleConfig(**schedule),
        "algorithm": config.algorithm.model_copy(update={"importance_correction": "token_tis"}),
        "evaluation": config.evaluation.model_copy(update={"samples": 1, "train_samples": 0}),
    }
    return TrainRun.model_validate(config.model_copy(update=changes).model_dump())


def sampling(policy: Any) -> RolloutRun:
    """Return a run in which a scripted policy attempts every training task once."""
    return RolloutRun(
        name="toy",
        dataset=DatasetConfig(name=DATASET),
        sandbox=SANDBOX,
        agent=AGENT.model_copy(update={"max_context": 8192, "max_response": 2048}),
        grading=GRADING,
        policy=policy,
        rollout=RolloutConfig(group_size=1),
    )


def make_run_dir(
    home: Path, name: str, config: AnyRun, *, ingest_url: str | None = None, epoch: int = 1
) -> Path:
    """Create a run folder, or prepare the next attempt in an existing one."""
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_text(config.model_dump_json())
    launch = {
        "run_id": name,
        "epoch": epoch,
        "ingest_url": ingest_url,
        "token": f"secret.{epoch}",
        "home": str(home),
    }
    (run_dir / "launch.json").write_text(json.dumps(launch))
    return run_dir


@contextmanager
def open_context(home: Path, name: str, config: AnyRun, *, epoch: int = 1) -> Iterator[RunContext]:
    """Open a run context in this process."""
    run_dir = make_run_dir(home, name, config, epoch=epoch)
    sink = SpoolSink(run_dir, epoch=epoch)
    try:
        yield RunContext(run_id=name, epoch=epoch, run_dir=run_dir, home=home, sink=sink, control=Control())
    finally:
        sink.close()


@contextmanager
def engine_process(
    run_dir: Path, secrets: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m engine.run`` in its own process group; kill it at the end if still alive."""
    with (run_dir / "engine.log").open("ab") as log_file, TemporaryFile() as secrets_file:
        secrets_file.write(json.dumps(dict(secrets)).encode())
        secrets_file.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.run", "--secrets-on-stdin", str(run_dir)],
            stdin=secrets_file,
            stderr=log_file,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(run_dir: Path) -> Path:
    """Run an attempt in its own process and assert that it succeeds."""
    with engine_process(run_dir) as process:
        assert process.wait(timeout=PATIENCE_S) == 0, events(run_dir)[-1:]
    return run_dir


def kill_when(run_dir: Path, condition: Callable[[], bool]) -> None:
    """Run an attempt in its own process and ``kill -9`` it once the condition is true."""
    with engine_process(run_dir) as process:
        assert wait_for(process, condition)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"


def events(run_dir: Path) -> list[dict[str, Any]]:
    """Return all complete events of the spool."""
    return [json.loads(line.data) for line in read_lines(run_dir / "events.jsonl")]


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> bool:
    """Wait for the condition; return False if the process ends before it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if process.poll() is not None:
            return condition()
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return True


def taught_home(folder: Path) -> Path:
    """Fill a data folder with the toy dataset and its partly trained policy."""
    return _copied(made_once("taught", _teach), folder)


def dataset_home(folder: Path) -> Path:
    """Fill a data folder with the toy dataset alone."""
    return _copied(made_once("curated", _curate), folder)


def _copied(home: Path, folder: Path) -> Path:
    shutil.copytree(home, folder, symlinks=True, dirs_exist_ok=True)
    return folder


def _curate(home: Path) -> None:
    config = curation(write_source(SHARED / "toykit"))
    toolchain_or_skip(home)
    with open_context(home, "curate", config) as run:
        assert execute(config, run) == 0, events(run.run_dir)[-1]


def _teach(home: Path) -> None:
    asyncio.run(_make_policy(dataset_home(home)))


async def _make_policy(home: Path) -> None:
    """Train a tiny transformer on the oracle's episodes until it samples each about half of the time."""
    torch.set_num_threads(1)
    tokenizer = _tokenizer()
    config = sampling(OraclePolicyConfig())
    with open_context(home, "teacher", config) as run:
        environments = await open_environments(config, run)
        scheduler = build_scheduler(
            config, run, environments, TokenizedPolicy(OraclePolicy(), ChatML(tokenizer))
        )
        rows = run_rows(config, run)
        requests = [GroupRequest(row=row, iteration=0, phase="train", size=1) for row in rows]
        groups = await scheduler.collect(requests)
    model = Transformer(ARCHITECTURE, seed=0)
    _imitate(model, [group.trajectories[0].tokens for group in groups])
    save_policy_checkpoint(home / "policies" / "toy", model, tokenizer, {"source": "toy oracle"})


def _tokenizer() -> BpeTokenizer:
    return train_tokenizer([*_FILES.values(), _EPISODE], vocab_size=ARCHITECTURE.vocab_size)


def _imitate(model: Transformer, episodes: list[TokenRecord]) -> None:
    length = max(len(episode) for episode in episodes)
    ids = torch.zeros(len(episodes), length, dtype=torch.long)
    mask = torch.zeros(len(episodes), length)
    for number, episode in enumerate(episodes):
        ids[number, : len(episode)] = torch.tensor(episode.ids)
        mask[number, : len(episode)] = torch.tensor(episode.mask)
    lengths = torch.tensor([len(episode) for episode in episodes])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(1000):
        logits = model(ids, lengths)[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        per_episode = (losses * mask[:, 1:]).sum(1)
        if bool((per_episode < SOLVED_HALF_THE_TIME).all()):
            return
        optimizer.zero_grad()
        per_episode.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    raise AssertionError("the tiny policy did not learn the oracle's episodes")

"""Runs of kind ``sft`` on stored trajectories: loss, schedule, checkpoints, resumption, adapters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from engine.config.learning.fine_tuning import FineTuningConfig
from engine.models.builtin.transformer import Transformer
from engine.models.chat.base import Chat
from engine.models.loader import open_model
from engine.tokens import TokenRecord
from engine.trainer.__main__ import main
from engine.trainer.batch import IMITATION
from engine.trainer.checkpoints.checkpoint import load_latest
from engine.trainer.schedule import learning_rate
from engine.trainer.sft.recorded import ConversationRenderer
from engine.trainer.trainer import Trainer
from tests.builders.cut_runs import cut_off
from tests.unit.trainer.builders.sft_builders import COMPACT, perform, put, run_config, trajectory, with_ids

START = "builtin:quickstart"


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    torch.set_num_threads(1)
    return open_model(START, home=tmp_path_factory.mktemp("home")).chat()


@pytest.fixture
def records(chat: Chat) -> list[TokenRecord]:
    return [ConversationRenderer(chat, COMPACT).render(trajectory(number)) for number in range(6)]


def model() -> Transformer:
    return open_model(START, home=Path()).builtin()[0]


def mean_loss(net: Transformer, batch: list[TokenRecord]) -> torch.Tensor:
    """Return the mean cross-entropy of all sampled tokens, computing each sequence alone."""
    losses = []
    for record in batch:
        ids = torch.tensor(record.ids)[None].long()
        logits = net(ids, torch.tensor([len(record)]))[0]
        nll = functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
        losses.append(nll[torch.tensor(record.mask[1:])])
    return torch.cat(losses).mean()


def trainer(net: Transformer, **settings: Any) -> Trainer:
    config = FineTuningConfig(learning_rate=1e-3, threads=1, **settings).trainer(10)
    return Trainer(net, algorithm=IMITATION, config=config, max_context=64, seed=0)


@pytest.mark.parametrize("tokens_per_microbatch", [64, 4096])
def test_imitation_steps_match_cross_entropy_and_adamw_of_torch(
    records: list[TokenRecord], tokens_per_microbatch: int
) -> None:
    """Compare with separate sequences and torch's loss, clipping, optimizer and schedule."""
    ours = model()
    imitating = trainer(ours, tokens_per_microbatch=tokens_per_microbatch, warmup_share=0.2)
    config = FineTuningConfig(learning_rate=1e-3, warmup_share=0.2).trainer(10)
    theirs = model()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.0)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    rates = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[2])
    for step, chosen in enumerate(((0, 1, 2), (3, 4, 5), (0, 2, 4), (1, 3, 5))):
        batch = [records[index] for index in chosen]
        metrics = imitating.imitate(batch, rate=learning_rate(config, step))
        assert metrics["update/learning_rate"] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        loss = mean_loss(theirs, batch)
        assert metrics["loss/value"] == pytest.approx(loss.item(), rel=1e-4)
        assert metrics["tokens/trained"] == sum(record.num_sampled for record in batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        assert metrics["grad/norm"] == pytest.approx(norm.item(), rel=1e-3)
        optimizer.step()
        rates.step()
    with torch.no_grad():
        assert imitating.cross_entropy(records) == pytest.approx(mean_loss(theirs, records).item(), rel=1e-3)
    imitating.close()


def test_a_fine_tuning_run_lowers_the_loss_and_saves_a_loadable_policy(chat: Chat, tmp_path: Path) -> None:
    trajectories = [trajectory(number) for number in range(12)]
    trajectories = [with_ids(chat, stored) if stored.id % 2 else stored for stored in trajectories]
    put(tmp_path, "1", trajectories)
    log = perform(tmp_path, "1", run_config(trainer={"heldout_share": 0.2, "checkpoint_every": 2}))
    summary = log[-1]["summary"]
    assert log[-1]["state"] == "succeeded"
    assert (summary["recorded_ids"], summary["rendered"]) == (6, 6)
    assert (summary["train_trajectories"], summary["heldout_trajectories"]) == (10, 2)
    assert summary["heldout_loss"] < summary["heldout_loss_before"]
    steps = [event for event in log if event["type"] == "iteration_finished"]
    assert [event["iteration"] for event in steps] == list(range(6)) == list(range(summary["steps"]))
    assert [event["total_iterations"] for event in log if event["type"] == "run_planned"] == [6]
    measured = [event["iteration"] for event in steps if "loss/heldout" in event["metrics"]]
    assert measured == [2, 5]
    assert [event["iteration"] for event in log if event["type"] == "checkpoint_saved"] == [2, 4, 6]
    opened = open_model("run:1", home=tmp_path)
    learned = trainer(opened.builtin()[0])
    record = ConversationRenderer(chat, COMPACT).render(trajectories[0])
    before = trainer(model())
    assert learned.cross_entropy([record]) < before.cross_entropy([record])
    learned.close()
    before.close()


@pytest.mark.parametrize("adapters", [{}, {"lora_rank": 4}])
def test_a_resumed_run_ends_with_equal_weights(chat: Chat, tmp_path: Path, adapters: dict[str, Any]) -> None:
    trajectories = [with_ids(chat, trajectory(number)) for number in range(8)]
    config = run_config(trainer={"batch_size": 2, "checkpoint_every": 3, "heldout_share": 0.2, **adapters})
    put(tmp_path, "whole", trajectories)
    whole = perform(tmp_path, "whole", config)
    cut_off(tmp_path / "runs" / "whole", tmp_path / "runs" / "parts", iterations=4)
    log = perform(tmp_path, "parts", config, epoch=2)
    resumed = [event for event in log if event["type"] == "run_started"][1]
    assert resumed["resumed_from"] == 3
    losses = {
        name: {
            event["iteration"]: event["metrics"]["loss/value"]
            for event in events
            if event["type"] == "iteration_finished"
        }
        for name, events in (("whole", whole), ("parts", log))
    }
    assert losses["whole"] == losses["parts"]
    assert len(losses["whole"]) == 6
    summaries = [events[-1]["summary"] for events in (whole, log)]
    for name in ("train_loss", "heldout_loss", "heldout_loss_before"):
        assert summaries[0][name] == summaries[1][name]
    checkpoints = [load_latest(tmp_path / "runs" / name) for name in ("whole", "parts")]
    assert [checkpoint.iteration for checkpoint in checkpoints if checkpoint] == [6, 6]
    first, second = (
        dict(open_model(f"run:{name}", home=tmp_path).model.named_parameters()) for name in ("whole", "parts")
    )
    start = dict(model().named_parameters())
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], start[name]) for name in first)
    out, source = tmp_path / "adapters", str(tmp_path / "runs" / "whole")
    assert main(["export", source, str(out), "--adapters"]) == (0 if adapters else 2)
    assert (out / "adapter_model.safetensors").exists() == bool(adapters)


def test_a_run_without_usable_trajectories_fails_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, "1", [trajectory(1, problem_statement="")])
    log = perform(tmp_path, "1", run_config(), code=1)
    assert log[-1]["state"] == "failed"
    assert "no trajectory is left to train on (1 without task)" in log[-1]["reason"]


def test_dropped_trajectories_raise_an_alert(tmp_path: Path) -> None:
    usable = [trajectory(number) for number in range(4)]
    put(tmp_path, "1", [*usable, *(trajectory(number, problem_statement="") for number in range(4, 9))])
    log = perform(tmp_path, "1", run_config(trainer={"epochs": 1}))
    (alert,) = (event for event in log if event["type"] == "alert")
    assert (alert["code"], alert["severity"]) == ("trajectories_dropped", "warning")
    assert "5 without task" in alert["message"]
    assert [event["total_iterations"] for event in log if event["type"] == "run_planned"] == [1]
    assert math.isfinite(log[-1]["summary"]["train_loss"])

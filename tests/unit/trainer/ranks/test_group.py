"""Trainer groups: equal updates, sharded checkpoints, sent weights and the loss of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import CheckpointError, PublicationError, RankLostError
from engine.models.loader import open_model
from engine.trainer.checkpoints.checkpoint import load_latest, restore_training, write_snapshot
from tests.unit.trainer.builders.checkpoint_builders import snapshot_of
from tests.unit.trainer.builders.group_builders import (
    alone,
    distance,
    episodes,
    group,
    whole_model,
    write_policy,
)
from tests.unit.trainer.builders.rl_model import make_model
from tests.unit.trainer.builders.rl_training_script import make_tokenizer
from tests.unit.trainer.builders.trainer_builders import processes_of
from tests.unit.trainer.builders.weight_consumers import IDS, Broken, Store

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("home") / "policy")


def test_two_ranks_update_send_save_and_fail_and_one_rank_resumes(tmp_path: Path, policy: Path) -> None:
    single, shared = whole_model(), whole_model()
    trainer = alone(single)
    smaller = alone(make_model())
    smaller.update(episodes(), temperature=1.0)
    smaller.save(tmp_path / "other" / "shards").result()
    (tmp_path / "file").write_text("in the way")
    with group(policy, shared) as ranks:
        for _ in range(2):
            expected = trainer.update(episodes(), temperature=1.0)
            result = ranks.update(episodes(), temperature=1.0)
            assert result.members == expected.members
            assert result.optimizer_steps == expected.optimizer_steps == 2
            assert distance(shared, single) <= 1e-6
        assert ranks.logprobs(IDS) == pytest.approx(trainer.logprobs(IDS), abs=1e-5)
        with pytest.raises(PublicationError, match="OSError: no space left"):
            ranks.send_weights(Broken())
        names, _ = ranks.send_weights(Store(tmp_path / "sent"))
        sent = load_file(tmp_path / "sent")
        assert set(names) == set(sent)
        assert all(torch.equal(sent[name], weight) for name, weight in shared.named_parameters())
        write_snapshot(snapshot_of(tmp_path, 2, ranks, model=shared, tokenizer=make_tokenizer()))
        with pytest.raises(CheckpointError, match=r"rank \d cannot write its shards"):
            ranks.save(tmp_path / "file").result(timeout=240)
        with pytest.raises(CheckpointError, match="does not belong to this model"):
            ranks.restore(tmp_path / "other" / "shards")
        ranks.update(episodes(), temperature=1.0)
        assert ranks.updates == 3
        after = [weight.detach().clone() for weight in shared.parameters()]
        processes_of(ranks)[1].kill()
        for _ in range(2):
            with pytest.raises(RankLostError, match="rank 1 of the trainer ended"):
                ranks.update(episodes(), temperature=1.0)
        assert all(process.ending() is not None for process in processes_of(ranks))
        assert all(torch.equal(*pair) for pair in zip(after, shared.parameters(), strict=True))
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert len(list((checkpoint.path / "shards").glob("*.distcp"))) == 2
    loaded, _ = open_model(str(checkpoint.path), home=tmp_path).builtin()
    resumed = alone(loaded)
    restore_training(checkpoint, resumed)
    resumed.update(episodes(), temperature=1.0)
    assert distance(loaded, shared) <= 1e-6

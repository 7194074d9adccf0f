"""A whole run of the engine with two ranks and a reference policy."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.integration import toy_yard
from tests.integration.toy_records import of_type
from tests.integration.toy_yard import finish, make_run_dir
from tests.unit.trainer.builders.checkpoint_builders import stored_state


def test_two_ranks_and_a_reference_policy_train_in_a_run(tmp_path: Path) -> None:
    home = toy_yard.taught_home(tmp_path)
    config = toy_yard.training(home, data_parallel=2, iterations=1)
    objective = config.algorithm.model_copy(update={"kl": "k3", "kl_coefficient": 0.01})
    run_dir = make_run_dir(home, "ranks", config.model_copy(update={"algorithm": objective}))
    finish(run_dir)
    last = sorted((run_dir / "checkpoints").glob("[0-9]*"))[-1]
    assert (last / "shards" / ".metadata").exists()
    assert (run_dir / "reference" / "model.safetensors").exists()
    metrics = of_type(run_dir, "iteration_finished")[0]["metrics"]
    assert metrics["update/steps"] == 2
    assert metrics["kl/mean"] > 0  # the second step trains a policy that has left the reference
    assert metrics["tokens/padding_share"] <= 0.03
    start = load_file(home / "policies" / "toy" / "model.safetensors")
    trained = stored_state(last)
    assert all(not torch.equal(weight, trained[f"model.{name}"]) for name, weight in start.items())

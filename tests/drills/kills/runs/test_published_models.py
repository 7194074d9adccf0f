"""Training runs of a published architecture that are killed, resumed and exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.runs.test_published_models import _FAMILY, home, training
from tests.integration.toy_records import assert_same_state, of_type, weights
from tests.integration.toy_yard import (
    PATIENCE_S,
    finish,
    kill_when,
    make_run_dir,
)
from tests.unit.models.chat.chat_templates import TEMPLATES

__all__ = ["home"]  # a fixture


def test_killed_run_resumes_to_the_same_weights_and_its_export_loads(home: Path, tmp_path: Path) -> None:
    """Sampling is sequential, so that the groups of both runs are bit-identical.

    The checkpoint that the second attempt starts from is removed while it trains.
    """
    uninterrupted = make_run_dir(home, "whole", training(home))
    finish(uninterrupted)
    assert of_type(uninterrupted, "iteration_finished")[-1]["policy_version"] == 4

    killed = make_run_dir(home, "killed", training(home))
    kill_when(killed, lambda: len(of_type(killed, "checkpoint_saved")) > 1)
    assert of_type(killed, "run_finished") == []
    last_line = (killed / "engine.log").read_text().splitlines()[-1]
    assert last_line.startswith("{"), "a page shows them below the reason"
    make_run_dir(home, "killed", training(home), epoch=2)
    finish(killed)
    assert of_type(killed, "run_started")[-1]["resumed_from"] > 0
    assert_same_state(uninterrupted, killed)
    assert weights(uninterrupted) == weights(killed)

    out = tmp_path / "export"
    command = [sys.executable, "-m", "engine.trainer", "export", str(killed), str(out)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.model_type == _FAMILY
    before = AutoModelForCausalLM.from_pretrained(home / "policies" / _FAMILY)
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATES[_FAMILY]

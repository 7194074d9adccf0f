"""Validation of trainer settings before a run starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from engine.config.learning.trainer import TrainerConfig
from engine.errors import ConfigError
from engine.trainer.factory import training_device


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpu_offload": True, "device": "cpu"}, "weights are in the host's memory anyway"),
        ({"launcher": "torchrun"}, "there is one rank"),
        ({"optimizer": "sgd"}, "adamw_8bit"),
        ({"rank_timeout_s": 0}, "greater than 0"),
    ],
)
def test_invalid_trainer_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerConfig(**settings)


def test_cpu_offload_requires_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        training_device(TrainerConfig(cpu_offload=True))

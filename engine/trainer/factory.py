"""Factory of a run's trainer: single or in ranks, with the frozen policies of its objective.

Frozen policies are copied into the run's folder when first needed, so that a resumed attempt has the same
bits even if what they were copied from has moved on (``run:<id>`` names a run's *last* checkpoint).
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.algorithms import needs_reference
from engine.config.run import TrainRun
from engine.config.trainer import TrainerConfig
from engine.errors import ConfigError
from engine.models.builtin.transformer import Transformer
from engine.models.opening import open_model, save_policy_checkpoint
from engine.trainer.group import TrainerGroup
from engine.trainer.trainer import Trainer


def training_device(config: TrainerConfig) -> torch.device:
    """Return the device of the policy. Raises ConfigError when CUDA is requested and missing."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device is 'cuda', but torch sees no CUDA device: use 'auto' or 'cpu'")
    cuda = config.device != "cpu" and torch.cuda.is_available()
    ranks = config.data_parallel * config.context_parallel
    if cuda and ranks > torch.cuda.device_count():
        raise ConfigError(
            f"trainer.data_parallel × trainer.context_parallel is {ranks}, but there are "
            f"{torch.cuda.device_count()} CUDA devices"
        )
    return torch.device("cuda" if cuda else "cpu")


def open_trainer(run: TrainRun, model: Transformer, *, run_dir: Path, home: Path) -> Trainer | TrainerGroup:
    """Return the trainer of a run.

    Args:
        run: its configuration.
        model: the policy, on its device; changed in place by updates.
        run_dir: the run's folder, where frozen policies are kept.
        home: the data folder, for checkpoint references.

    Raises:
        CheckpointError: the reference policy is missing or unusable.
        TrainerError: a rank did not start.
    """
    config = run.trainer
    device = next(model.parameters()).device
    start = run.policy.checkpoint
    reference = None
    if needs_reference(run.algorithm):
        reference = _frozen(run_dir / "reference", config.reference or start, home).to(device)
    if config.data_parallel * config.context_parallel > 1:
        return TrainerGroup(
            model,
            algorithm=run.algorithm,
            config=config,
            max_context=run.agent.max_context,
            seed=run.seed,
            reference=reference,
        )
    return Trainer(
        model,
        algorithm=run.algorithm,
        config=config,
        max_context=run.agent.max_context,
        seed=run.seed,
        reference=reference,
        base=_frozen(run_dir / "base", start, home) if config.lora_rank else None,
    )


def _frozen(folder: Path, ref: str, home: Path) -> Transformer:
    if not folder.exists():
        model, tokenizer = open_model(ref, home=home).builtin()
        save_policy_checkpoint(folder, model, tokenizer, {"from": ref})
    return open_model(str(folder), home=home).builtin()[0]

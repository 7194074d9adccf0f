"""Factory of a run's trainer: in this process or in ranks, with the frozen policies of its objective.

Frozen policies are stored in the run's folder (``engine.models.frozen``), so that a resumed attempt has the
same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from engine.algorithms import needs_reference
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.placement import ranks_use_gpus
from engine.config.run import TrainRun
from engine.errors import ConfigError
from engine.models.base import LanguageModel
from engine.models.frozen import freeze_policy
from engine.models.loader import open_model
from engine.ray.cluster import has_gpus
from engine.ray.placement import Notice, ignore
from engine.trainer.learner import Learner
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.rank import RankSettings
from engine.trainer.processes.start import open_launcher
from engine.trainer.trainer import Trainer


def training_device(config: TrainerConfig) -> torch.device:
    """Return the device of the policy in this process. Raises ConfigError if a CUDA device is missing."""
    cuda = config.device != "cpu" and torch.cuda.is_available()
    if config.launcher == "ray":  # the ranks' devices are those of their nodes
        return torch.device("cuda" if cuda else "cpu")
    if config.device == "cuda" and not cuda:
        raise ConfigError("trainer.device is 'cuda', but torch sees no CUDA device: use 'auto' or 'cpu'")
    ranks = config.data_parallel * config.context_parallel
    if cuda and config.launcher == "local" and ranks > torch.cuda.device_count():
        raise ConfigError(
            f"trainer.data_parallel × trainer.context_parallel is {ranks}, but there are "
            f"{torch.cuda.device_count()} CUDA devices"
        )
    if config.cpu_offload and not cuda:
        raise ConfigError(
            "trainer.cpu_offload is on, but torch sees no CUDA device: weights are in the host's memory "
            "anyway; turn it off"
        )
    return torch.device("cuda" if cuda else "cpu")


def rank_device(config: TrainerConfig) -> str:
    """Return the kind of device of the ranks, ``cpu`` or ``cuda``. Raises ConfigError, PreflightError."""
    if config.launcher != "ray":
        return training_device(config).type
    return "cuda" if ranks_use_gpus(config, cluster_has=has_gpus()) else "cpu"


def device_name(config: TrainerConfig) -> str:
    """Return the name of the policy's device: ``cpu``, or that of its GPU, e.g. ``NVIDIA H100 80GB HBM3``."""
    if config.launcher == "ray":
        return rank_device(config)
    device = training_device(config)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def trains_in_ranks(config: TrainerConfig) -> bool:
    """Return whether the policy is trained in separate processes."""
    ranks = config.data_parallel * config.context_parallel
    return ranks > 1 or config.cpu_offload or config.launcher == "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """Model to train, and settings of its training."""

    checkpoint: str
    """Initial model, as in ``policy.checkpoint``."""
    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    max_context: int
    """The agent's limit in tokens, the objective's default normalisation length."""
    longest: int
    """Context length in tokens that the model must support; 0: any."""
    seed: int
    sampled_here: bool
    """Whether this process samples the model, and so has its weights."""

    @classmethod
    def of(cls, run: TrainRun) -> Self:
        """Return the setup of a training run."""
        return cls(
            checkpoint=run.policy.checkpoint,
            trainer=run.trainer,
            algorithm=run.algorithm,
            max_context=run.agent.max_context,
            longest=run.longest_context,
            seed=run.seed,
            sampled_here=run.policy.engine == "builtin",
        )


def open_trainer(
    setup: TrainingSetup,
    model: LanguageModel,
    *,
    policy: str,
    run_dir: Path,
    home: Path,
    notice: Notice = ignore,
) -> Learner:
    """Return the trainer of a run.

    Args:
        setup: model and settings of the training.
        model: the policy; updates change it in place. Where ranks train it and vLLM samples it, it stays as
            it is, and may be on the meta device.
        policy: reference of the policy, which ranks open themselves.
        run_dir: the run's folder, where frozen policies are stored.
        home: the data folder, for checkpoint references.
        notice: called while a cluster lacks free resources for the ranks.

    Raises:
        CheckpointError: the reference policy is missing or unusable.
        TrainerError: a rank did not start.
        PreflightError: the Ray cluster of the ranks cannot be used.
    """
    config = setup.trainer
    start = setup.checkpoint
    reference = None
    if needs_reference(setup.algorithm) and (config.reference or not config.lora_rank):
        reference = str(freeze_policy(config.reference or start, run_dir / "reference", home=home))
    if trains_in_ranks(config):
        device = rank_device(config)
        settings = RankSettings(
            policy=policy,
            reference=reference,
            home=home,
            algorithm=setup.algorithm,
            config=config,
            max_context=setup.max_context,
            seed=setup.seed,
            device=device,
        )
        if config.lora_rank:
            from engine.models.adapters import add_adapters  # peft takes seconds to import

            add_adapters(model, config, seed=setup.seed)
        launcher = open_launcher(config, device=device, notice=notice)
        return TrainerGroup(settings, launcher, sampler=model if setup.sampled_here else None)
    return Trainer(
        model,
        algorithm=setup.algorithm,
        config=config,
        max_context=setup.max_context,
        seed=setup.seed,
        reference=open_model(reference, home=home).model.to(training_device(config)) if reference else None,
    )

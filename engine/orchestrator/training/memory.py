"""Alert about an update that will not fit its GPU, before any weight is read.

A plan is an estimate (``engine.models.memory``), so the run continues; the alert lists what to change.
"""

from __future__ import annotations

import structlog

from engine.algorithms import needs_reference
from engine.config.run import TrainRun
from engine.errors import TrainyardError, describe_error
from engine.orchestrator.context import RunContext

log = structlog.get_logger("orchestrator")


def warn_of_memory(config: TrainRun, run: RunContext, *, limit: int | None = None) -> None:
    """Raise the alert ``memory`` where an update needs more memory than a GPU has.

    Args:
        config: the run's configuration.
        run: this attempt.
        limit: memory of a GPU, bytes; by default that of the first one. Without a GPU nothing is compared.
    """
    limit = _gpu_memory(config) if limit is None else limit
    if limit is None:
        return
    from engine.models.memory.estimate import estimate_memory  # loads torch

    try:
        _, plan = estimate_memory(
            config.policy.checkpoint,
            config.trainer,
            home=run.home,
            longest=config.agent.max_context,
            reference=needs_reference(config.algorithm),
        )
    except TrainyardError:
        raise
    except Exception as error:  # a layer that cannot be measured without storage may train all the same
        log.warning("memory_not_estimated", error=describe_error(error))
        return
    problem = plan.problem(limit)
    if problem is not None:
        run.alert("warning", "memory", problem)


def _gpu_memory(config: TrainRun) -> int | None:
    import torch  # scripted runs never load it

    if config.trainer.device == "cpu" or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)

"""Settings of published models: the ``config.json`` of a folder."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from engine.errors import CheckpointError, described
from engine.models.weights.policy_files import check_readable


def read_settings(folder: Path) -> PreTrainedConfig:
    """Return the settings of a folder's model; no code in it is run. Raises CheckpointError."""
    check_readable(folder)
    try:
        found: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files and impossible settings make transformers raise anything
        raise CheckpointError(f"cannot read the model in {folder}: {described(error)}") from error
    return found

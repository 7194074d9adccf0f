"""Export of measured solve rates to a file in the dataset's folder, which engines read at their start."""

from __future__ import annotations

import json

from django.utils import timezone

from engine.errors import ConfigError, DatasetError
from engine.events.health import SOLVE_RATES_FILE, locked
from engine.files import atomic_write
from webapp.datasets.selectors.difficulty import by_key
from webapp.datasets.services import datasets
from webapp.datasets.services.health import dataset_folder
from webapp.runs.models.runs import Run


def measure(*, name: str) -> int:
    """Write the measured solve rates of a dataset's tasks into its folder; return the number of tasks.

    Raises:
        DatasetError: the dataset does not exist, or its folder cannot be written.
    """
    dataset = datasets.sync(name=name)
    rates = by_key(dataset)
    content = {"format": 1, "measured_at": timezone.now().timestamp(), "tasks": rates}
    folder = dataset_folder(dataset)
    try:
        with locked(folder):
            atomic_write(folder / SOLVE_RATES_FILE, json.dumps(content))
    except OSError as error:
        raise DatasetError(f"cannot write {folder / SOLVE_RATES_FILE}: {error.strerror}") from error
    return len(rates)


def measure_for(*, run: Run) -> None:
    """Export solve rates for a run that selects tasks by them. Raises ConfigError if that is impossible."""
    dataset = run.config.get("dataset", {})
    if dataset.get("solve_rate_min") is None and dataset.get("solve_rate_max") is None:
        return
    try:
        measure(name=dataset["name"])
    except DatasetError as error:
        raise ConfigError(f"dataset.solve_rate_min and _max cannot be obeyed: {error}") from None

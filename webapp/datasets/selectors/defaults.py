"""Settings of sandboxes and grading that depend on the dataset.

Recipes for toy datasets have small sandboxes and grade two patches concurrently. Rows with published images
are complete repositories, whose tests need several GiB; as many of them are graded concurrently as the pool
has sandboxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from webapp.datasets.models.datasets import Task

_LOCAL_IMAGE = "local:"
_PUBLISHED: Mapping[str, int] = MappingProxyType({"memory_mb": 4096, "processes": 256, "disk_mb": 4096})
"""Minimum limits of sandboxes with published images, from the recipes for R2E-Gym."""


def is_local(dataset: str) -> bool:
    """Return whether all images of a dataset are folders on this machine."""
    tasks = Task.objects.filter(dataset__name=dataset)
    return tasks.exists() and not tasks.exclude(image__startswith=_LOCAL_IMAGE).exists()


def dataset_settings(config: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """Return the settings that change when a recipe is used with another dataset, by dotted name.

    Args:
        config: configuration of the recipe.
        dataset: name of the chosen dataset; no setting changes if it has local images only, or no tasks.
    """
    sandbox, grading = config.get("sandbox"), config.get("grading")
    own = (config.get("dataset") or {}).get("name")
    if sandbox is None or grading is None or dataset == own or not _is_published(dataset):
        return {}
    wanted = {
        "sandbox.backend": "docker" if sandbox["backend"] == "local" else sandbox["backend"],
        **{f"sandbox.{name}": max(least, sandbox[name]) for name, least in _PUBLISHED.items()},
        "grading.max_parallel": max(sandbox["max_live"], grading["max_parallel"]),
    }
    return {
        name: value
        for name, value in wanted.items()
        if value != config[name.partition(".")[0]][name.partition(".")[2]]
    }


def _is_published(dataset: str) -> bool:
    tasks = Task.objects.filter(dataset__name=dataset).exclude(image="")
    return tasks.exclude(image__startswith=_LOCAL_IMAGE).exists()

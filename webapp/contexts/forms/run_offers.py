"""Values that the new-run form offers for settings that refer to paths, hosts and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config.importing import PublishedSet
from engine.config.places import (
    Allowed,
    AttachedServers,
    CheckpointPlace,
    EndpointPlace,
    Granted,
    LocalPath,
    Setting,
    SourceTrees,
    places,
)
from engine.config.run import AnyRun
from webapp.contexts.forms.form_bases import UNSET
from webapp.selectors.access import endpoints as endpoint_reads
from webapp.selectors.dataset import datasets as dataset_reads
from webapp.selectors.dataset.imports import offered_sources
from webapp.selectors.run import runs as run_reads
from webapp.services.access.places import allowed
from webapp.services.run.runs import dataset_name

_MAX_OFFERED = 200


def run_offers(config: AnyRun, *, dataset: str = "") -> dict[str, tuple[str, ...]]:
    """Return existing and allowed values to choose from, by dotted setting.

    Args:
        config: the configuration that the form shows.
        dataset: name of the chosen dataset; empty: the configuration's.
    """
    limits = allowed()
    dataset = dataset or dataset_name(config.model_dump(mode="json")) or ""
    offers = {
        "dataset.name": tuple(run_reads.dataset_choices()),
        "dataset.split": dataset_reads.splits(dataset),
        "trajectories.dataset": tuple(run_reads.dataset_choices()),
        "trajectories.runs": tuple(str(run) for run in run_reads.runs_to_verify()),
        "policy.model": endpoint_reads.named_models(),
        "verifier.runs": tuple(str(run) for run in run_reads.runs_to_verify()),
        "judgements.on_policy": tuple(str(run) for run in run_reads.runs_to_verify()),
        "judgements.off_policy": tuple(str(run) for run in run_reads.runs_to_verify()),
        "verifier.tests": tuple(str(run) for run in run_reads.runs_with_written_tests()),
        "collection.skip_runs": tuple(str(run) for run in run_reads.runs_with_rollouts(dataset)),
    }
    for setting in places(config):
        offers[setting.name] = _offers(setting, limits)
    return offers


def _offers(setting: Setting, limits: Allowed) -> tuple[str, ...]:
    match setting.place:
        case AttachedServers():
            return (*limits.attachable, *map(_text, limits.granted.get(setting.name, ())))
        case Granted():
            granted = limits.granted.get(setting.name, ())
            several = isinstance(setting.default, list | dict)
            values = granted if several else (setting.default, *granted, setting.value)
            return tuple(dict.fromkeys(_text(value) for value in values))
        case CheckpointPlace():
            runs = (f"run:{run}" for run in run_reads.runs_with_checkpoints())
            models = (name for name in limits.hub_models if "*" not in name)
            return ("builtin:quickstart", *models, *_policies(limits.policies), *runs)
        case EndpointPlace():
            current = (setting.value,) if setting.value != UNSET else ()
            return tuple(dict.fromkeys((*limits.endpoints, *current)))
        case SourceTrees():
            hosts = (f"https://{host}/…" for host in limits.repository_hosts)
            return ("pip:NAME==VERSION", *hosts, *offered_sources(limits.imports))
        case LocalPath() | PublishedSet():
            return tuple(offered_sources(limits.imports))
    return ()


def _policies(folders: tuple[Path, ...]) -> list[str]:
    """Return the names of the checkpoints directly inside the policy folders."""
    found = [
        path.name
        for folder in folders
        for path in sorted(folder.glob("*"))
        if (path / "config.json").is_file()
        and any((path / f"model.safetensors{end}").is_file() for end in ("", ".index.json"))
    ]
    return found[:_MAX_OFFERED]


def _text(value: Any) -> str:
    """Return a value as the form's inputs hold it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)

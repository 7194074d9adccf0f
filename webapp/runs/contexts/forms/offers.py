"""Values that the new-run form offers for settings that name datasets, runs, checkpoints, paths and hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.config.access.downloads import names_of
from engine.config.access.places import (
    ANY,
    HUB_PREFIX,
    Allowed,
    AttachedServers,
    CheckpointPlace,
    EndpointPlace,
    Granted,
    ImageRegistries,
    LocalPath,
    PublishedSet,
    Setting,
    SourceTrees,
    places,
)
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.selectors import datasets as dataset_reads
from webapp.datasets.selectors.imports import offered_sources
from webapp.endpoints import selectors as endpoint_reads
from webapp.endpoints.services.places import allowed
from webapp.runs.contexts.forms.form import Offer, Offers
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.checkpoints import KnownCheckpoint, known_checkpoints
from webapp.runs.selectors.policies import KnownModel, list_models
from webapp.runs.services.drafts import POLICY_SECTIONS, UNSET, Draft

_MAX_OFFERED = 200
_DATASETS = (
    "dataset.name", "evaluation.dataset", "trajectories.dataset", "regrade.dataset", "curation.dataset",
)  # fmt: skip
"""Settings with the name of a dataset."""
_MODELS = tuple(f"{section}.model" for section in POLICY_SECTIONS)
"""Settings with the name of an endpoint's model."""
_SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dataset.split": ("dataset.name",),
        "dataset.splits": ("dataset.name",),
        "evaluation.split": ("evaluation.dataset", "dataset.name"),
        "trajectories.splits": ("trajectories.dataset",),
    }
)
"""Settings with splits → settings with the name of their dataset; the first that is not empty counts."""
_VERIFIED = (
    "trajectories.runs", "verifier.runs", "judgements.on_policy", "judgements.off_policy",
    "regrade.runs", "curation.alternatives_of",
)  # fmt: skip
"""Settings with runs whose graded trajectories count."""


def run_offers(draft: Draft) -> Offers:
    """Return existing and allowed values to choose from, by dotted setting."""
    limits = allowed()
    datasets = {dataset.name: dataset for dataset in dataset_reads.newest_datasets()}
    named = {setting: draft.text(setting) for setting in _DATASETS}
    verified = run_reads.runs_to_verify()
    tests, collected = (
        run_reads.runs_with_written_tests(),
        run_reads.runs_with_rollouts(named["dataset.name"]),
    )
    runs = _runs({*verified, *tests, *collected})
    offers = {
        **dict.fromkeys(_MODELS, tuple(map(Offer, endpoint_reads.named_models()))),
        "verifier.tests": tuple(runs[run] for run in tests),
        "collection.skip_runs": tuple(runs[run] for run in collected),
        **dict.fromkeys(_DATASETS, tuple(map(_dataset, datasets.values()))),
        **dict.fromkeys(_VERIFIED, tuple(runs[run] for run in verified)),
    }
    for key, names in _SPLITS.items():
        dataset = datasets.get(next(filter(None, (named[name] for name in names)), ""))
        offers[key] = _splits(dataset) if dataset is not None else ()
    checkpoints: tuple[Offer, ...] | None = None
    for setting in places(draft.model):
        if not isinstance(setting.place, CheckpointPlace):
            offers[setting.name] = tuple(map(Offer, _values(setting, limits)))
            continue
        checkpoints = checkpoints or tuple(_checkpoints(limits))
        offers[setting.name] = checkpoints
    return offers


def _dataset(dataset: Dataset) -> Offer:
    splits = ", ".join(f"{name} {tasks:,}" for name, tasks in dataset.splits.items())
    return Offer(
        dataset.name, f"{_tasks(dataset.num_tasks)}: {splits}" if splits else _tasks(dataset.num_tasks)
    )


def _splits(dataset: Dataset) -> tuple[Offer, ...]:
    return tuple(Offer(name, _tasks(tasks)) for name, tasks in dataset.splits.items())


def _tasks(count: int) -> str:
    return f"{count:,} task{'s' * (count != 1)}"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _runs(run_ids: set[int]) -> dict[int, Offer]:
    """Return the offers of the existing runs by number."""
    return {
        number: Offer(str(number), _run(run)) for number, run in run_reads.runs_by_number(run_ids).items()
    }


def _run(run: Run) -> str:
    parts = (run.name, run.dataset.name if run.dataset else "", run.state, _clock(run.created_at))
    return " · ".join(filter(None, parts))


def _checkpoints(limits: Allowed) -> Iterator[Offer]:
    """Yield the checkpoints that a policy may start from; the newest of a run also as ``run:ID``."""
    yield Offer("builtin:quickstart", "shipped with Trainyard")
    yield from (Offer(name, "Hugging Face Hub") for name in names_of(limits.hub_models) if "*" not in name)
    cards = {model.name: model for model in list_models() if model.is_fetched}
    yield from (Offer(name, _policy(cards.get(name))) for name in _policies(limits.policies))
    for checkpoint in known_checkpoints():
        label, run = describe_checkpoint(checkpoint), _origin(checkpoint)
        if checkpoint.is_last:
            last = "last checkpoint of"
            yield Offer(f"run:{checkpoint.run_id}", f"{last} {label}", f"{last} {run}")
        yield Offer(checkpoint.reference, label, run)


def _policy(card: KnownModel | None) -> str:
    """Return a policy folder's origin, licence and quantisation as text."""
    parts = (card.model, card.licence, card.quantisation) if card is not None else ()
    return " · ".join(["policy folder", *filter(None, parts)])


def describe_checkpoint(checkpoint: KnownCheckpoint) -> str:
    """Return a checkpoint's run, iteration, date and held-out solve rate as text."""
    rate = f"held-out {100 * checkpoint.solve_rate:.1f} %" if checkpoint.solve_rate is not None else ""
    saved = _clock(checkpoint.saved_at)
    parts = (_origin(checkpoint), f"after iteration {checkpoint.iteration}", saved, rate)
    return " · ".join(filter(None, parts))


def _origin(checkpoint: KnownCheckpoint) -> str:
    return f"run {checkpoint.run_id} {checkpoint.run_name}"


def _values(setting: Setting, limits: Allowed) -> tuple[str, ...]:
    match setting.place:
        case AttachedServers():
            return (*limits.attachable, *map(_text, limits.granted.get(setting.name, ())))
        case Granted():
            granted = limits.granted.get(setting.name, ())
            several = isinstance(setting.default, list | dict)
            values = granted if several else (setting.default, *granted, setting.value)
            return tuple(dict.fromkeys(_text(value) for value in values))
        case EndpointPlace():
            current = (setting.value,) if setting.value != UNSET else ()
            return tuple(dict.fromkeys((*limits.endpoints, *current)))
        case SourceTrees():
            hosts = (f"https://{host}/…" for host in limits.repository_hosts)
            return ("pip:NAME==VERSION", *hosts, *offered_sources(limits.imports))
        case ImageRegistries():
            return (ANY, *limits.image_registries)
        case PublishedSet():
            names = (f"{HUB_PREFIX}{name}" for name in names_of(limits.hub_datasets) if "*" not in name)
            return (*names, *offered_sources(limits.imports))
        case LocalPath():
            return tuple(offered_sources(limits.imports))
    return ()


def _policies(folders: tuple[Path, ...]) -> list[str]:
    """Return the names of the checkpoints and GGUF files directly inside the policy folders."""
    names = [path.name for folder in folders for path in sorted(folder.glob("*")) if _is_policy(path)]
    return names[:_MAX_OFFERED]


def _is_policy(path: Path) -> bool:
    if not (path / "config.json").is_file():
        return path.suffix == ".gguf" or any(path.glob("*.gguf"))
    return any((path / f"model.safetensors{end}").is_file() for end in ("", ".index.json"))


def _text(value: Any) -> str:
    """Return a value as text for the form's inputs."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)

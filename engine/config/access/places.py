"""Access of configurations to external resources (paths, hosts, privileges, amounts of memory and disk),
granted by the administrator.

Every text field of a configuration is annotated with the resource that it names: ``Text`` names nothing
external, the classes below do. ``engine.config.run.check_places`` refuses resources that an ``Allowed`` does
not list. A run that the server starts is checked before it is stored, before it is queued and when its
process begins; runs started from a shell are not checked.

To add a setting for an external resource: annotate it; to add a kind of resource: a class with ``resolve``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from engine.config.access.downloads import is_listed, names_of
from engine.config.access.source_spec import FolderSource, RepositorySource, parse_source
from engine.config.base import Section

Root = Literal["imports", "policies"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_MODEL = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@(?!.*\.\.)[A-Za-z0-9][\w./-]*)?")
"""Pattern of a model of the Hugging Face Hub: ``OWNER/NAME`` or ``OWNER/NAME@REVISION``."""
HUB_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
"""Pattern of a dataset of the Hugging Face Hub: ``OWNER/NAME``; a few old ones have no owner."""
HUB_PREFIX = "hf:"
ANY = "*"
_SCHEMES = ("builtin", "run", "fresh")
_CALLED = {"imports": "an import folder", "policies": "a policy folder"}
_VARIABLE = {"imports": "TRAINYARD_IMPORT_FOLDERS", "policies": "TRAINYARD_POLICY_FOLDERS"}


class Allowed(BaseModel):
    """External resources that the administrator allows configurations to use; none by default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    imports: tuple[Path, ...] = ()
    """Readable folders with datasets, source trees and stored trajectories."""
    policies: tuple[Path, ...] = ()
    """Folders with checkpoints."""
    hub_models: tuple[str, ...] = ()
    """Models of the Hugging Face Hub that may be used, and downloaded where they are not in its cache:
    ``OWNER/NAME``, with ``*`` for any text; the suffix ``+token`` uses the workers' token."""
    hub_datasets: tuple[str, ...] = ()
    """Datasets of the Hugging Face Hub that may be imported, as ``hub_models``."""
    image_registries: tuple[str, ...] = ()
    """Hosts from which images of tasks may come, with the port where they have one; ``*`` for any."""
    repository_hosts: tuple[str, ...] = ()
    """Hosts from which git repositories are read over https, with the port where it is not 443."""
    endpoints: tuple[str, ...] = ()
    """Names of the endpoints that may be used; their addresses and keys are not part of any configuration."""
    attachable: tuple[str, ...] = ()
    """Names of the endpoints that are vLLM servers whose weights runs may replace."""
    granted: Mapping[str, tuple[Any, ...]] = {}
    """Values allowed beside the default, by dotted setting name."""
    limits: Mapping[str, float] = {}
    """Greatest values, by dotted setting name, where they are not those of ``Bounded``."""

    def below(self, root: Root, path: str) -> Path:
        """Return the resolved path below one of the allowed folders, symbolic links followed.

        Args:
            root: which folders.
            path: absolute, or relative to one of them.

        Raises:
            ValueError: the path is in none of them, or does not exist.
        """
        folders: tuple[Path, ...] = getattr(self, root)
        for folder in folders:
            try:
                resolved = (folder / path).resolve()
                if resolved.is_relative_to(folder.resolve()) and resolved.exists():
                    return resolved
            except (OSError, ValueError):  # too long, or a character that paths must not have
                continue
        known = ", ".join(map(str, folders)) or "there is none"
        raise ValueError(
            f"'{path}' is not below {_CALLED[root]} of the server ({known}): put it there, or have the "
            f"administrator add its folder to {_VARIABLE[root]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a configuration; values are plain JSON data."""

    name: str
    """Dotted name, e.g. ``sandbox.docker.host``."""
    place: Place
    value: Any
    default: Any


class Place(ABC):
    """An external resource that a setting names."""

    @abstractmethod
    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it. Raises ValueError when it is not allowed."""


@dataclass(frozen=True)
class Harmless:
    """A text that names only items within the configuration and the data folder."""


Text = Annotated[str, Harmless()]


@dataclass(frozen=True)
class LocalPath(Place):
    """A file or folder below the allowed folders of a kind; empty names none."""

    root: Root

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        return str(allowed.below(self.root, setting.value)) if setting.value else setting.value


@dataclass(frozen=True)
class SourceTrees(Place):
    """Source trees; see ``engine.config.access.source_spec``."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        return [self._one(text, allowed) for text in setting.value]

    def _one(self, text: str, allowed: Allowed) -> str:
        match parse_source(text):
            case FolderSource(path):
                return str(allowed.below("imports", path))
            case RepositorySource() as repository if repository.host not in allowed.repository_hosts:
                known = ", ".join(allowed.repository_hosts) or "there is none"
                raise ValueError(
                    f"'{repository.host}' is not an allowed host of repositories ({known}): have the "
                    "administrator add it to TRAINYARD_REPOSITORY_HOSTS"
                )
        return text


@dataclass(frozen=True)
class CheckpointPlace(Place):
    """A checkpoint: ``SCHEME:NAME``, ``warm``, a folder below the policy folders, or a model of the hub."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        value = setting.value
        if value is None or value == "warm":
            return value
        scheme, separator, name = value.partition(":")
        if scheme == "fresh" and "/" in name:
            return f"fresh:{allowed.below('policies', name)}"
        if separator and scheme in _SCHEMES:
            if _NAME.fullmatch(name) is None:
                raise ValueError(f"'{value}' names no checkpoint: expected {scheme}:NAME without folders")
            return value
        try:
            return str(allowed.below("policies", value))
        except ValueError:
            if HUB_MODEL.fullmatch(value) is None:
                raise
        return self._hub_model(value, allowed)

    def _hub_model(self, value: str, allowed: Allowed) -> str:
        name, _, revision = value.partition("@")
        _check_revision(revision)
        problem = (
            f"'{value}' is neither below a policy folder nor a model of the Hugging Face Hub that may be used"
        )
        _check_listed(name, allowed.hub_models, problem, "TRAINYARD_HUB_MODELS")
        return value


def _check_listed(name: str, entries: Sequence[str], problem: str, variable: str) -> None:
    """Raise ValueError, which begins with ``problem``, for a name not on the administrator's list."""
    patterns = names_of(entries)
    if not is_listed(name, patterns):
        known = ", ".join(patterns) or "there is none"
        raise ValueError(f"{problem} ({known}): have the administrator add it to {variable}")


def _check_revision(revision: str) -> None:
    """Raise ValueError for a Hub revision that anybody can create, such as a pull request."""
    if revision.startswith("refs/") and not revision.startswith("refs/convert/"):
        raise ValueError(
            f"'{revision}' may be a pull request, which anybody can open: expected a branch, tag or commit"
        )


@dataclass(frozen=True)
class PublishedSet(Place):
    """A published dataset: ``hf:OWNER/NAME``, or a path below the import folders."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        source: str = setting.value
        if not source.startswith(HUB_PREFIX):
            return str(allowed.below("imports", source))
        name = source.removeprefix(HUB_PREFIX)
        if HUB_DATASET.fullmatch(name) is None:
            raise ValueError(f"'{source}' names no dataset of the Hugging Face Hub: expected hf:OWNER/NAME")
        problem = f"'{source}' is no dataset of the Hugging Face Hub that may be imported"
        _check_listed(name, allowed.hub_datasets, problem, "TRAINYARD_HUB_DATASETS")
        return source


@dataclass(frozen=True)
class HubRevision(Place):
    """A revision of a dataset of the Hugging Face Hub; empty is the main branch."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:  # noqa: ARG002
        """Return the value as the engine reads it; see ``Place.resolve``."""
        _check_revision(setting.value)
        return setting.value


@dataclass(frozen=True)
class ImageRegistries(Place):
    """Hosts of images; ``*`` means all hosts on the administrator's list."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        for host in setting.value:
            if host != ANY and not {host, ANY} & {*allowed.image_registries}:
                known = ", ".join(allowed.image_registries) or "there is none"
                raise ValueError(
                    f"'{host}' is not an allowed host of images ({known}): have the administrator add "
                    "it to TRAINYARD_IMAGE_REGISTRIES"
                )
        return setting.value


@dataclass(frozen=True)
class EndpointPlace(Place):
    """An endpoint that the administrator entered."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        if setting.value not in allowed.endpoints:
            known = ", ".join(allowed.endpoints) or "there is none"
            raise ValueError(
                f"'{setting.value}' is no endpoint of this server ({known}): have the administrator enter it"
            )
        return setting.value


@dataclass(frozen=True)
class Granted(Place):
    """A setting restricted to its default and the values on the administrator's list.

    The items of a list may be granted separately.
    """

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        possible = (setting.default, *allowed.granted.get(setting.name, ()))
        items = setting.value if isinstance(setting.value, list) else [setting.value]
        if setting.value not in possible and not all(item in possible for item in items):
            shown = " or ".join(f"'{value}'" for value in possible)
            raise ValueError(
                f"'{setting.value}' is not granted: it may be {shown}; have the administrator add it to "
                "TRAINYARD_GRANTED"
            )
        return setting.value


@dataclass(frozen=True)
class Bounded(Place):
    """An amount of a shared resource, up to the administrator's limit; a greater default is lowered to it."""

    most: float
    """Limit where the administrator sets none."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        most = allowed.limits.get(setting.name, self.most)
        if setting.value == setting.default:
            return min(setting.value, most)
        if setting.value > most:
            raise ValueError(
                f"{setting.value} is more than {most:g}, the most that a run may ask for: have the "
                "administrator raise it in TRAINYARD_LIMITS"
            )
        return setting.value


@dataclass(frozen=True)
class AttachedServers(Granted):
    """Running vLLM servers: attachable endpoints, or addresses on the administrator's list."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """Return the value as the engine reads it; see ``Place.resolve``."""
        addresses = [item for item in setting.value if item not in allowed.attachable]
        try:
            super().resolve(replace(setting, value=addresses), allowed)
        except ValueError as error:
            known = ", ".join(allowed.attachable) or "there is none"
            raise ValueError(f"{error}, or enter an endpoint that runs may attach to ({known})") from None
        return setting.value


def places(section: Section, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting of a section and its subsections that names an external resource."""
    dumped = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        place = next((mark for mark in field.metadata if isinstance(mark, Place)), None)
        if place is not None:
            default = None if field.is_required() else to_jsonable_python(field.get_default())
            yield Setting(name=f"{prefix}{name}", place=place, value=dumped[name], default=default)
        elif isinstance(value, Section):
            yield from places(value, f"{prefix}{name}.")

"""Settings of imports: which rows of which published set become a dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from engine.config.base import Section
from engine.config.places import Allowed, Granted, LocalPath, Place, Setting, Text

HUB_PREFIX = "hf:"
FORMATS = {
    "r2e-gym": "R2E-Gym: Subset, Lite, V1, Full, Validated, and its SWE-bench variants",
    "swe-gym": "SWE-Gym and its Lite",
    "swe-bench": "SWE-bench: full, Lite, Verified, Multilingual; rows of versions 4 and 5",
    "swe-bench-v5": "a task repository of SWE-bench 5: folders with a task.yaml",
    "swe-smith": "SWE-smith, whose published patch is the bug",
    "swe-rebench": "SWE-rebench v1",
    "swe-rebench-v2": "SWE-rebench V2, 20 languages",
    "multi-swe-rl": "Multi-SWE-RL and Multi-SWE-bench",
    "swe-bench-pro": "SWE-bench Pro; put run_scripts/ beside the rows",
    "harbor": "Harbor tasks: folders with a task.toml",
    "trainyard": "an export of this or another yard",
}
"""Formats that can be imported; the converters are in ``engine.datasets.importers``."""
COMPARISON = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|<|>)\s*(-?\d+(?:\.\d+)?)\s*")
"""``NAME OP NUMBER``, e.g. ``patch_lines<=200``."""


@dataclass(frozen=True)
class PublishedSet(Place):
    """A dataset: ``hf:OWNER/NAME``, or a path below the import folders."""

    def resolve(self, setting: Setting, allowed: Allowed) -> Any:
        """See ``Place.resolve``."""
        source = setting.value
        return source if source.startswith(HUB_PREFIX) else str(allowed.below("imports", source))


class FilterConfig(Section):
    """Which rows are wanted; the others are counted and listed as excluded."""

    languages: tuple[Text, ...] = ()
    """Keep only these languages, as the rows name them (``python``, ``go``, …); empty keeps all."""
    repositories: tuple[Text, ...] = ()
    """Keep only these repositories (``owner/name``); empty keeps all."""
    where: tuple[Text, ...] = ()
    """Comparisons with a task's numbers, all of which must hold: ``patch_lines<=200``, ``num_tests>=2``,
    ``minutes<=60``; a row without the number is excluded."""
    min_words: int = Field(default=0, ge=0)
    """Shortest statement, in words."""
    max_words: int = Field(default=0, ge=0)
    """Longest statement, in words; 0 is no limit."""
    drop_leaking: bool = False
    """Exclude rows whose statement quotes lines that the gold patch adds."""
    drop_ungradable: bool = False
    """Exclude rows whose patches cannot be judged here, such as those whose parser is the set's own code."""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        for comparison in self.where:
            if COMPARISON.fullmatch(comparison) is None:
                raise ValueError(
                    f"'{comparison}' is no comparison: write NAME OP NUMBER, e.g. patch_lines<=200"
                )
        if self.max_words and self.max_words < self.min_words:
            raise ValueError(f"max_words is {self.max_words}, below min_words, which is {self.min_words}")
        return self


class DecontaminationConfig(Section):
    """Which rows are too near to a benchmark that a trained model is to be measured on."""

    verified_repositories: bool = False
    """Exclude the 12 repositories of SWE-bench Verified."""
    repositories: tuple[Text, ...] = ()
    """Further repositories to exclude (``owner/name``, or the name alone)."""
    reference: Annotated[str, LocalPath("imports")] = ""
    """File with the benchmark's own rows (parquet, JSONL, JSON; format swe-bench): rows with the same
    instance, the same commit, nearly the same statement or the same fix are excluded."""
    ngram: int = Field(default=8, ge=2, le=50)
    """Words in a row that are compared."""
    overlap: float = Field(default=0.5, gt=0, le=1)
    """Share of the shorter statement's n-grams (of the smaller fix's lines) from which two are the same."""

    @property
    def is_on(self) -> bool:
        """Whether anything is compared at all."""
        return self.verified_repositories or bool(self.repositories) or bool(self.reference)


class ImportConfig(Section):
    """An import: a published set becomes a dataset of this yard."""

    format: Text = Field(min_length=1)
    """Format of the rows, e.g. ``r2e-gym``."""
    source: Annotated[str, PublishedSet()] = Field(min_length=1)
    """File or folder, or ``hf:OWNER/NAME`` for a dataset of the Hugging Face hub."""
    output: Text = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the dataset."""
    revision: Text = ""
    """Hub only: branch, tag or commit; empty is the newest, whose commit is recorded."""
    subset: Text = ""
    """Hub only: the configuration (subset) to read where a dataset has several."""
    source_split: Text = ""
    """Read only this split of the source, e.g. ``train``; empty reads all."""
    split: Text = ""
    """Put every row into this split; empty keeps the source's."""
    limit: int | None = Field(default=None, ge=1)
    """Read only the first so many rows."""
    mode: Literal["new", "replace", "append"] = "new"
    """What to do when the dataset exists: ``new`` refuses unless it was imported from the same source,
    ``replace`` replaces it, ``append`` adds to it."""
    image_prefix: Annotated[str, Granted()] = ""
    """Registry put before every image name, e.g. ``registry.example/mirror/``; local images stay."""
    filters: FilterConfig = FilterConfig()
    decontamination: DecontaminationConfig = DecontaminationConfig()

    @field_validator("format")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"there is no format '{name}'; there are: {', '.join(FORMATS)}")
        return name

    @property
    def hub_name(self) -> str:
        """Name at the hub; empty for local sources."""
        return self.source.removeprefix(HUB_PREFIX) if self.source.startswith(HUB_PREFIX) else ""

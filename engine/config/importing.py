"""Settings of imports: the published dataset, and the selection of its rows."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from engine.config.access.places import HUB_PREFIX, Granted, HubRevision, LocalPath, PublishedSet, Text
from engine.config.base import Section

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
    "trainyard": "an export of this or another installation",
}
"""Formats that can be imported; the converters are in ``engine.datasets.importers``."""
COMPARISON = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|<|>)\s*(-?\d+(?:\.\d+)?)\s*")
"""Pattern of ``NAME OP NUMBER``, e.g. ``patch_lines<=200``."""


class FilterConfig(Section):
    """Selection of rows; rows that do not pass are counted and listed as excluded."""

    languages: tuple[Text, ...] = ()
    """Keep only rows in these languages, as the dataset names them (``python``, ``go``, …); empty keeps
    all."""
    repositories: tuple[Text, ...] = ()
    """Keep only these repositories (``owner/name``); empty keeps all."""
    where: tuple[Text, ...] = ()
    """Conditions on a task's numbers, all of which must hold: ``patch_lines<=200``, ``num_tests>=2``,
    ``minutes<=60``; a row without the number is excluded."""
    min_words: int = Field(default=0, ge=0)
    """Minimum length of the problem statement, words."""
    max_words: int = Field(default=0, ge=0)
    """Maximum length of the problem statement, words; 0 sets no limit."""
    drop_leaking: bool = False
    """Exclude rows whose problem statement quotes lines that the gold patch adds."""
    drop_ungradable: bool = False
    """Exclude rows that cannot be graded on this installation, such as rows whose log parser is the
    dataset's own code."""

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
    """Exclusion of rows that overlap with an evaluation benchmark."""

    verified_repositories: bool = False
    """Exclude the 12 repositories of SWE-bench Verified."""
    repositories: tuple[Text, ...] = ()
    """Further repositories to exclude (``owner/name``, or the name alone)."""
    reference: Annotated[str, LocalPath("imports")] = ""
    """File with the benchmark's own rows (parquet, JSONL, JSON; format swe-bench): rows with the same
    instance, the same commit, nearly the same statement or the same fix are excluded."""
    ngram: int = Field(default=8, ge=2, le=50)
    """Length of the compared n-grams, words."""
    overlap: float = Field(default=0.5, gt=0, le=1)
    """Share of the shorter statement's n-grams (or of the smaller fix's lines) from which two rows count
    as the same."""


class ImportConfig(Section):
    """Import of a published dataset into this installation."""

    format: Text = Field(min_length=1)
    """Row format, e.g. ``r2e-gym``."""
    source: Annotated[str, PublishedSet()] = Field(min_length=1)
    """File or folder, or ``hf:OWNER/NAME`` for a dataset of the Hugging Face Hub."""
    output: Text = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the dataset to create or extend."""
    revision: Annotated[str, HubRevision()] = ""
    """Hub only: branch, tag or commit; empty selects the newest commit, which is recorded."""
    subset: Text = ""
    """Hub only: configuration (subset) to read when the dataset has several."""
    source_split: Text = ""
    """Read only this split of the source, e.g. ``train``; empty reads all."""
    split: Text = ""
    """Assign every row to this split; empty keeps the split of the source."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows to read."""
    mode: Literal["new", "replace", "append"] = "new"
    """Treatment of an existing dataset: ``new`` refuses unless it was imported from the same source,
    ``replace`` replaces it, ``append`` adds rows to it."""
    image_prefix: Annotated[str, Granted()] = ""
    """Registry prefix of every image name, e.g. ``registry.example/mirror/``; local images are unchanged."""
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
        """Return the dataset's name at the hub; empty for local sources."""
        return self.source.removeprefix(HUB_PREFIX) if self.source.startswith(HUB_PREFIX) else ""

"""Converters of all formats by name; ``engine.config.importing.FORMATS`` describes each format."""

from __future__ import annotations

from collections.abc import Mapping

from engine.datasets.importers.base import Format
from engine.datasets.importers.formats import (
    harbor,
    multi_swe,
    r2e_gym,
    swe_bench,
    swe_bench_pro,
    swe_rebench,
    swe_smith,
    task_repo,
    trainyard,
)

_FOLDERS = (
    Format(
        name="swe-bench-v5",
        convert=swe_bench.convert,
        read_folder=task_repo.read_folder,
        marker=task_repo.MARKER,
    ),
    Format(name="harbor", convert=harbor.convert, read_folder=harbor.read_folder, marker=harbor.MARKER),
)
_ROWS = (
    Format(name="r2e-gym", convert=r2e_gym.convert),
    Format(name="swe-gym", convert=swe_bench.convert_swe_gym),
    Format(name="swe-bench", convert=swe_bench.convert),
    Format(name="swe-smith", convert=swe_smith.convert),
    Format(name="swe-rebench", convert=swe_rebench.convert),
    Format(name="swe-rebench-v2", convert=swe_rebench.convert_v2),
    Format(name="multi-swe-rl", convert=multi_swe.convert),
    Format(name="swe-bench-pro", convert=swe_bench_pro.convert),
    Format(name="trainyard", convert=trainyard.convert),
)
FORMATS: Mapping[str, Format] = {form.name: form for form in (*_FOLDERS, *_ROWS)}

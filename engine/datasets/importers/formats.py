"""The table of every format that can be imported, by name."""

from __future__ import annotations

from collections.abc import Mapping

from engine.datasets.importers import (
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
from engine.datasets.importers.base import Format
from engine.errors import DatasetError

_ALL = (
    Format(
        name="r2e-gym",
        help="R2E-Gym: Subset, Lite, V1, Full, Validated, its SWE-bench variants",
        convert=r2e_gym.convert,
    ),
    Format(name="swe-gym", help="SWE-Gym and its Lite", convert=swe_bench.convert_swe_gym),
    Format(
        name="swe-bench",
        help="SWE-bench: full, Lite, Verified, Multilingual; rows of versions 4 and 5",
        convert=swe_bench.convert,
    ),
    Format(
        name="swe-bench-v5",
        help="a task repository of SWE-bench 5: tasks/<id>/task.yaml",
        convert=swe_bench.convert,
        layout="folders",
        read_folder=task_repo.read_folder,
        marker=task_repo.MARKER,
    ),
    Format(name="swe-smith", help="SWE-smith; the published patch is the bug", convert=swe_smith.convert),
    Format(name="swe-rebench", help="SWE-rebench v1", convert=swe_rebench.convert),
    Format(name="swe-rebench-v2", help="SWE-rebench V2", convert=swe_rebench.convert_v2),
    Format(name="multi-swe-rl", help="Multi-SWE-RL and Multi-SWE-bench", convert=multi_swe.convert),
    Format(
        name="swe-bench-pro",
        help="SWE-bench Pro; put run_scripts/ beside the rows",
        convert=swe_bench_pro.convert,
    ),
    Format(
        name="harbor",
        help="Harbor task folders",
        convert=harbor.convert,
        layout="folders",
        read_folder=harbor.read_folder,
        marker=harbor.MARKER,
    ),
    Format(name="trainyard", help="our own export", convert=trainyard.convert),
)
FORMATS: Mapping[str, Format] = {known.name: known for known in _ALL}


def find_format(name: str) -> Format:
    """A format by its name. Raises DatasetError naming those there are."""
    if name not in FORMATS:
        raise DatasetError(f"there is no format '{name}'; there are: {', '.join(FORMATS)}")
    return FORMATS[name]

"""The kinds a configuration may name are the kinds faults have."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import get_args

import pytest

from engine.config.recipes import resolve
from engine.config.training import FaultKind
from engine.datasets.curation.faults import enumerate_faults
from engine.errors import ConfigError


def test_every_kind_a_configuration_may_name_is_found_in_real_code_and_no_other() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    found: set[str] = set()
    for name in ("textwrap", "fractions", "cmd", "calendar"):
        source = (library / f"{name}.py").read_text(encoding="utf-8")
        found |= {fault.kind for fault in enumerate_faults(source)}
    assert found == set(get_args(FaultKind))


def test_an_unknown_kind_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="fault_kinds"):
        resolve("quickstart-dataset", {"curation.fault_kinds": ["typo"]})

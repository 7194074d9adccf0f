"""Ledger of local sandboxes: damaged entries do not hide the others."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.ledger import Ledger, LedgerEntry

SPEC = SandboxSpec(image="local:x", run_id="7", name="box", limits=SandboxLimits(lifetime_s=60))
ENTRY = LedgerEntry.of_this_process("good", SPEC, cgroups=("/a", "/b"))
_OF_ANOTHER_VERSION = json.dumps({**asdict(ENTRY), "host": "x"})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "\xff", _OF_ANOTHER_VERSION], ids=lambda text: text[:8] or "empty"
)
def test_damaged_entry_is_skipped_and_removed_once_it_is_old(tmp_path: Path, text: str) -> None:
    ledger, damaged = Ledger(tmp_path), tmp_path / "bad.json"
    ledger.write(ENTRY)
    ledger.write(replace(ENTRY, id="worse"))
    damaged.write_bytes(text.encode("latin-1"))
    assert [entry.id for entry in ledger.entries()] == ["good", "worse"]
    assert damaged.exists(), "its owner may be writing it again"
    os.utime(damaged, (0, 0))
    assert list(ledger.entries()) == [ENTRY, replace(ENTRY, id="worse")]
    assert not damaged.exists()

"""Installation of the test toolchain that images of a source mount (``engine.testing.toolchain``)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.datasets.sources.downloads import run_pip_files, unpack
from engine.testing.toolchain import create_once, runner_scripts

PYTEST = "pytest==9.1.0"


def ensure_toolchain(home: Path, requirements: Sequence[str] = ()) -> Path:
    """Return the folder with pytest, the driver and ``requirements``; installed on first use.

    Raises:
        PreflightError: pip could not download it (no network, no pure-Python distribution).
        DatasetError: a wheel is damaged or hostile.
    """
    wanted = [PYTEST, *sorted(requirements)]
    scripts = runner_scripts()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(repr((wanted, version)).encode() + b"".join(scripts.values())).hexdigest()[:16]

    def download(draft: Path) -> Path:
        (draft / "wheels").mkdir()
        (draft / "unpacked").mkdir()
        run_pip_files("wheels", str(draft / "wheels"), *wanted)
        folder = unpack("wheels", draft / "wheels", draft / "unpacked", home=home, what="the test toolchain")
        (folder / "pytest.ini").write_text("[pytest]\n")
        return folder

    return create_once(home / "toolchain" / digest, download)

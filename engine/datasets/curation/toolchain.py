"""Installation of the test toolchain that images of a source mount (``engine.testing.toolchain``)."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.datasets.sources.downloads import run_pip_files, unpack
from engine.testing.toolchain import runner_scripts, write_scripts

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
    target = home / "toolchain" / digest
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{digest}-", dir=target.parent))
    try:
        (staging / "wheels").mkdir()
        (staging / "unpacked").mkdir()
        run_pip_files("wheels", str(staging / "wheels"), *wanted)
        folder = unpack(
            "wheels", staging / "wheels", staging / "unpacked", home=home, what="the test toolchain"
        )
        write_scripts(folder)
        (folder / "pytest.ini").write_text("[pytest]\n")
        folder.rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target

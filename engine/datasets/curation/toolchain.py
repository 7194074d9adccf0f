"""Installation of the test toolchain that images of a source mount (``engine.testing.toolchain``)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from engine.datasets.sources.downloads import unpack
from engine.pip_files import run_pip_files
from engine.testing.toolchain import create_once, runner_scripts

PYTEST = "pytest==9.1.0"


def ensure_toolchain(
    home: Path,
    requirements: Sequence[str] = (),
    *,
    is_complete: bool = False,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Return the folder with pytest, the driver and ``requirements``; installed on first use.

    Args:
        home: the data folder.
        requirements: packages besides pytest.
        is_complete: ``requirements`` are the exact versions of all packages, pytest included.
        files: path → text of additional files.

    Raises:
        PreflightError: pip could not download it (no network, no pure-Python distribution).
        DatasetError: a wheel is damaged or hostile.
    """
    wanted = list(requirements) if is_complete else [PYTEST, *sorted(requirements)]
    scripts = runner_scripts()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    content = repr((wanted, version, *sorted(files.items()))).encode() + b"".join(scripts.values())

    def download(draft: Path) -> Path:
        (draft / "wheels").mkdir()
        (draft / "unpacked").mkdir()
        run_pip_files("pinned" if is_complete else "wheels", str(draft / "wheels"), *wanted)
        folder = unpack("wheels", draft / "wheels", draft / "unpacked", home=home, what="the test toolchain")
        for path, text in {"pytest.ini": "[pytest]\n", **files}.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return create_once(home / "toolchain" / hashlib.sha256(content).hexdigest()[:16], download)

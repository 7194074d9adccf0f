"""Import of single modules of large packages without running the packages' ``__init__``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from engine.errors import PreflightError


def package_folder(name: str, *, needed: str) -> Path:
    """Return the folder of an installed top-level package.

    Args:
        needed: requirement to install, for the message.

    Raises:
        PreflightError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise PreflightError(f"{name} is not installed; install {needed}")
    return Path(spec.submodule_search_locations[0])


def import_without_init(package: str, module: str, *, needed: str) -> ModuleType:
    """Import ``package.module`` with ``package`` as a bare namespace, unless it is imported already.

    Raises:
        PreflightError: the package is not installed.
    """
    if package not in sys.modules:
        top, _, sub = package.partition(".")
        namespace = ModuleType(package)
        namespace.__path__ = [str(package_folder(top, needed=needed) / sub)]
        sys.modules[package] = namespace
    return importlib.import_module(f"{package}.{module}")

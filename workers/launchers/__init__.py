"""Launchers of engine processes. ``LAUNCHERS`` maps the setting ``launcher.backend`` to its launcher.

To add a launcher (e.g. for Slurm jobs), add a module with a class that implements ``base.Launcher``, a line
here, and the settings to ``engine.config.launcher``.
"""

from __future__ import annotations

from workers.launchers.base import Launcher
from workers.launchers.external import ExternalLauncher
from workers.launchers.local import LocalLauncher
from workers.launchers.ray.launcher import RayLauncher

LAUNCHERS: dict[str, Launcher] = {
    "local": LocalLauncher(),
    "ray": RayLauncher(),
    "external": ExternalLauncher(),
}

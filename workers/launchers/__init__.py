"""Launchers of engine processes. ``LAUNCHERS`` maps the name stored with an attempt to its launcher.

To add one (a Ray job, a Slurm job): a module with a class that fits ``base.Launcher``, a line here.
"""

from __future__ import annotations

from workers.launchers.base import Launcher
from workers.launchers.local import LocalLauncher

LAUNCHERS: dict[str, Launcher] = {"local": LocalLauncher()}

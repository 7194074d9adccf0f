"""``python -m engine.rollout.processes``: a rollout worker; a run starts it."""

from __future__ import annotations

import os
import sys

from engine.processes.environment import take_variable
from engine.rollout.processes.worker import KEY, serve

if __name__ == "__main__":
    sys.exit(serve({**os.environ, KEY: take_variable(KEY)}))

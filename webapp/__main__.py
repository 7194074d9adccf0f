"""Entry point of ``python -m webapp``, the same as the command ``trainyard``."""

from __future__ import annotations

import sys

from webapp.cli import main

if __name__ == "__main__":
    sys.exit(main())

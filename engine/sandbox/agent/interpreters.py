"""Search for a Python interpreter inside a third-party image, to start the agent with.

The agent needs Python 3.7 or newer. Its place differs between images of published datasets: the
distribution's own, conda's base, or the repository's environment, which may be older than 3.7. ``launcher``
returns a command that tries the candidates in order. The interpreter replaces the shell, so that the agent is
the container's init. This module runs on the host, only the command inside. To support another layout, add
its path to ``CANDIDATES``.
"""

from __future__ import annotations

from collections.abc import Sequence

CANDIDATES = (
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/miniconda3/bin/python",
    "/opt/conda/bin/python",
    "/root/.venv/bin/python",
    "/testbed/.venv/bin/python",
    "/opt/miniconda3/envs/testbed/bin/python",
    "python3",
)
"""Absolute paths and names on PATH; those least likely to be outdated or modified by a task come first."""

NO_PYTHON = "no Python 3.7 or newer in the image"
"""Message of the launcher before it ends with status ``NO_PYTHON_STATUS``."""

NO_PYTHON_STATUS = 97

_SHELL = (
    'code=$1; shift; for python do shift; path=$(command -v "$python") && '
    'exec "$path" -I -S -B -c "$code" "$0" "$code" "$@"; done; '
    "echo '{missing} (looked for {candidates})' >&2; exit {status}"
)
_CHECK = (
    "import os, sys; "
    'sys.version_info < (3, 7) and os.execv("/bin/sh", ["sh", "-c", sys.argv[1]] + sys.argv[1:]); '
    "del sys.argv[1:]; "
)


def launcher(code: str, candidates: Sequence[str] = CANDIDATES) -> list[str]:
    """Return the argument list that runs ``code`` with the first recent enough Python of ``candidates``.

    Args:
        code: Python source on one line, so that the agent is one line of a process list; runs isolated
            (``-I -S -B``), with stdin and stdout untouched.
        candidates: paths and names to try, in order.

    The command ends with ``NO_PYTHON_STATUS`` and a line on stderr when none is found; it needs ``/bin/sh``.
    """
    shell = _SHELL.format(missing=NO_PYTHON, candidates=", ".join(candidates), status=NO_PYTHON_STATUS)
    # ``$0`` is the shell's own text: a Python that is too old runs it with the remaining candidates.
    return ["/bin/sh", "-c", shell, shell, _CHECK + code, *candidates]

"""Normalisation of repository names for comparison across datasets."""

from __future__ import annotations

import re

VERIFIED_REPOSITORIES = (
    "astropy/astropy", "django/django", "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask",
    "psf/requests", "pydata/xarray", "pylint-dev/pylint", "pytest-dev/pytest",
    "scikit-learn/scikit-learn", "sphinx-doc/sphinx",
    "sympy/sympy",
)  # fmt: skip
"""The 12 repositories of SWE-bench Verified."""
_ALIASES = {
    "pycqa/pylint": "pylint-dev/pylint",
    "kennethreitz/requests": "psf/requests",
    "mitsuhiko/flask": "pallets/flask",
}


def canonical(repo: str) -> str:
    """Return ``owner/name`` in lower case; cut mirror suffixes (``swesmith/owner__name.sha8``) and URLs."""
    name = repo.strip().lower().removesuffix(".git")
    name = re.sub(r"^(?:https?://|git@)[^/:]+[/:]", "", name)
    mirror = re.fullmatch(r"(?:[^/]+/)?([^/]+?)__([^/]+?)(?:\.[0-9a-f]{7,40})?", name)
    if mirror:
        name = f"{mirror[1]}/{mirror[2]}"
    return _ALIASES.get(name, name)


def same_repository(left: str, right: str) -> bool:
    """Return whether two names denote the same repository; a name without an owner matches every owner."""
    a, b = canonical(left), canonical(right)
    if "/" in a and "/" in b:
        return a == b
    return a.rpartition("/")[2] == b.rpartition("/")[2]

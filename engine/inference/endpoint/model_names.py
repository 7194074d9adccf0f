"""Comparison of the answering model's name with the requested one."""

from __future__ import annotations

import re

_DATE = re.compile(r"[-@:](\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{3}|\d{2}-\d{2,4})$")
_LATEST = re.compile(r"[-:]latest$")


def is_same_model(asked: str, answered: str) -> bool:
    """Return whether a response's model is the requested one.

    Providers before the last slash and a final ``latest`` are ignored, and so is a date or version that only
    one name ends in: ``gpt-4o`` matches ``gpt-4o-2024-08-06``, not ``gpt-4o-mini``. An empty ``answered``
    matches any model.
    """
    if not answered:
        return True
    asked, answered = (_LATEST.sub("", name.casefold().rpartition("/")[2]) for name in (asked, answered))
    return answered == asked or _DATE.sub("", answered) == asked or answered == _DATE.sub("", asked)

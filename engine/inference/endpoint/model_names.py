"""Comparison of the model that answered with the model that was asked for."""

from __future__ import annotations

import re

_DATE = re.compile(r"[-@:](\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{3}|\d{2}-\d{2,4})$")
_LATEST = re.compile(r"[-:]latest$")


def is_same_model(asked: str, answered: str) -> bool:
    """Return whether a response's model is the one asked for.

    Providers before the last slash do not count. Where one name has no date or version behind it, or ends
    in ``latest``, the other may have one: ``gpt-4o`` is answered by ``gpt-4o-2024-08-06``, not by
    ``gpt-4o-mini``. A response that names no model contradicts nothing.
    """
    if not answered:
        return True
    asked, answered = (_LATEST.sub("", name.casefold().rpartition("/")[2]) for name in (asked, answered))
    return answered == asked or _DATE.sub("", answered) == asked or answered == _DATE.sub("", asked)

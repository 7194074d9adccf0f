"""Strips of a trajectory's sampled tokens, one a step, coloured as on the page of tokens."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, islice
from typing import Any

from webapp.rollouts.contexts.advantage import algorithm_of
from webapp.rollouts.contexts.token_trace import MEASURES, token_levels
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.traces import traced_tokens

MOST_CELLS = 160
"""Cells of a strip; of the tokens of one cell, the strongest colour is shown."""
_MOST_STEPS = 2_000
_CODES = {"none": "."} | {f"up{level}": str(level) for level in range(1, 5)}
_CODES |= {f"down{level}": "abcd"[level - 1] for level in range(1, 5)}
_STRENGTHS = {css: int(css[-1]) if css[-1].isdigit() else -1 for css in _CODES}


def build_strips(trajectory: Trajectory, by: str) -> dict[str, Any] | None:
    """Return the strips as the page's script reads them; None where no tokens were recorded.

    Args:
        trajectory: the trajectory.
        by: key of ``MEASURES``; anything else selects the push.

    Returns:
        ``by``, its ``label``, and ``steps``: the ``step``, the number of its ``tokens``, how many of them are
        ``above`` and ``below`` the neutral value or ``without`` a gradient, and ``cells``, a character each:
        ``1`` … ``4`` above, ``a`` … ``d`` below, ``0`` neutral, ``.`` without a gradient.
    """
    traced = traced_tokens(trajectory, algorithm_of(trajectory.run))
    if traced is None:
        return None
    by = by if by in MEASURES else "gradient"
    css = token_levels(traced, by).css
    by_step = groupby(range(len(traced)), key=traced.step_of)
    return {
        "by": by,
        "label": MEASURES[by].label,
        "steps": [
            _strip(step, [css(number) for number in numbers])
            for step, numbers in islice(by_step, _MOST_STEPS)
        ],
    }


def _strip(step: int, colours: list[str]) -> dict[str, Any]:
    kinds = Counter(colour.rstrip("1234") for colour in colours)
    size = -(-len(colours) // MOST_CELLS)
    cells = (colours[start : start + size] for start in range(0, len(colours), size))
    strongest = (max(cell, key=lambda colour: _STRENGTHS.get(colour, 0)) for cell in cells)
    return {
        "step": step, "tokens": len(colours), "above": kinds["up"], "below": kinds["down"],
        "without": kinds["none"], "cells": "".join(_CODES.get(colour, "0") for colour in strongest),
    }  # fmt: skip

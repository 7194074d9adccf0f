"""Cells that occur hundreds or thousands of times on a page: rendered in one call, or cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django import template
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from webapp.core.contexts.frame import group_url
from webapp.rollouts.models.trajectories import Group

register = template.Library()


@register.simple_tag
def map_cells(cells: Sequence[Any], width: float) -> SafeString:
    """Return cells of the solve map as links: a page has thousands, too many for a template's loop."""
    return format_html_join(
        "",
        '<a href="{}" tabindex="-1"><rect class="{}" x="{}%" width="{}%" height="16" rx="2">'
        "<title>{}</title></rect></a>",
        ((cell.url, cell.level, cell.x, width, cell.title) for cell in cells),
    )


@register.simple_tag
def task_figures(history: Any, group_id: int) -> tuple[Any, str]:
    """Return a group's point of a task's history, and the URL of its comparison; empty without one."""
    return history.points.get(group_id), history.compare_urls.get(group_id, "")


@dataclass(frozen=True, slots=True)
class SiblingCell:
    """Cell of a rollout in a row of its group."""

    index: int
    state: str
    verdict: str
    loss_mask: bool | None
    mask_reason: str
    trained: bool | None
    reward: float | None
    termination: str


@register.simple_tag
def sibling_cells(group: Group) -> SafeString:
    """Return a cell for each rollout of a group; unchanged groups are cached."""
    siblings = tuple(
        SiblingCell(*(getattr(trajectory, name) for name in SiblingCell.__slots__))
        for trajectory in group.trajectories.all()
    )
    return _cells(group_url(group.run_id, group.phase, group.iteration, group.task_key), siblings)


@lru_cache(maxsize=2_048)
def _cells(url: str, siblings: tuple[SiblingCell, ...]) -> SafeString:
    return render_to_string("core/_cells.html", {"url": url, "siblings": siblings})

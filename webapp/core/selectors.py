"""Pagination of long lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row")
ModelRow = TypeVar("ModelRow", bound=Model)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Rows ``first … last`` (counted from 1) of ``total``."""

    rows: Sequence[Row]
    total: int
    number: int
    size: int

    @property
    def first(self) -> int:
        """Return the position of the first row on the page; 0 if the page is empty."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """Return the position of the last row on the page."""
        return (self.number - 1) * self.size + len(self.rows)

    @property
    def previous_number(self) -> int | None:
        """Return the number of the previous page; None on the first one."""
        return self.number - 1 if self.number > 1 else None

    @property
    def next_number(self) -> int | None:
        """Return the number of the next page; None on the last one."""
        return self.number + 1 if self.last < self.total else None


def paginate(rows: QuerySet[ModelRow], *, number: int, size: int) -> Page[ModelRow]:
    """Return page ``number`` of a query (from 1; numbers past the end select the last), in two queries."""
    total = rows.count()
    number = max(1, min(number, -(-total // size) or 1))
    return Page(rows=list(rows[(number - 1) * size : number * size]), total=total, number=number, size=size)


def page_of(rows: Sequence[Row], *, number: int, size: int) -> Page[Row]:
    """Return page ``number`` of rows that are all known (from 1; numbers past the end select the last)."""
    number = max(1, min(number, -(-len(rows) // size) or 1))
    return Page(
        rows=list(rows[(number - 1) * size : number * size]), total=len(rows), number=number, size=size
    )


def map_page(page: Page[ModelRow], convert: Callable[[ModelRow], Row]) -> Page[Row]:
    """Return the same page with every row converted."""
    return Page(
        rows=[convert(row) for row in page.rows], total=page.total, number=page.number, size=page.size
    )

"""Renders a page from its dataclass, nothing more: the template sees the fields and the person."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

from webapp.views.access import Person

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def variables(context: DataclassInstance) -> dict[str, Any]:
    """A page's dataclass as template variables (one level deep)."""
    return {field.name: getattr(context, field.name) for field in fields(context)}


def page(
    request: HttpRequest, person: Person, template: str, context: DataclassInstance, *, status: int = 200
) -> HttpResponse:
    """The rendered page."""
    return render(request, template, {**variables(context), "person": person}, status=status)


def params_of(request: HttpRequest) -> dict[str, str]:
    """The query string's parameters, the last value of each; NUL, which no column holds, removed."""
    return _cleaned(request.GET)


def posted_of(request: HttpRequest) -> dict[str, str]:
    """What a form sent, like ``params_of``."""
    return _cleaned(request.POST)


def _cleaned(given: QueryDict) -> dict[str, str]:
    return {key: value.replace("\x00", "") for key, value in given.items() if isinstance(value, str)}

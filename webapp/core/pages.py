"""Rendering of a page from its dataclass; the template has access to its fields and the person."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

from webapp.core.permissions import Person

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def variables(context: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a page's dataclass as template variables (one level deep)."""
    return {field.name: getattr(context, field.name) for field in fields(context)}


def page(
    request: HttpRequest, person: Person, template: str, context: DataclassInstance, *, status: int = 200
) -> HttpResponse:
    """Render a page with the fields of ``context`` and the person as template variables."""
    return render(request, template, {**variables(context), "person": person}, status=status)


def params_of(request: HttpRequest) -> dict[str, str]:
    """Return the last value of each query parameter, without NUL characters."""
    return _cleaned(request.GET)


def posted_of(request: HttpRequest) -> dict[str, str]:
    """Return the last value of each form field, without NUL characters."""
    return _cleaned(request.POST)


def _cleaned(parameters: QueryDict) -> dict[str, str]:
    return {key: value.replace("\x00", "") for key, value in parameters.items() if isinstance(value, str)}

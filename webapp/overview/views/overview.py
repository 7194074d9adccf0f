"""Overview page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from webapp.accounts.gate import viewer
from webapp.core.pages import page
from webapp.core.permissions import Person
from webapp.overview.contexts.overview import build_overview


@viewer
def overview(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the overview: alerts, live runs, finished runs."""
    context = build_overview(role=person.role, user_id=person.user.pk)
    return page(request, person, "overview/overview.html", context)

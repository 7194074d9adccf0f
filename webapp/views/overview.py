"""Overview page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from webapp.contexts.run.overview import build_overview
from webapp.views.access import Person, viewer
from webapp.views.pages import page


@viewer
def overview(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the overview: alerts, live runs, finished runs."""
    context = build_overview(role=person.role, user_id=person.user.pk)
    return page(request, person, "overview/overview.html", context)

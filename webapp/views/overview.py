"""Overview page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from webapp.contexts.run.overview import build_overview
from webapp.views.access import Person, viewer
from webapp.views.pages import page


@viewer
def overview(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the overview: alerts, live runs, finished runs."""
    return page(request, person, "overview/overview.html", build_overview(can_operate=person.can_operate))

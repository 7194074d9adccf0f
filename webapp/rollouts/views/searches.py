"""The search over trajectories, and forms of saved searches."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.errors import ConfigError
from webapp.accounts.gate import operator, viewer
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person, check_author
from webapp.rollouts.contexts.search import build_search
from webapp.rollouts.selectors.filters import parse_filters
from webapp.rollouts.selectors.searches import saved_search
from webapp.rollouts.services import searches as writes


@viewer
def trajectory_search(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the search over trajectories, with filters."""
    return page(
        request, person, "rollouts/trajectories/search.html", build_search(person, params_of(request))
    )


@operator
@require_POST
def search_save(request: HttpRequest, person: Person) -> HttpResponseRedirect:
    """Save the search of the field ``query`` under a name, and show it again."""
    posted = posted_of(request)
    query = QueryDict(posted.get("query", "")[:10_000], mutable=False)
    filters, _ = parse_filters(query.dict())
    try:
        saved = writes.save(name=posted.get("name", ""), filters=filters, actor=person)
    except ConfigError as error:
        messages.error(request, f"The search was not saved: {error}")
    else:
        messages.success(request, f"Search {saved.name} was saved.")
    return HttpResponseRedirect(f"{reverse('trajectory-search')}?{query.urlencode()}")


@operator
@require_POST
def search_remove(request: HttpRequest, person: Person, name: str) -> HttpResponseRedirect:
    """Remove a saved search."""
    saved = saved_search(name)
    if saved is None:
        raise Http404(f"There is no saved search {name}.")
    check_author(saved.author_id, person.role, person.user.pk)
    writes.remove(search=saved, actor=person.user)
    messages.success(request, f"Search {name} was removed.")
    return HttpResponseRedirect(reverse("trajectory-search"))

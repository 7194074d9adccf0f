"""Endpoints page: list, form, test, removal."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from engine.errors import ConfigError
from webapp.accounts.gate import administrator, operator
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person
from webapp.endpoints import selectors as reads
from webapp.endpoints.contexts import Tested, build_endpoints
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services import endpoints
from webapp.endpoints.services.probe import probe

_TEMPLATE = "endpoints/list.html"


@operator
def endpoint_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the endpoints."""
    edit = params_of(request).get("edit", "") if person.can_manage else ""
    return page(request, person, _TEMPLATE, build_endpoints(edit=edit))


@administrator
@require_POST
@sensitive_post_parameters("key")
def endpoint_save(request: HttpRequest, person: Person) -> HttpResponse:
    """Create or change an endpoint; render the form again if a value is not valid."""
    posted = posted_of(request)
    editing, key = posted.get("editing", ""), posted.get("key", "")
    try:
        exists = reads.get_endpoint(editing or posted.get("name", "")) is not None
        if editing and not exists:
            raise ConfigError(f"endpoint '{editing}' was removed meanwhile: add it again")
        if exists and not editing:
            raise ConfigError(f"there is an endpoint '{posted['name']}' already: change that one")
        endpoint = endpoints.save(
            name=editing or posted.get("name", ""),
            address=posted.get("address", ""),
            note=posted.get("note", ""),
            models=posted.get("models", ""),
            attachable=bool(posted.get("attachable")),
            key=key if key or posted.get("no_key") else None,
            actor=person.user,
        )
    except ConfigError as error:
        context = build_endpoints(edit=editing, posted=posted, refused=error.problems)
        return page(request, person, _TEMPLATE, context, status=422)
    messages.success(request, f"Endpoint {endpoint.name} was saved.")
    return redirect("endpoint-list")


@administrator
@require_POST
def endpoint_test(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    """Request the endpoint's models and render the result."""
    result = probe(endpoint=_endpoint_or_404(name), actor=person.user)
    return page(request, person, _TEMPLATE, build_endpoints(tested=Tested(name, result)))


@administrator
@require_POST
def endpoint_remove(request: HttpRequest, person: Person, name: str) -> HttpResponseRedirect:
    """Remove an endpoint with its key."""
    endpoints.remove(endpoint=_endpoint_or_404(name), actor=person.user)
    messages.success(request, f"Endpoint {name} and its key were removed.")
    return redirect("endpoint-list")


def _endpoint_or_404(name: str) -> Endpoint:
    endpoint = reads.get_endpoint(name)
    if endpoint is None:
        raise Http404(f"There is no endpoint {name}.")
    return endpoint

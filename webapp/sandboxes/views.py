"""Sandbox pool page, and reaping on request."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from webapp.accounts.gate import operator, viewer
from webapp.core.pages import page, params_of
from webapp.core.permissions import Person
from webapp.sandboxes import services as sandboxes
from webapp.sandboxes.contexts import build_pool


@viewer
def sandbox_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the pools of all live runs, or of one run."""
    context = build_pool(params_of(request), can_operate=person.can_operate)
    return page(request, person, "sandboxes/list.html", context)


@operator
@require_POST
def sandbox_reap(request: HttpRequest, person: Person) -> HttpResponseRedirect:
    """Ask a worker to remove orphaned sandboxes now."""
    sandboxes.request_reaping(actor=person.user)
    messages.success(request, "A worker was asked to reap; what it finds shows below.")
    run = request.POST.get("run", "")
    return redirect(f"{reverse('sandbox-list')}?run={run}" if run.isdecimal() else "sandbox-list")

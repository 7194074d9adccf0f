"""Page about files that curations keep, and removal of those that nothing uses."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.template.defaultfilters import filesizeformat
from django.views.decorators.http import require_POST

from webapp.accounts.gate import operator
from webapp.core.pages import page
from webapp.core.permissions import Person
from webapp.datasets.contexts.disk import build_disk
from webapp.datasets.selectors.disk import kept_files
from webapp.datasets.services.disk import remove_unused
from webapp.supervisor.engine_process import EngineFailedError


@operator
def disk(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the kept files."""
    try:
        context = build_disk(kept_files())
    except EngineFailedError as error:
        context = build_disk([], problem=str(error))
    return page(request, person, "datasets/disk.html", context)


@operator
@require_POST
def disk_remove(request: HttpRequest, person: Person) -> HttpResponseRedirect:
    """Remove the unused files and redirect to the page."""
    try:
        removed = remove_unused(actor=person.user)
    except EngineFailedError as error:
        messages.error(request, f"The removal failed: {error}")
    else:
        size = filesizeformat(sum(file.bytes for file in removed))
        messages.success(request, f"Removed {len(removed)} unused folders, {size}.")
    return redirect("disk")

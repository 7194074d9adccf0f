"""The page of scanners and its forms."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from engine.errors import ConfigError
from webapp.accounts.gate import administrator, operator, viewer
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person, check_author
from webapp.rollouts.contexts.scanners import build_scanners
from webapp.rollouts.models.scans import EnteredScanner
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.services import judgements
from webapp.rollouts.services import scanners as writes
from webapp.runs.views.runs import run_or_404

_FIELDS = ("pattern", "place", "rubric", "endpoint", "model", "words")
_TEMPLATE = "rollouts/scanners/list.html"


@viewer
def scanner_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render all scanners with their shares in the newest runs."""
    return page(request, person, _TEMPLATE, build_scanners(person, edit=params_of(request).get("edit", "")))


@operator
@require_POST
def scanner_save(request: HttpRequest, person: Person) -> HttpResponse:
    """Enter or change a scanner; render the form again if a value is not valid."""
    posted = posted_of(request)
    name = posted.get("name", "").strip()
    if (known := reads.entered_scanner(name)) is not None:
        check_author(known.created_by_id, person.role, person.user.pk)
    try:
        scanner = writes.save(
            name=name,
            **{field: posted.get(field, "") for field in _FIELDS},
            actor=person.user,
        )
    except ConfigError as error:
        context = build_scanners(person, posted=posted, refused=str(error))
        return page(request, person, _TEMPLATE, context, status=422)
    then = "Select a run to judge." if scanner.rubric else "Stored rollouts are being scanned."
    messages.success(request, f"Scanner {scanner.name} was saved. {then}")
    return redirect("scanner-list")


@operator
@require_POST
def scanner_remove(request: HttpRequest, person: Person, name: str) -> HttpResponseRedirect:
    """Remove an entered scanner."""
    scanner = _scanner_or_404(name)
    check_author(scanner.created_by_id, person.role, person.user.pk)
    writes.remove(scanner=scanner, actor=person.user)
    messages.success(request, f"Scanner {name} was removed.")
    return redirect("scanner-list")


@administrator
@require_POST
def scanner_scan(request: HttpRequest, person: Person) -> HttpResponseRedirect:  # noqa: ARG001
    """Scan stored rollouts that a scanner has not read, now instead of within minutes."""
    send_on_commit(TaskName.SCAN)
    messages.success(request, "Workers scan the stored rollouts now.")
    return redirect("scanner-list")


@operator
@require_POST
def scanner_judge(request: HttpRequest, person: Person) -> HttpResponseRedirect:
    """Ask the model of a rubric about the newest rollouts of a run."""
    posted = posted_of(request)
    scanner = _scanner_or_404(posted.get("name", ""))
    run = run_or_404(whole(posted.get("run", ""), most=MOST_ID) or 0)
    try:
        judgements.start(scanner=scanner, run=run, most=whole(posted.get("most", "")) or 0, actor=person.user)
    except ConfigError as error:
        messages.error(request, f"Nothing was asked: {error}")
    else:
        messages.success(request, f"{scanner.model} is asked about rollouts of run {run.pk}.")
    return redirect("scanner-list")


@operator
@require_POST
def judgement_stop(request: HttpRequest, person: Person, judgement_id: int) -> HttpResponseRedirect:
    """Stop a scan with a rubric."""
    judgement = reads.get_judgement(judgement_id)
    if judgement is None:
        raise Http404(f"There is no scan {judgement_id}.")
    check_author(judgement.started_by_id, person.role, person.user.pk)
    judgements.stop(judgement=judgement, actor=person.user)
    messages.success(request, f"Scan {judgement_id} ends after the questions in flight.")
    return redirect("scanner-list")


def _scanner_or_404(name: str) -> EnteredScanner:
    scanner = reads.entered_scanner(name)
    if scanner is None:
        raise Http404(f"There is no entered scanner {name}.")
    return scanner

"""Run list, run page and run controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    QueryDict,
    StreamingHttpResponse,
)
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.errors import ConfigError
from webapp.accounts.gate import answer_reader, operator, viewer
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import page, params_of, posted_of
from webapp.core.permissions import Person, check_change
from webapp.core.services import audit
from webapp.rollouts.services import annotations as annotation_writes
from webapp.runs.contexts.downloads import checkpoint_download, file_download
from webapp.runs.contexts.edit_form import build_edit_conflict
from webapp.runs.contexts.run_table import build_run_list, build_selected_runs, parse_columns
from webapp.runs.contexts.runs import build_run_detail
from webapp.runs.models.runs import Run
from webapp.runs.selectors import alerts as alert_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.checkpoints import find_checkpoint
from webapp.runs.selectors.files import open_file
from webapp.runs.selectors.run_views import default_view
from webapp.runs.services import batches, deletion
from webapp.runs.services import edits as run_edits
from webapp.runs.services import run_views as view_writes
from webapp.runs.services import runs as run_writes
from webapp.runs.services.edits import Edit, EditConflictError
from webapp.runs.services.states import IllegalTransitionError

MOST_REASONS = 10
"""Most refusals that the answer to a change of several runs lists."""
ACTIONS: dict[str, Callable[..., None]] = {
    "start": run_writes.start,
    "stop": run_writes.stop,
    "pause": run_writes.pause,
    "resume": run_writes.resume,
    "archive": run_edits.archive,
    "restore": run_edits.restore,
    "acknowledge": run_edits.acknowledge,
    "delete": deletion.request,
}


def run_or_404(run_id: int) -> Run:
    """Return the run. Raises Http404."""
    run = run_reads.get_run(run_id)
    if run is None:
        raise Http404(f"There is no run {run_id}.")
    return run


def run_to_change(run_id: int, person: Person) -> Run:
    """Return the run. Raises Http404, or PermissionDenied if the person may not change it."""
    run = run_or_404(run_id)
    check_change(run, person.role, person.user.pk)
    return run


@viewer
def run_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the runs table as the query string says; without one, the person's default view.

    ``show``, repeated, is what the form of columns sends; it becomes ``columns``.
    """
    params = params_of(request)
    if not request.GET and (view := default_view(person.user.pk)) is not None and view.query:
        return redirect(f"{reverse('run-list')}?{view.query}")
    if "show" in params:
        shown = parse_columns(",".join(request.GET.getlist("show")))
        kept = {key: value for key, value in params.items() if value and key not in ("show", "columns")}
        keys = ",".join(column.key for column in shown)
        return redirect(f"{reverse('run-list')}?{urlencode({**kept, 'columns': keys}, safe=',:/')}")
    context = build_run_list(params, user_id=person.user.pk, can_operate=person.can_operate)
    return page(request, person, "runs/list.html", context)


@viewer
@require_POST
def run_view_save(request: HttpRequest, person: Person) -> HttpResponse:
    """Save the table's query string as a view of the person."""
    form = posted_of(request)
    query, is_default = form.get("query", ""), form.get("is_default") == "1"
    try:
        view = view_writes.save_view(
            user=person.user, name=form.get("name", ""), query=query, is_default=is_default
        )
    except ConfigError as error:
        messages.error(request, f"The view was not saved: {error}")
    else:
        query = view.query
        messages.success(request, f"The view {view.name} was saved.")
    return _to_list(query)


@viewer
@require_POST
def run_view_remove(request: HttpRequest, person: Person) -> HttpResponse:
    """Remove a view of the person."""
    form = posted_of(request)
    try:
        view_writes.remove_view(user=person.user, name=form.get("name", ""))
    except ConfigError as error:
        messages.error(request, str(error))
    return _to_list(form.get("query", ""))


def _to_list(query: str) -> HttpResponseRedirect:
    """Redirect to the runs table with a query string that a person sent."""
    # Encoded anew: as sent, it could hold characters that a header must not.
    filters = QueryDict(query.removeprefix("?")[:2000]).urlencode(safe=",:/") or "view=all"
    return redirect(f"{reverse('run-list')}?{filters}")


@operator
def run_selected(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the selected runs (``run``, repeated), or stop, archive, restore or tag them."""
    chosen = request.POST if request.method == "POST" else request.GET
    numbers = {number for text in chosen.getlist("run") if (number := whole(text, most=MOST_ID))}
    runs = list(run_reads.runs_by_number(numbers).values())
    if request.method != "POST":
        return page(
            request, person, "runs/selected.html", build_selected_runs(runs, back=chosen.get("back", ""))
        )
    action, tag = (request.POST.get(name, "") for name in ("action", "tag"))
    changed, refused = _change_selected(runs, action, tag, person)
    if changed:
        messages.success(request, f"{changed} run{'s' * (changed != 1)} changed.")
    for reason in refused[:MOST_REASONS]:
        messages.error(request, reason)
    if (others := len(refused) - MOST_REASONS) > 0:
        messages.error(request, f"{others} more run{'s were' if others != 1 else ' was'} not changed.")
    if not changed and not refused:
        messages.info(request, "Nothing was changed: the selected runs are so already.")
    return _to_list(request.POST.get("back", ""))


def _change_selected(runs: Sequence[Run], action: str, tag: str, person: Person) -> tuple[int, list[str]]:
    """Apply an action to each run that allows it; return the number of changed runs and all refusals."""
    changed = 0
    refused = []
    for run in runs:
        before = (run.state, run.desired, run.archived_at, run.tags)
        try:
            check_change(run, person.role, person.user.pk)
            batches.change(run=run, action=action, tag=tag, actor=person.user)
        except (PermissionDenied, ConfigError, IllegalTransitionError) as error:
            refused.append(f"run {run.pk} was not changed: {error}")
        changed += before != (run.state, run.desired, run.archived_at, run.tags)
    return changed, refused


@viewer
def run_detail(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:
    """Render a run; a tab switch by htmx returns the tabs only."""
    run = run_or_404(run_id)
    context = build_run_detail(run, params_of(request), role=person.role, user_id=person.user.pk)
    partial = request.headers.get("HX-Target") == "run-tabs"
    return page(request, person, "runs/_tabs.html" if partial else "runs/detail.html", context)


@operator
@require_POST
def run_action(request: HttpRequest, person: Person, run_id: int, action: str) -> HttpResponseRedirect:
    """Start, stop, pause, resume, archive, restore, acknowledge or delete a run."""
    run = run_to_change(run_id, person)
    user: User = person.user
    try:
        ACTIONS[action](run=run, actor=user)
    except (ConfigError, IllegalTransitionError) as error:
        messages.error(request, f"Nothing was changed: {error}")
    else:
        if action == "delete":
            messages.success(request, f"Run {run_id} is being deleted.")
            return redirect("run-list")
    return _back(request, run_id)


@operator
@require_POST
def run_edit(request: HttpRequest, person: Person, run_id: int) -> HttpResponse:
    """Rename, tag, annotate or file a run; 409 with both versions if it was edited meanwhile."""
    form = posted_of(request)
    tags = form.get("tags")
    new = form.get("new_experiment", "").strip()
    changes = Edit(
        name=form.get("name"),
        tags=None if tags is None else tags.split(","),
        notes=form.get("notes"),
        experiment=new or form.get("experiment"),
        baseline=form.get("baseline"),
        version=form.get("version"),
    )
    try:
        run_edits.edit(
            run=run_to_change(run_id, person), changes=changes, actor=person.user, role=person.role
        )
    except ConfigError as error:
        messages.error(request, f"Nothing was changed: {error}")
    except EditConflictError as conflict:
        context = build_edit_conflict(conflict, form)
        return page(request, person, "runs/edit_conflict.html", context, status=409)
    return redirect("run-detail", run_id)


@operator
def run_checkpoint(
    request: HttpRequest,  # noqa: ARG001 (the gate's signature)
    person: Person,
    run_id: int,
    iteration: int,
) -> StreamingHttpResponse:
    """Return a checkpoint as a ZIP archive."""
    run = run_or_404(run_id)
    checkpoint = find_checkpoint(run, iteration)
    if checkpoint is None:
        raise Http404(f"Run {run_id} has no checkpoint {iteration}.")
    audit.record(
        actor=person.user, action="checkpoint.export", run_id=run_id, target=f"checkpoint {iteration}"
    )
    return checkpoint_download(run, checkpoint)


@answer_reader
def run_file(
    request: HttpRequest,  # noqa: ARG001 (the gate's signature)
    person: Person,
    run_id: int,
    name: str,
) -> StreamingHttpResponse:
    """Return a file of a run as a download."""
    opened = open_file(run_or_404(run_id).pk, name)
    if opened is None:
        raise Http404(f"Run {run_id} has no such file.")
    audit.record(actor=person.user, action="file.export", run_id=run_id, target=f"file {name}"[:200])
    return file_download(*opened)


def _back(request: HttpRequest, run_id: int) -> HttpResponseRedirect:
    if request.POST.get("next") == "overview":
        return redirect("overview")
    return redirect("run-detail", run_id)


@operator
@require_POST
def alert_acknowledge(request: HttpRequest, person: Person, alert_id: int) -> HttpResponseRedirect:
    """Acknowledge an alert."""
    alert = alert_reads.get_alert(alert_id)
    if alert is None:
        raise Http404("There is no such alert.")
    check_change(alert.run, person.role, person.user.pk)
    annotation_writes.acknowledge(alert=alert, actor=person.user)
    return _back(request, alert.run_id)

"""Admin pages of runs and alerts: records are read-only, actions change runs through the services."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from engine.errors import ConfigError
from webapp.core.admin_site import RecordAdmin, site
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.runs.models.alerts import Alert
from webapp.runs.models.runs import Run
from webapp.runs.services import batches, states
from webapp.runs.services.edits import ARCHIVABLE
from webapp.runs.services.states import IllegalTransitionError

MOST_RUNS = 200
"""Most runs that one action changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAction:
    """A change of several runs."""

    name: str
    action: str
    """One of ``batches.CHANGES``."""
    of_states: Collection[str]
    """States of the runs that can be changed."""
    question: str
    button: str
    asks_tag: bool = False


STOP = BatchAction(
    name="stop_runs",
    action="stop",
    of_states=states.STOPPABLE,
    question="Stop these runs?",
    button="Stop",
)
ARCHIVE = BatchAction(
    name="archive_runs",
    action="archive",
    of_states=ARCHIVABLE,
    question="Archive these runs? Lists and results of experiments leave them out.",
    button="Archive",
)
TAG = BatchAction(
    name="tag_runs",
    action="tag",
    of_states=list(states.TRANSITIONS),
    question="Add a tag to these runs?",
    button="Add the tag",
    asks_tag=True,
)


def change_runs(
    request: HttpRequest, action: BatchAction, runs: QuerySet[Run], *, back: str, key: str = "pk"
) -> HttpResponse | None:
    """Ask for confirmation, then change the runs that are not archived; None returns to the list.

    The confirmation posts the numbers of the runs that it listed, and no others are changed.

    Args:
        request: the request of the admin action, or of its confirmation.
        action: the change.
        runs: the selected runs.
        back: URL of the list.
        key: field of a run with the primary key of its row in the list.
    """
    if confirmed := "confirmed" in request.POST:
        listed = {number for text in request.POST.getlist("run") if (number := whole(text, most=MOST_ID))}
        runs = runs.filter(pk__in=listed)
    allowed = runs.filter(archived_at=None, state__in=action.of_states)
    batch = list(allowed.select_related("created_by", "experiment")[: MOST_RUNS + 1])
    if len(batch) > MOST_RUNS:
        messages.error(request, f"Nothing was changed: select at most {MOST_RUNS} runs at once.")
        return None
    if not batch:
        messages.error(request, "Nothing was changed: no selected run allows it; archived ones do not.")
        return None
    if not confirmed:
        context: dict[str, Any] = {
            **site.each_context(request),
            "title": action.question,
            "question": f"{len(batch)} run{'s' if len(batch) != 1 else ''}:",
            "button": action.button,
            "action": action.name,
            "asks_tag": action.asks_tag,
            "runs": batch,
            "left_out": runs.count() - len(batch),
            "selected": sorted({getattr(run, key) for run in batch}),
            "back": back,
        }
        return TemplateResponse(request, "admin/confirm_runs.html", context)
    actor = request.user if isinstance(request.user, User) else None
    try:
        batches.change_all(batch=batch, action=action.action, tag=request.POST.get("tag", ""), actor=actor)
    except (ConfigError, IllegalTransitionError) as error:
        messages.error(request, f"Nothing was changed: {error}")
    else:
        messages.success(request, f"{len(batch)} run{'s' if len(batch) != 1 else ''} changed.")
    return None


def pretty_json(value: Any) -> SafeString:
    """Return JSON with indentation for a read-only field."""
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))


@admin.register(Run, site=site)
class RunAdmin(RecordAdmin[Run]):
    """Admin page of runs: read-only, with actions."""

    list_display = (
        "id", "name", "page", "kind", "state", "experiment", "arm", "created_by",
        "created_at",
    )  # fmt: skip
    list_filter = (
        "state", "kind", ("archived_at", admin.EmptyFieldListFilter), "created_at", "created_by",
        "experiment", "dataset", "recipe",
    )  # fmt: skip
    search_fields = ("name", "recipe", "notes", "arm")
    list_select_related = ("dataset", "experiment", "created_by")
    fields = (
        "page", "name", "kind", "state", "reason", "recipe", "experiment", "arm", "dataset", "parent",
        "created_by", "created_at", "queued_at", "running_at", "finished_at", "tags", "notes", "archived_at",
        "archived_by", "configuration", "results",
    )  # fmt: skip
    readonly_fields = ("page", "configuration", "results")
    actions = ("stop_runs", "archive_runs", "tag_runs")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return the runs without their large columns, which the page of one run loads."""
        return super().get_queryset(request).defer("config", "funnel")

    @admin.display(description="page")
    def page(self, run: Run) -> SafeString:
        """Return a link to the run's page."""
        return format_html('<a href="{}">open</a>', reverse("run-detail", args=[run.pk]))

    @admin.display(description="configuration")
    def configuration(self, run: Run) -> SafeString:
        """Return the resolved configuration."""
        return pretty_json(run.config)

    @admin.display(description="summary")
    def results(self, run: Run) -> SafeString:
        """Return the summary that the engine reported at the end."""
        return pretty_json(run.summary)

    @admin.action(description="Stop selected runs", permissions=["view"])
    def stop_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Stop runs after a confirmation."""
        return change_runs(request, STOP, queryset, back=reverse("admin:webapp_run_changelist"))

    @admin.action(description="Archive selected runs", permissions=["view"])
    def archive_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Archive runs after a confirmation."""
        return change_runs(request, ARCHIVE, queryset, back=reverse("admin:webapp_run_changelist"))

    @admin.action(description="Tag selected runs", permissions=["view"])
    def tag_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Add a tag to runs after a confirmation."""
        return change_runs(request, TAG, queryset, back=reverse("admin:webapp_run_changelist"))


@admin.register(Alert, site=site)
class AlertAdmin(RecordAdmin[Alert]):
    """Admin page of alerts, read-only."""

    list_display = ("time", "severity", "code", "run", "message", "acknowledged_by")
    list_filter = ("severity", "code")
    search_fields = ("message", "code")
    list_select_related = ("run", "acknowledged_by")

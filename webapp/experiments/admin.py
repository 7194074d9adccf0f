# ruff: noqa: ARG002  (Django's hooks receive arguments that not every override needs)
"""Admin page of experiments; the services save, delete and audit, and change the runs."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from webapp.core.admin_site import RoleAdmin, site
from webapp.experiments import services as experiments
from webapp.experiments.models import Experiment
from webapp.runs.admin import ARCHIVE, STOP, TAG, BatchAction, change_runs, pretty_json
from webapp.runs.models.runs import Run
from webapp.runs.selectors.runs import ACTIVE_STATES


def _actor(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None


class ExperimentForm(forms.ModelForm):  # type: ignore[type-arg]
    """Form of an experiment with the version of its texts and budget as they were shown."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)

    class Meta:
        """Model and fields of the form."""

        model = Experiment
        fields = ("name", *experiments.TEXTS, "max_rollouts")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["max_rollouts"].help_text = "Budget of its runs in rollouts. Empty: none."
        self.fields["version"].initial = experiments.version_of(self.instance) if self.instance.pk else ""

    def clean(self) -> dict[str, Any]:
        """Refuse to overwrite an edit that was made after the form was shown."""
        cleaned = super().clean() or {}
        if self.instance.pk:
            current = experiments.version_of(Experiment.objects.get(pk=self.instance.pk))
            if cleaned.get("version", "") not in ("", current):
                # Saved again, after a look at the saved texts, it replaces them.
                self.data = {**self.data.dict(), "version": current}  # type: ignore[attr-defined]
                raise forms.ValidationError(
                    "It was edited after this form was shown; yours was not saved. Its page shows the saved "
                    "texts; saving again replaces them."
                )
        return cleaned


@admin.register(Experiment, site=site)
class ExperimentAdmin(RoleAdmin[Experiment]):
    """Admin page of experiments: texts, design, actions on all runs of the selected ones."""

    list_display = ("name", "pages", "num_runs", "num_active", "created_by", "created_at")
    search_fields = ("name", "goal", "hypothesis", "conclusion")
    list_filter = ("created_at", "created_by")
    form = ExperimentForm
    fields = (
        "name", "pages", "goal", "hypothesis", "conclusion", "max_rollouts", "arms", "created_by",
        "created_at", "version",
    )  # fmt: skip
    actions = ("stop_runs", "archive_runs", "tag_runs")

    def get_readonly_fields(self, request: HttpRequest, obj: Experiment | None = None) -> tuple[str, ...]:
        """Return the fields that cannot be changed; the name of a new experiment can."""
        fixed = ("pages", "arms", "created_by", "created_at")
        return fixed if obj is None else (*fixed, "name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Experiment]:
        """Return the experiments with their numbers of runs."""
        active = Count("runs", filter=Q(runs__state__in=ACTIVE_STATES))
        rows = super().get_queryset(request).select_related("created_by")
        return rows.annotate(run_count=Count("runs"), active_count=active)

    @admin.display(description="runs", ordering="run_count")
    def num_runs(self, experiment: Experiment) -> int:
        """Return the number of runs."""
        return int(getattr(experiment, "run_count", 0))

    @admin.display(description="active", ordering="active_count")
    def num_active(self, experiment: Experiment) -> int:
        """Return the number of queued and live runs."""
        return int(getattr(experiment, "active_count", 0))

    @admin.display(description="pages")
    def pages(self, experiment: Experiment) -> SafeString:
        """Return links to the experiment's page, its launch and its runs."""
        if not experiment.pk:
            return SafeString("–")
        return format_html(
            '<a href="{}">open</a> · <a href="{}">launch</a> · '
            '<a href="{}?experiment__id__exact={}">runs</a>',
            reverse("experiment-detail", args=[experiment.pk]),
            reverse("experiment-launch", args=[experiment.pk]),
            reverse("admin:webapp_run_changelist"),
            experiment.pk,
        )

    @admin.display(description="arms and seeds")
    def arms(self, experiment: Experiment) -> SafeString:
        """Return the design of the last launch."""
        return pretty_json(experiment.design)

    def save_model(self, request: HttpRequest, obj: Experiment, form: Any, change: bool) -> None:
        """Create the experiment, or edit its texts, through the service."""
        texts = {name: form.cleaned_data[name] for name in experiments.TEXTS}
        budget = form.cleaned_data["max_rollouts"] or 0
        if change:
            experiments.edit(experiment=obj, texts=texts, max_rollouts=budget, actor=_actor(request))
        else:
            created = experiments.create(name=obj.name, max_rollouts=budget, actor=_actor(request), **texts)
            obj.pk = created.pk

    def delete_model(self, request: HttpRequest, obj: Experiment) -> None:
        """Delete the experiment through the service; its runs are kept."""
        experiments.delete(experiment=obj, actor=_actor(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> None:
        """Delete the experiments through the service, each with an audit entry."""
        for experiment in queryset:
            self.delete_model(request, experiment)

    @admin.action(description="Stop all runs of selected experiments")
    def stop_runs(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> HttpResponse | None:
        """Stop the runs after a confirmation."""
        return self._change(request, STOP, queryset)

    @admin.action(description="Archive all runs of selected experiments")
    def archive_runs(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> HttpResponse | None:
        """Archive the runs after a confirmation."""
        return self._change(request, ARCHIVE, queryset)

    @admin.action(description="Tag all runs of selected experiments")
    def tag_runs(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> HttpResponse | None:
        """Add a tag to the runs after a confirmation."""
        return self._change(request, TAG, queryset)

    def _change(
        self, request: HttpRequest, action: BatchAction, queryset: QuerySet[Experiment]
    ) -> HttpResponse | None:
        runs = Run.objects.filter(experiment__in=queryset.values("pk")).order_by("pk")
        back = reverse("admin:webapp_experiment_changelist")
        return change_runs(request, action, runs, back=back, key="experiment_id")

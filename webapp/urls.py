"""URLs of the web application. Ids in URLs are stable: a link to a step stays valid.

Rollouts have the URL ``/runs/<run>/<phase>/<iteration>/<task>/<index>/``, where the phase is ``train`` or
``eval:<name>``.
"""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path, register_converter

from webapp.accounts import views as account
from webapp.admin import site
from webapp.api.app import api
from webapp.datasets.views import datasets, disk, imports
from webapp.endpoints import views as endpoints
from webapp.evaluations import views as evaluations
from webapp.experiments.views import experiments, run_compare
from webapp.experiments.views import launch as experiment_launch
from webapp.notifications import views as notifications
from webapp.overview.views import metrics, overview
from webapp.rollouts.views import annotations as annotation_forms
from webapp.rollouts.views import scanners, searches, trajectories
from webapp.runs.views import models, runs
from webapp.runs.views import new as run_new
from webapp.sandboxes import views as sandboxes
from webapp.supervisor.views import health


class Segment:
    """Path converter for any text as one segment: slashes, tildes and leading dots become ``~2F`` etc."""

    regex = "[^/\x00]+"

    def to_python(self, value: str) -> str:
        """Return the text of a segment."""
        return value.replace("~2F", "/").replace("~2E", ".").replace("~7E", "~")

    def to_url(self, value: str) -> str:
        """Return the segment of a text."""
        text = str(value).replace("~", "~7E").replace("/", "~2F")
        return f"~2E{text[1:]}" if text.startswith(".") else text


register_converter(Segment, "segment")

handler400 = "webapp.supervisor.views.errors.bad_request"
handler403 = "webapp.supervisor.views.errors.forbidden"
handler404 = "webapp.supervisor.views.errors.not_found"
handler500 = "webapp.supervisor.views.errors.server_error"

_ROLLOUTS = "<segment:phase>/<int:iteration>/"
urlpatterns = [
    path("", overview.overview, name="overview"),
    path("login/", account.SignInView.as_view(), name="login"),
    path("account/", account.account, name="account"),
    path("account/sessions/end/", account.session_end_all, name="session-end-all"),
    path("account/sessions/<int:sign_in_id>/end/", account.session_end, name="session-end"),
    path("account/tokens/", account.tokens, name="tokens"),
    path("account/tokens/<int:token_id>/revoke/", account.token_revoke, name="token-revoke"),
    path("account/password/", account.password, name="password"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("models/", models.model_list, name="model-list"),
    path("models/try/", models.model_try, name="model-try"),
    path("runs/", runs.run_list, name="run-list"),
    path("runs/<int:run_id>/recipe/", run_new.recipe_save, name="recipe-save"),
    path("runs/recipes/<segment:name>/remove/", run_new.recipe_remove, name="recipe-remove"),
    path("runs/views/save/", runs.run_view_save, name="run-view-save"),
    path("runs/views/remove/", runs.run_view_remove, name="run-view-remove"),
    path("runs/new/", run_new.run_new, name="run-new"),
    path("runs/compare/", run_compare.run_compare, name="run-compare"),
    path("runs/compare/tasks/", run_compare.run_tasks, name="run-compare-tasks"),
    path("runs/series/", run_compare.run_series, name="run-series"),
    path("runs/selected/", runs.run_selected, name="run-selected"),
    path("runs/<int:run_id>/", runs.run_detail, name="run-detail"),
    path("runs/<int:run_id>/points/", run_compare.run_points, name="run-points"),
    *[
        path(f"runs/<int:run_id>/{action}/", runs.run_action, {"action": action}, name=f"run-{action}")
        for action in runs.ACTIONS
    ],
    path("runs/<int:run_id>/checkpoints/<int:iteration>.zip", runs.run_checkpoint, name="run-checkpoint"),
    path("runs/<int:run_id>/files/<path:name>", runs.run_file, name="run-file"),
    path("runs/<int:run_id>/edit/", runs.run_edit, name="run-edit"),
    path("runs/<int:run_id>/step-example/", trajectories.step_example, name="step-example"),
    path("runs/<int:run_id>/what-if/", trajectories.run_what_if, name="run-what-if"),
    path(f"runs/<int:run_id>/{_ROLLOUTS}", trajectories.iteration_detail, name="iteration-detail"),
    path(f"runs/<int:run_id>/{_ROLLOUTS}<segment:task_key>/", trajectories.group_detail, name="group-detail"),
    path(
        f"runs/<int:run_id>/{_ROLLOUTS}<segment:task_key>/<int:index>/",
        trajectories.trajectory_detail,
        name="trajectory-detail",
    ),
    path(f"evaluations/<int:run_id>/{_ROLLOUTS}", evaluations.evaluation_report, name="evaluation-report"),
    path(
        f"evaluations/<int:run_id>/{_ROLLOUTS}submission/",
        evaluations.evaluation_submission,
        name="evaluation-submission",
    ),
    path(
        f"evaluations/<int:run_id>/{_ROLLOUTS}submission.zip",
        evaluations.evaluation_submission_zip,
        name="evaluation-submission-zip",
    ),
    path("evaluations/compare/", evaluations.evaluation_compare, name="evaluation-compare"),
    path(
        "evaluations/compare/<segment:task_key>/",
        evaluations.evaluation_compare_task,
        name="evaluation-compare-task",
    ),
    path("alerts/<int:alert_id>/acknowledge/", runs.alert_acknowledge, name="alert-acknowledge"),
    path("trajectories/", searches.trajectory_search, name="trajectory-search"),
    path("trajectories/searches/save/", searches.search_save, name="search-save"),
    path("trajectories/searches/<segment:name>/remove/", searches.search_remove, name="search-remove"),
    path("trajectories/compare/", trajectories.trajectory_compare, name="trajectory-compare"),
    *[
        path(
            f"trajectories/<int:trajectory_id>/steps/<int:index>/{part}/",
            trajectories.step_text,
            {"part": part},
            name=f"step-{part}",
        )
        for part in ("observation", "thought", "action", "response")
    ],
    path("trajectories/<int:trajectory_id>/steps/", trajectories.step_window, name="step-window"),
    path(
        "trajectories/<int:trajectory_id>/tokens/",
        trajectories.trajectory_tokens,
        name="trajectory-tokens",
    ),
    path(
        "trajectories/<int:trajectory_id>/tokens/<int:number>/",
        trajectories.token_arithmetic,
        name="token-arithmetic",
    ),
    path(
        "trajectories/<int:trajectory_id>/tokens/strips/",
        trajectories.token_strips,
        name="token-strips",
    ),
    path("trajectories/<int:trajectory_id>/found/", trajectories.found, name="trajectory-found"),
    path("trajectories/<int:trajectory_id>/patch/", trajectories.patch, name="trajectory-patch"),
    path("trajectories/<int:trajectory_id>/test-log/", trajectories.test_log, name="trajectory-test-log"),
    path(
        "trajectories/<int:trajectory_id>/annotations/",
        annotation_forms.annotation_add,
        name="annotation-add",
    ),
    path(
        "trajectories/<int:trajectory_id>/annotations/<int:annotation_id>/remove/",
        annotation_forms.annotation_remove,
        name="annotation-remove",
    ),
    path("scanners/", scanners.scanner_list, name="scanner-list"),
    path("scanners/save/", scanners.scanner_save, name="scanner-save"),
    path("scanners/scan/", scanners.scanner_scan, name="scanner-scan"),
    path("scanners/judge/", scanners.scanner_judge, name="scanner-judge"),
    path("scanners/judgements/<int:judgement_id>/stop/", scanners.judgement_stop, name="judgement-stop"),
    path("scanners/<segment:name>/remove/", scanners.scanner_remove, name="scanner-remove"),
    path("runs/<int:run_id>/predictions.jsonl", trajectories.predictions, name="run-predictions"),
    path("runs/<int:run_id>/harness-report.json", trajectories.harness_report, name="run-harness-report"),
    path("sandboxes/", sandboxes.sandbox_list, name="sandbox-list"),
    path("sandboxes/reap/", sandboxes.sandbox_reap, name="sandbox-reap"),
    path("healthz", health.healthz, name="healthz"),
    path("healthz/banner", health.outage_banner, name="outage-banner"),
    path("metrics", metrics.metrics, name="metrics"),
    path("notifications/", notifications.notification_list, name="notification-list"),
    path(
        "notifications/<int:notification_id>/test/",
        notifications.notification_test,
        name="notification-test",
    ),
    path(
        "notifications/<int:notification_id>/remove/",
        notifications.notification_remove,
        name="notification-remove",
    ),
    path("endpoints/", endpoints.endpoint_list, name="endpoint-list"),
    path("endpoints/save/", endpoints.endpoint_save, name="endpoint-save"),
    path("endpoints/<segment:name>/test/", endpoints.endpoint_test, name="endpoint-test"),
    path("endpoints/<segment:name>/remove/", endpoints.endpoint_remove, name="endpoint-remove"),
    path("experiments/", experiments.experiment_list, name="experiment-list"),
    path("experiments/new/", experiment_launch.experiment_new, name="experiment-new"),
    path("experiments/<int:experiment_id>/", experiments.experiment_detail, name="experiment-detail"),
    path("experiments/<int:experiment_id>/edit/", experiments.experiment_edit, name="experiment-edit"),
    path(
        "experiments/<int:experiment_id>/launch/",
        experiment_launch.experiment_launch,
        name="experiment-launch",
    ),
    *[
        path(
            f"experiments/<int:experiment_id>/{action}/",
            experiments.experiment_action,
            {"action": action},
            name=f"experiment-{action}",
        )
        for action in experiments.STATES
    ],
    path("disk/", disk.disk, name="disk"),
    path("disk/remove/", disk.disk_remove, name="disk-remove"),
    path("datasets/", datasets.dataset_list, name="dataset-list"),
    path("datasets/<segment:name>/", datasets.dataset_detail, name="dataset-detail"),
    path("imports/", imports.import_new, name="import-list"),
    path("imports/new/", imports.import_new, name="import-new"),
    path("datasets/<segment:name>/left-out/", imports.dataset_left_out, name="dataset-left-out"),
    path("datasets/<segment:name>/health/", datasets.dataset_health, name="dataset-health"),
    path("datasets/<segment:name>/validate/", datasets.dataset_validate, name="dataset-validate"),
    path("datasets/<segment:name>/harden/", datasets.dataset_harden, name="dataset-harden"),
    path("datasets/<segment:name>/tasks/<segment:key>/", datasets.task_detail, name="task-detail"),
    path(
        "datasets/<segment:name>/tasks/<segment:key>/quarantine/",
        datasets.task_quarantine,
        name="task-quarantine",
    ),
    path("api/v1/", api.urls),
    path("admin/", site.urls),
]

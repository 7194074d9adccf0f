"""Pinned baselines: who is compared with which run, and what tables, pages and commands show."""

from __future__ import annotations

import json
import re

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from engine.errors import ConfigError
from tests.builders.commands import run_command
from tests.builders.web.web_builders import hand_over, make_run, make_user, signed_in
from webapp.core.permissions import Role
from webapp.experiments import services as experiments
from webapp.models import AuditEntry, Evaluation, Experiment, Group, Run
from webapp.runs.contexts.baseline import baseline_changes
from webapp.runs.selectors.baselines import pinned_baselines
from webapp.runs.selectors.runs import newest_heldout
from webapp.runs.services.edits import Edit, edit

pytestmark = pytest.mark.django_db


def evaluated(solved: list[int], *, name: str = "heldout") -> Run:
    """Create a run whose held-out evaluation solved so many of four attempts of each task."""
    run, now = make_run(), timezone.now()
    rate = sum(solved) / (4 * len(solved))
    Evaluation.objects.create(
        run=run, iteration=3, name=name, policy_version=1, num_samples=4 * len(solved),
        num_tasks=len(solved), num_solved=sum(map(bool, solved)), solve_rate=rate, interval_low=0.0,
        interval_high=1.0, finished_at=now,
    )  # fmt: skip
    Group.objects.bulk_create(
        Group(
            run=run, iteration=3, phase=f"eval:{name}", task_key=f"task{task}", size=4, num_finished=4,
            num_graded=4, num_solved=number, started_at=now,
        )
        for task, number in enumerate(solved)
    )  # fmt: skip
    return run


def pin(run: Run, scope: str) -> None:
    edit(run=run, changes=Edit(baseline=scope))


def test_an_experiments_baseline_comes_before_that_of_all_runs() -> None:
    first, second, inside, outside = (make_run() for _ in range(4))
    for run in (second, inside):
        edit(run=run, changes=Edit(experiment="rates"))
    pin(first, "all")
    pin(second, "experiment")
    for run in (first, second, inside, outside):
        run.refresh_from_db()
    baselines = pinned_baselines()
    assert [baselines.of(run) for run in (inside, outside, second, first)] == [
        second.pk,
        first.pk,
        None,
        None,
    ]
    pin(outside, "all")
    first.refresh_from_db()
    assert first.baseline_of == ""
    assert AuditEntry.objects.latest("pk").changes["baseline_of"]["replaced"] == [first.pk]
    # Another experiment has its own baseline.
    edit(run=second, changes=Edit(experiment="others"))
    second.refresh_from_db()
    assert second.baseline_of == ""
    for scope, words in (("moon", "expected experiment, all or nothing"), ("experiment", "no experiment")):
        with pytest.raises(ConfigError, match=words):
            pin(first, scope)


def test_changes_are_paired_over_tasks_with_an_interval() -> None:
    baseline = evaluated([0, 1, 2, 0, 1, 0, 2, 1] * 3)
    better, same = evaluated([4, 4, 4, 3, 4, 4, 4, 4] * 3), evaluated([1, 0, 2, 0, 0, 1, 2, 1] * 3)
    other, without = evaluated([4] * 24, name="other"), make_run()
    pin(baseline, "all")
    runs = [better, same, other, without, baseline]
    numbers = [run.pk for run in runs]
    changes = baseline_changes(runs, pinned_baselines(), newest_heldout(numbers))
    assert set(changes) == {better.pk, same.pk}
    change = changes[better.pk]
    assert change.low is not None
    assert change.high is not None
    assert change.difference == pytest.approx(0.75)
    assert 0 < change.low < change.difference < change.high
    assert (change.verdict, change.num_tasks) == ("better", 24)
    assert changes[same.pk].verdict == "indistinguishable"


def test_table_page_api_and_command_show_the_change() -> None:
    baseline, same = evaluated([0, 1, 2, 0] * 3), evaluated([1, 0, 2, 0] * 3)
    client = signed_in(Role.OPERATOR, "ada")
    hand_over("ada")
    client.post(f"/runs/{baseline.pk}/edit/", {"baseline": "all"})
    table = client.get("/runs/").content.decode()
    assert "Against baseline" in table
    assert "indistinguishable" in table
    page = client.get(f"/runs/{same.pk}/").content.decode()
    assert f'data-baseline="/runs/{baseline.pk}/points/"' in page
    assert "<strong>indistinguishable</strong>" in page
    item = client.get("/api/v1/runs", {"columns": "change", "sort": "id"}).json()["items"][1]
    difference, low, high, number = item["values"]["change"]
    assert (low < difference == 0 < high, number) == (True, baseline.pk)
    unpinned = json.loads(run_command("run", "edit", baseline.pk, "--baseline", "", "--json"))
    assert unpinned["baseline_of"] == ""
    head = client.get("/runs/").content.decode().partition("<tbody")[0].partition("<thead")[2]
    assert "Against baseline" not in head
    pinned = client.post(f"/api/v1/runs/{same.pk}/edit", {"baseline": "all"}, "application/json").json()
    assert pinned["baseline_of"] == "all"


def test_moved_runs_are_unpinned_by_the_form() -> None:
    client = signed_in(Role.ADMIN)
    moved, stays, filed = (make_run() for _ in range(3))
    for run, name in ((moved, "rates"), (stays, "others"), (filed, "third")):
        edit(run=run, changes=Edit(experiment=name, baseline="experiment"))

    def save(run: Run, **values: str) -> Run:
        """Save the form as the page of the run has it, with other values."""
        html = client.get(f"/runs/{run.pk}/").content.decode()
        version = re.findall(r'name="version" value="(\w+)"', html)[0]
        run.refresh_from_db()
        form = {"version": version, "name": run.name, "tags": "", "notes": "", "new_experiment": ""}
        form |= {"experiment": run.experiment.name if run.experiment else "", "baseline": run.baseline_of}
        assert client.post(f"/runs/{run.pk}/edit/", form | values).status_code == 302
        run.refresh_from_db()
        return run

    save(moved, experiment="others")
    assert (moved.experiment, moved.baseline_of) == (stays.experiment, "")
    stays.refresh_from_db()
    assert stays.baseline_of == "experiment"
    save(stays, experiment="")
    assert (stays.experiment, stays.baseline_of) == (None, "")
    experiments.delete(experiment=Experiment.objects.get(name="third"))
    filed.refresh_from_db()
    assert filed.baseline_of == ""
    # A pin without an experiment, as the admin site's deletion leaves it, blocks no edit.
    Run.objects.filter(pk=filed.pk).update(baseline_of="experiment")
    assert (save(filed, name="renamed").name, filed.baseline_of) == ("renamed", "")


def test_only_administrators_replace_other_peoples_baseline_of_all_runs() -> None:
    theirs, mine = make_run(), make_run()
    Run.objects.filter(pk=theirs.pk).update(created_by=make_user("eve", Role.OPERATOR))
    pin(theirs, "all")
    client = signed_in(Role.OPERATOR, "ada")
    Run.objects.filter(pk=mine.pk).update(created_by=User.objects.get(username="ada"))
    assert client.post(f"/runs/{mine.pk}/edit/", {"baseline": "all"}).status_code == 403
    assert (
        client.post(f"/api/v1/runs/{mine.pk}/edit", {"baseline": "all"}, "application/json").status_code
        == 403
    )
    theirs.refresh_from_db()
    assert theirs.baseline_of == "all"
    signed_in(Role.ADMIN).post(f"/runs/{mine.pk}/edit/", {"baseline": "all"})
    theirs.refresh_from_db()
    assert theirs.baseline_of == ""
    entry = AuditEntry.objects.filter(run=theirs).latest("pk")
    assert entry.changes["baseline_of"] == {"old": "all", "new": "", "replaced_by": mine.pk}

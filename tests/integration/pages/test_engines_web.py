"""Inference engines in the database, on the run's page and by API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client

from tests.builders.event_builders import T0, Stream
from tests.builders.html_regions import inner_html
from tests.builders.web_builders import launched, make_user, post, relaunched, snapshot
from webapp.contexts.charts.charts import RUN_CHARTS, run_charts
from webapp.contexts.charts.line_charts import HEIGHT
from webapp.contexts.evaluation.evaluations import run_evaluations
from webapp.contexts.run.engines import build_engines
from webapp.models import EngineReport, EngineSample, Run
from webapp.permissions import Role
from webapp.selectors.run import engines as reads
from webapp.selectors.run.iterations import Point
from webapp.services.storage.engines import INTERVAL_S
from webapp.templatetags.yard import clock

pytestmark = pytest.mark.django_db


def replica(name: str = "engine-0", **fields: Any) -> dict[str, Any]:
    defaults = {
        "name": name, "state": "ready", "version": 3, "running": 12, "waiting": 1, "kv_use": 0.5,
        "prefix_hit_rate": 0.93, "tokens_per_s": 410.0, "restarts": 0, "detail": "",
    }  # fmt: skip
    return defaults | fields


def report(stream: Stream, time: float, *replicas: dict[str, Any], queued: int = 0) -> None:
    stream.add("engines_reported", replicas=list(replicas), queued=queued, time=time)


def page(run: Run, role: Role = Role.VIEWER) -> str:
    client = Client()
    client.force_login(make_user(f"user-{run.pk}", role))
    return client.get(f"/runs/{run.pk}/?tab=engines").content.decode()


def test_the_newest_report_and_the_first_of_each_interval_are_stored() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    base = INTERVAL_S * (T0 // INTERVAL_S)
    for second in range(0, 3 * INTERVAL_S, 5):
        report(stream, base + second, replica(running=second), queued=second)
    post(claim, stream)
    newest = EngineReport.objects.get(run=run)
    assert (newest.replicas[0]["running"], newest.queued) == (3 * INTERVAL_S - 5, 3 * INTERVAL_S - 5)
    samples = EngineSample.objects.filter(run=run)
    assert [sample.replicas[0]["running"] for sample in samples] == [0, INTERVAL_S, 2 * INTERVAL_S]


def test_one_event_at_a_time_stores_the_same() -> None:
    stored = []
    for size in (1, 2, 100):
        run, claim = launched()
        stream = Stream()
        stream.started()
        for second in range(0, 100, 3):
            report(stream, T0 + second, replica(running=second), queued=second)
        for start in range(0, len(stream.lines), size):
            post(claim, stream, start, start + size)
        rows = EngineSample.objects.filter(run=run).values_list("interval", "replicas")
        newest = EngineReport.objects.filter(run=run).values_list("time", "replicas", "queued")
        stored.append((list(rows), list(newest)))
        assert snapshot(run)
    assert stored[0] == stored[1] == stored[2]


def test_a_new_attempt_forgets_the_engines_and_keeps_their_history() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    report(stream, T0, replica())
    post(claim, stream)
    newer = relaunched(run, claim)
    again = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    again.started(resumed_from=0)
    post(newer, again)
    assert not EngineReport.objects.filter(run=run).exists()
    assert EngineSample.objects.filter(run=run).count() == 1


def test_charts_before_the_first_report_of_an_attempt_end_with_the_last_of_the_previous_one() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    for second in (0, 600):
        report(stream, T0 + second, replica())
    post(claim, stream)
    newer = relaunched(run, claim)
    again = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    again.started(resumed_from=0)
    post(newer, again)
    text = " ".join(inner_html(page(run), "run-panel").split())
    first, last = EngineSample.objects.filter(run=run)
    assert "No inference engines" in text
    assert f"<span>{clock(first.time)}</span><span>{clock(last.time)}</span>" in text


def test_a_new_attempt_in_the_same_batch_forgets_them_too() -> None:
    run, claim = launched()
    newer = relaunched(run, claim)
    stream = Stream(epoch=claim.epoch)
    stream.started()
    report(stream, T0, replica())
    stream.epoch = newer.epoch
    stream.started(resumed_from=0)
    post(newer, stream)
    assert not EngineReport.objects.filter(run=run).exists()


def test_the_page_shows_each_engine_and_names_one_that_was_left_out() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    report(stream, T0, replica(), replica("engine-1", running=7))
    lost = replica(
        "engine-1", state="left_out", version=None, running=0, detail="proof failed: <b>0.3 nats</b>"
    )
    report(stream, T0 + 60, replica(restarts=2), lost, queued=4)
    post(claim, stream)
    text = page(run)
    panel = inner_html(text, "run-panel")
    assert "<strong>engine-1 was left out.</strong> proof failed: &lt;b&gt;0.3 nats&lt;/b&gt;" in panel
    for shown in ("1 of 2 engines serve", "4 new trajectories wait", "left out", "50.0 %", "93.0 %", ">410<"):
        assert shown in panel, shown
    assert panel.count("<polyline") == 10
    head = inner_html(text, "run-header")
    assert "✕ 1 left out" in head
    assert f'href="/runs/{run.pk}/?tab=engines"' in head


def test_an_ended_run_shows_its_last_report_as_such() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    report(stream, T0, replica())
    stream.add("run_finished", state="succeeded")
    post(claim, stream)
    text = page(run)
    assert "last report before the run ended" in inner_html(text, "run-panel")
    assert "Engines</dt>" not in inner_html(text, "run-header")


def test_a_run_without_engines_says_so() -> None:
    run, _ = launched()
    assert "samples in the trainer" in inner_html(page(run), "run-panel")


def test_a_long_history_is_thinned_at_even_distances_up_to_the_newest() -> None:
    run, _ = launched()
    count = 5 * reads.MAX_POINTS + 3
    EngineSample.objects.bulk_create(
        EngineSample(
            run=run, interval=number, time=f"2026-11-22T00:00:00.{number:06d}Z", replicas=[replica()]
        )
        for number in range(count)
    )
    found = [sample.interval for sample in reads.history(run.pk)]
    assert len(found) <= reads.MAX_POINTS
    assert found[-1] == count - 1
    assert {later - earlier for earlier, later in zip(found, found[1:], strict=False)} == {6}


def test_lines_of_the_charts_stay_within_them() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    for second, use in ((0, 0.0), (30, 0.5), (60, 1.0), (90, 1.7)):
        report(stream, T0 + second, replica(kv_use=use, tokens_per_s=0.0))
    post(claim, stream)
    charts = {chart.id: chart for chart in build_engines(run).charts}
    heights = [float(point.split(",")[1]) for point in charts["kv_use"].lines[0].path.split()]
    assert heights == [HEIGHT, HEIGHT / 2, 0.0, 0.0]
    assert charts["tokens_per_s"].top == 1.0
    assert charts["running"].top == 12.0


def test_an_evaluation_shows_what_its_engines_measured() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    metrics = {"engine/prefix_hit_rate": 0.9125, "engine/tokens_per_s": 321.5, "steps/mean": 4.25}
    stream.add(
        "evaluation_finished", iteration=0, name="heldout", policy_version=0, num_samples=4, num_tasks=4,
        num_solved=1, solve_rate=0.25, interval_low=0.0, interval_high=1.0, metrics=metrics,
    )  # fmt: skip
    report(stream, T0, replica())
    report(stream, T0 + 60, replica(tokens_per_s=99.0))
    post(claim, stream)
    client = Client()
    client.force_login(make_user("ada", Role.VIEWER))
    shown = client.get(f"/runs/{run.pk}/eval:heldout/0/").content.decode()
    text = " ".join(inner_html(shown, "iteration-body").split())
    for name, value in (("prefix hit rate", "0.9125"), ("tokens per s", "321.5"), ("mean", "4.25")):
        assert f"<dt>{name}</dt> <dd> {value} </dd>" in text, text
    (found,) = client.get(f"/api/v1/runs/{run.pk}/evaluations").json()
    assert found["metrics"] == metrics
    assert inner_html(page(run), "run-panel").count("<polyline") == 5, "charts over time"


def test_evaluations_of_a_policy_show_their_metrics_as_charts() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    for iteration, hits in ((0, 0.5), (5, 0.75), (10, 1.0)):
        metrics = {"engine/prefix_hit_rate": hits, "endpoint/answered": 40.0 * hits, "solve/other": 1.0}
        metrics |= {"steps/mean": 4.25} if iteration else {}
        stream.add(
            "evaluation_finished", iteration=iteration, name="heldout", policy_version=0, num_samples=4,
            num_tasks=4, num_solved=1, solve_rate=0.25, interval_low=0.0, interval_high=1.0, metrics=metrics,
        )  # fmt: skip
    post(claim, stream)
    (plot,) = run_evaluations(run)
    lines = {chart.id: chart.lines for chart in plot.charts}
    assert set(lines) == {"engine_prefix", "endpoint", "steps"}
    assert [line.path for line in lines["engine_prefix"]] == ["0.0,40.0 150.0,20.0 300.0,0.0"]
    assert [line.path for line in lines["steps"]] == ["150.0,0.0 300.0,0.0"], "it was not always reported"
    client = Client()
    client.force_login(make_user("ada", Role.VIEWER))
    panel = inner_html(client.get(f"/runs/{run.pk}/?tab=evaluation").content.decode(), "run-panel")
    assert panel.count("<polyline") == 3
    assert "Environment steps, iteration 0 to iteration 10" in panel


def test_every_line_of_a_chart_has_a_colour_of_its_own() -> None:
    styles = (Path(settings.BASE_DIR) / "static" / "css" / "tokens.css").read_text()
    for spec in RUN_CHARTS:
        colours = [series.colour for series in spec.series]
        assert len(set(colours)) == len(colours), spec.id
        assert all(f"--chart-{colour}:" in styles for colour in colours), spec.id


def test_the_api_returns_the_engines() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    report(stream, T0, replica(), queued=2)
    post(claim, stream)
    client = Client()
    client.force_login(make_user("ada", Role.VIEWER))
    found = client.get(f"/api/v1/runs/{run.pk}/engines").json()
    assert found["queued"] == 2
    assert found["newest"]["replicas"] == [replica()]
    assert len(found["history"]) == 1
    other, _ = launched()
    assert client.get(f"/api/v1/runs/{other.pk}/engines").json() == {
        "newest": None,
        "queued": 0,
        "history": [],
    }


def test_metrics_of_engines_and_publication_have_charts() -> None:
    metrics = {
        "engine/kv_use": 0.4, "engine/running": 8.0, "engine/waiting": 0.5, "engine/prefix_hit_rate": 0.9,
        "engine/tokens_per_s": 800.0, "engine/restarts": 0.0, "publish/seconds": 1.5, "publish/replicas": 2.0,
    }  # fmt: skip
    charts = run_charts([Point(0, metrics, 1.0)])
    assert {series.key for spec in charts.specs for series in spec.series} == set(metrics)
    ids = [spec.id for spec in RUN_CHARTS]
    assert len(ids) == len(set(ids))


def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "webapp", check=True, dry_run=True, verbosity=0)

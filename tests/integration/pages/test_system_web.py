"""A run's use of its machine in the database, on the run's page, by API and command."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from engine.types import RunState
from tests.builders.commands import run_command
from tests.builders.sandbox_builders import pool
from tests.builders.web.event_builders import T0, Stream, machine_use
from tests.builders.web.web_builders import launched, post, signed_in
from tests.integration.pages.test_engines_web import replica
from webapp.core.permissions import Role
from webapp.models import Event, Run
from webapp.runs.contexts.system import build_system
from webapp.runs.selectors import system as reads

pytestmark = pytest.mark.django_db


def sampled_run(count: int = 3) -> Run:
    run, claim = launched()
    stream = Stream()
    stream.started()
    for number in range(count):
        stream.add("pool_status", **pool(live=number, waiting=2 * number), time=T0 + 10 * number)
        stream.add("engines_reported", replicas=[replica(), replica("engine-1")], time=T0 + 20 * number)
        stream.add("system_sampled", **machine_use(cpu_engine=float(number)), time=T0 + 10 * number)
    post(claim, stream)
    return run


def test_the_page_the_api_and_the_command_show_the_same_numbers() -> None:
    run = sampled_run()
    answer = signed_in(Role.VIEWER).get(f"/api/v1/runs/{run.pk}/system").json()
    by_key = {quantity["key"]: quantity for quantity in answer["quantities"]}
    assert by_key["cpu"]["series"]["engine"] == [[T0, 0.0], [T0 + 10, 1.0], [T0 + 20, 2.0]]
    assert by_key["sandboxes"]["series"]["queued"] == [[T0, 0.0], [T0 + 10, 2.0], [T0 + 20, 4.0]]
    assert by_key["gpu_use"]["series"]["GPU 1"][0] == [T0, 0.5]
    assert by_key["requests"]["series"]["running"][0] == [T0, 24.0]
    assert (answer["cores"], answer["memory_total"]) == (8, 64.0)
    assert json.loads(run_command("run", "system", run.pk, "--json"))["rows"] == answer["rows"]
    assert "Memory, children" in run_command("run", "system", run.pk)
    html = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=system").content.decode()
    assert html.count("line-plot") == len(by_key)
    assert "8 cores and 64 GB of memory" in html
    assert "GPU 1" in html


def test_runs_without_reports_say_so() -> None:
    run, _ = launched()
    assert signed_in(Role.VIEWER).get(f"/api/v1/runs/{run.pk}/system").json()["quantities"] == []
    html = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=system").content.decode()
    assert "No reports of the machine yet" in html
    assert "no report of its machine" in run_command("run", "system", run.pk)


def test_one_report_is_a_table_without_charts() -> None:
    run = sampled_run(1)
    html = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=system").content.decode()
    assert "line-plot" not in html
    assert "Run folder" in html


def test_long_histories_are_read_in_buckets_by_the_index() -> None:
    run = Run.objects.create(name="long", kind="train", state=RunState.RUNNING)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO webapp_event (run_id, seq, epoch, type, time, payload)"
            " SELECT %s, n, 1, 'system_sampled', to_timestamp(%s + 60 * n),"
            " jsonb_set(%s::jsonb, '{memory_engine}', to_jsonb(CASE WHEN n = 7777 THEN 5e10 ELSE n END))"
            " FROM generate_series(1, 20160) n",
            [run.pk, T0, json.dumps(machine_use())],
        )
        cursor.execute("ANALYZE webapp_event")
    with CaptureQueriesContext(connection) as captured:
        history = reads.history(run.pk, points=300)
    assert len(captured) == 3
    assert len(history.times) == 300
    assert max(value or 0 for value in history.columns["memory_engine"]) == 5e10
    assert set(history.columns["cpu_children"]) == {2.0}
    assert len(history.gpus) == 600
    view = build_system(run, points=10_000)
    assert max(len(series) for quantity in view.quantities for series in quantity.series.values()) == 600
    # Two weeks of reports: 1,440 rows a day.
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(pg_column_size(e.*)) FROM webapp_event e WHERE run_id = %s", [run.pk])
        assert cursor.fetchone()[0] < 14 * 1_000_000
        cursor.execute(f"EXPLAIN {captured.captured_queries[0]['sql']}")
        explained = "\n".join(line for (line,) in cursor.fetchall())
    assert "event_without_steps" in explained, explained


def test_reports_are_not_listed_among_the_events() -> None:
    run = sampled_run()
    assert Event.objects.filter(run=run, type="system_sampled").count() == 3
    html = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=events").content.decode()
    assert "of 8 cores" not in html
    html = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=events&type=system_sampled").content.decode()
    assert "4.0 of 8 cores and 5.0 GB of memory in use" in html

"""Latency of pages over a large dataset: ``python -m bench.dataset_health [--quick]``.

Starts an embedded PostgreSQL, fills it with a validated dataset of 20,000 tasks and the groups of 100,000
trajectories on it (40 runs, 8 siblings a group), and requests the health page, the list of tasks, filters on
health and on measured solve rate, and a task, through Django's own stack without a network. The bar is
200 ms at the 95th percentile on idle cores; the CPU time of Django and PostgreSQL together hardly depends on
the machine's load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from bench.harness import store
from engine.processes.ports import free_port
from webapp.supervisor.embedded import EmbeddedPostgres

SIBLINGS, RUNS = 8, 40
PAGES = {
    "health page": "/datasets/big/health/",
    "tasks": "/datasets/big/",
    "tasks, last page": "/datasets/big/?page=100000",
    "tasks in quarantine": "/datasets/big/?health=quarantined",
    "tasks solved sometimes": "/datasets/big/?solved=mixed",
    "tasks not tried": "/datasets/big/?solved=unmeasured",
    "tasks by solve rate": "/datasets/big/?rate_min=0.2&rate_max=0.8",
    "task": "/datasets/big/tasks/k00000007/",
}
_FILL = (
    """INSERT INTO webapp_dataset (name, provenance, splits, num_tasks, checksum, health_checksum, created_at)
        VALUES ('big', '{}', '{"train": 1}', %(tasks)s, '', '', now())""",
    """INSERT INTO webapp_task (dataset_id, key, instance_id, split, position, repo, base_commit,
            problem_statement, image, workdir, difficulty, metadata, active, content, health, quarantined,
            quarantine_reason, quarantine_by)
        SELECT d.id, 'k' || lpad(n::text, 8, '0'), 'repo__name-' || n, 'train', n, 'repo', 'c',
            repeat('statement ', 100), 'image', '/testbed', '{}', '{}', true, 'c', '', false, '', ''
        FROM webapp_dataset d, generate_series(0, %(tasks)s - 1) n""",
    """INSERT INTO webapp_validation (task_id, uid, content, run_label, time, status, noop, gold, repeats,
            noop_seconds, gold_seconds, flaky_tests, num_flaky_tests, reason, quarantine, sides)
        SELECT t.id, 'u' || r, 'c', 'bench', now() - r * interval '1 day',
            CASE t.position %% 20 WHEN 0 THEN 'flaky' WHEN 1 THEN 'gold_fails' ELSE 'valid' END, 'failed',
            CASE t.position %% 20 WHEN 0 THEN 'flaky' WHEN 1 THEN 'failed' ELSE 'passed' END, 3,
            0.2 + t.position %% 37, 0.3 + t.position %% 41, '["tests/t.py::test_a"]', 1, 'reason', true,
            '{"noop": {"verdicts": ["failed"]}, "gold": {"verdicts": ["passed"]}}'
        FROM webapp_task t, generate_series(1, 3) r""",
    """INSERT INTO webapp_run (kind, name, recipe, config, dataset_id, state, desired, reason, summary, epoch,
            last_seq, engine_seq, token_hash, run_dir, total_iterations, progress_message, progress_done,
            progress_total, selection, created_at, state_changed_at)
        SELECT 'train', 'run ' || r, 'quickstart',
            jsonb_build_object('policy', jsonb_build_object('type', 'transformer'), 'x', repeat('x', 6000)),
            d.id, 'succeeded', 'run', '', '{}', 1, 0, 0, '', '', 1, '', 0, 0, '{}', now(), now()
        FROM webapp_dataset d, generate_series(1, %(runs)s) r""",
    """INSERT INTO webapp_group (run_id, iteration, phase, task_key, task_id, size, num_finished, num_graded,
            num_solved, num_cut_short, num_masked, mean_reward, started_at)
        SELECT r.id, n / 64, 'train', t.key, t.id, %(siblings)s, %(siblings)s, %(siblings)s,
            (n * 7919) %% (%(siblings)s + 1), 0, 0, 0.5, now()
        FROM generate_series(0, %(groups)s - 1) n
        JOIN webapp_task t ON t.position = (n * 31) %% %(tasks)s
        JOIN webapp_run r ON r.id = (SELECT min(id) FROM webapp_run) + n %% %(runs)s
        ON CONFLICT DO NOTHING""",
)


def fill(*, tasks: int, trajectories: int) -> None:
    """Insert the rows by SQL and compute every task's status with the product's service."""
    from django.db import connection

    from webapp.datasets.models.datasets import Task
    from webapp.datasets.services.health import refresh_standings

    numbers = {"tasks": tasks, "runs": RUNS, "siblings": SIBLINGS, "groups": trajectories // SIBLINGS}
    with connection.cursor() as cursor:
        for statement in _FILL:
            cursor.execute(statement, numbers)
        refresh_standings(task_ids=list(Task.objects.values_list("pk", flat=True)))
        cursor.execute("VACUUM ANALYZE")


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Return milliseconds per page: median, 95th percentile, and CPU time of Django and PostgreSQL."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client

    client = Client(HTTP_HOST="localhost")
    client.force_login(User.objects.create_superuser("bench", password=os.urandom(8).hex()))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = psutil.Process(cursor.fetchone()[0])
    results = {}
    for name, address in PAGES.items():
        client.get(address)
        times = []
        before = _cpu_seconds(backend)
        for _ in range(repeats):
            began = time.perf_counter()
            response = client.get(address)
            times.append(1000 * (time.perf_counter() - began))
            assert response.status_code == 200, (address, response.status_code)
        cpu_ms = 1000 * (_cpu_seconds(backend) - before) / repeats
        times.sort()
        p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
        numbers = {"p50_ms": statistics.median(times), "p95_ms": p95, "cpu_ms": cpu_ms}
        results[name] = {key: round(value, 1) for key, value in numbers.items()}
    return results


def _cpu_seconds(backend: psutil.Process) -> float:
    times = backend.cpu_times()
    return float(time.process_time() + times.user + times.system)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, few repeats")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        (Path(folder) / "static").mkdir()
        postgres = EmbeddedPostgres(Path(folder) / "postgres", port=free_port(), password="bench")
        os.environ |= {"TRAINYARD_HOME": folder, "DATABASE_URL": postgres.url}
        os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.settings"
        import django
        from django.conf import settings
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
        try:
            postgres.start()
            call_command("migrate", verbosity=0)
            tasks, trajectories = (2_000, 10_000) if quick else (20_000, 100_000)
            began = time.perf_counter()
            fill(tasks=tasks, trajectories=trajectories)
            filled_s = time.perf_counter() - began
            pages = measure(5 if quick else 30)
            connections.close_all()
        finally:
            postgres.stop()
    print(f"{tasks} tasks, {trajectories} trajectories; filled in {filled_s:.1f} s")
    for name, numbers in pages.items():
        print(
            f"{name:26}",
            "   ".join(f"{key.removesuffix('_ms')} {value:7.1f} ms" for key, value in numbers.items()),
        )
    load = round(os.getloadavg()[0], 1)
    results = {"tasks": tasks, "trajectories": trajectories, "pages": pages, "load_average": load}
    store("dataset_health", results, quick=quick)


if __name__ == "__main__":
    main()

"""Validation and grading of predictions on a failing cluster, with the same results as locally."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.rollout import GradingConfig
from engine.config.run import ValidateRun
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import dataset_path, save_dataset, with_content_id
from engine.events.health import ValidationRecord, read
from engine.grading.official.predictions import Assignment, PredictionSettings, grade_predictions
from engine.orchestrator import perform
from engine.patches.diff import diff_texts
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.owner import leases_path
from engine.types import TaskRow
from tests.builders.dataset_builders import broken_task, toolchain_or_skip, without_reuse, write_toy
from tests.builders.kubernetes_builders import NAMESPACE, kubernetes_config, prepared
from tests.fakes.cluster import FakeCluster, Fault, FaultKind
from tests.integration.adversary.frame import find, under
from tests.integration.grading.test_validation import config, make_rows
from tests.integration.toy_yard import open_context

PODS = ("pods",)
ROWS = ("valid", "noop_passes", "gold_fails", "gold_fails-apply", "valid-script", "flaky", "infra")
NAMES = ("signed", "log", "cheats", "unapplied", "empty", "absent")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graded")
    toolchain_or_skip(folder)
    return folder


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    return without_reuse(broken_task(home, write_toy(home / "source")))


@asynccontextmanager
async def failing_cluster(home: Path) -> AsyncIterator[FakeCluster]:
    """Yield a cluster with faults of every kind; afterwards check that no pod or lease is left."""
    async with prepared(home, seed=5) as cluster:
        faults = [
            Fault(FaultKind.EVICT, count=3, delay_s=0.3),
            Fault(FaultKind.CUT, count=2, delay_s=0.1, name="sb-"),
            Fault(FaultKind.CREATED_BUT_ERROR, verbs={"create"}, resources=PODS, count=2),
            Fault(FaultKind.SERVER_ERROR, verbs={"create", "delete"}, resources=PODS, count=3),
            Fault(FaultKind.TOO_MANY_REQUESTS, verbs={"create"}, resources=PODS, count=2),
            Fault(FaultKind.DROP_WATCH, resources=PODS, delay_s=1.5),
            Fault(FaultKind.STALE_LIST, resources=PODS, probability=0.5),
        ]
        for fault in faults:
            cluster.faults.add(fault)
        yield cluster
        struck = {fault.kind: fault.hits for fault in faults[:5]}
        assert struck == {fault.kind: fault.count for fault in faults[:5]}
        cluster.faults.clear()
        await cluster.settled()
        api = await KubeApi.connect(kubernetes_config(cluster))
        try:
            assert (await api.list(leases_path(NAMESPACE)))["items"] == []
        finally:
            await api.close()


def in_pods(sandbox: SandboxConfig, cluster: FakeCluster) -> SandboxConfig:
    kubernetes = kubernetes_config(cluster)
    return sandbox.model_copy(
        update={"backend": "kubernetes", "kubernetes": kubernetes, "start_retries": 6, "max_starting": 4}
    )


async def validated(home: Path, name: str, settings: ValidateRun) -> dict[str, Any]:
    """Validate a dataset; return the result of each row, without durations and random verdicts."""
    with open_context(home, f"validate-{name}", settings) as run:
        outcome = await perform(settings, run)
    results: dict[str, Any] = {"": {**outcome.summary, "dataset": "", "seconds": 0}}
    for record in read(dataset_path(home, name)):
        if not isinstance(record, ValidationRecord):
            continue
        sides = (record.noop.verdicts, record.gold.verdicts, record.reason)
        is_random = record.status in ("flaky", "infra")
        results[record.task_id] = (record.status, *(() if is_random else sides))
    return results


async def test_validation_in_pods_matches_local_validation(home: Path, row: TaskRow) -> None:
    rows = [task_row for task_row in make_rows(row) if task_row.task.instance_id in ROWS]
    for name in ("here", "in-pods"):
        save_dataset(home, name, rows, {})
    local = await validated(home, "here", config("here"))
    async with failing_cluster(home) as cluster:
        settings = config("in-pods")
        settings = settings.model_copy(update={"sandbox": in_pods(settings.sandbox, cluster)})
        assert await validated(home, "in-pods", settings) == local
    assert local[""]["rows"] == len(rows) == len(ROWS)
    assert {record[0] for key, record in local.items() if key} == {
        "valid", "noop_passes", "gold_fails", "flaky", "infra",
    }  # fmt: skip


async def graded(home: Path, folder: Path, sandbox: SandboxConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Grade the predictions; return the counts, and each report by path except ``inputs.json``."""
    assignment = Assignment(
        dataset="toy", predictions=str(home / "predictions.jsonl"), run_id="r1", output=folder
    )
    grading = GradingConfig(timeout_s=60.0, max_parallel=4)
    settings = PredictionSettings(sandbox=sandbox, grading=grading)
    counts = await grade_predictions(home, assignment, settings)
    files = [path for path in folder.rglob("*.json") if path.name != "inputs.json"]
    reports = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in files}
    return {**counts, "report": ""}, reports


async def test_prediction_reports_in_pods_match_local_reports(
    home: Path, row: TaskRow, tmp_path: Path
) -> None:
    rows = [
        with_content_id(
            replace(
                under(row, "signed" if name == "signed" else "log"),
                task=replace(row.task, instance_id=name),
            )
        )
        for name in NAMES
    ]
    save_dataset(home, "toy", rows, {"sources": []})
    patches = {
        "signed": row.answer.gold_patch,
        "log": row.answer.gold_patch,
        "cheats": find("forged lines and exit").patch,
        "unapplied": diff_texts("toy/numbers.py", "not there\n", "x\n"),
        "empty": "",
    }
    lines = [
        json.dumps({"instance_id": name, "model_name_or_path": "a/model", "model_patch": patch})
        for name, patch in patches.items()
    ]
    (home / "predictions.jsonl").write_text("\n".join(lines))
    sandbox = SandboxConfig(memory_mb=256, max_live=8)
    counts, reports = await graded(home, tmp_path / "here", sandbox)
    assert counts["verdicts"] == {"passed": 2, "patch_failed": 1, "tampered": 1}
    assert len(reports) == 4
    async with failing_cluster(home) as cluster:
        assert await graded(home, tmp_path / "pods", in_pods(sandbox, cluster)) == (counts, reports)

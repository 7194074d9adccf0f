"""A site with runs of each kind and state, and the addresses of all its pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.builders.web.evaluation_builders import FIRST, SECOND, evaluated, scored
from tests.builders.web.event_builders import T0, Stream, machine_use
from tests.builders.web.page_builders import Yard
from tests.builders.web.web_builders import launched, make_run, post
from tests.e2e.pages.test_hostile import HOSTILE, hostile_news
from tests.e2e.pages.test_sandboxes import busy_yard
from tests.integration.pages.test_token_trace_web import trained_stream
from tests.integration.verifiers.test_regrade_web import changes, regrading
from tests.integration.verifiers.test_scores_of_tests_web import scored_by_tests
from tests.unit.webapp.runs.test_collection_pages import going, made
from webapp.endpoints.services import endpoints
from webapp.models import Dataset, Run, Trajectory
from webapp.rollouts.selectors.filters import TrajectoryFilters
from webapp.rollouts.services import passages, searches
from webapp.runs.kinds import TABS
from webapp.runs.services import dataset_runs, edits, runs

ANSI = (
    "\x1b[1;31mFAILED\x1b[0m tests/t.py \x1b[32mok\x1b[0m \x1b[7minverse\x1b[0m "
    "\u202ereversed\u202c zero\u200bwidth\n"
)
LONG_NAME = "a_very_long_name_without_any_space" * 4
LONG_ROLLOUT, IMPORTED_ROLLOUT = 90, 91


@dataclass(frozen=True, slots=True)
class Site:
    """Objects created by ``make_site``."""

    yard: Yard
    runs: Mapping[str, Run]
    """Runs by a label, e.g. ``failed`` or ``evaluated again``."""


CHANGES = (("passed", "failed"), ("passed", "passed"), ("failed", "tampered"), ("failed", None))


def make_site() -> Site:
    """Build the runs and everything else that pages show."""
    yard = busy_yard()
    edits.edit(
        run=yard.run,
        changes=edits.Edit(name=LONG_NAME, tags=("baseline", "long-tag" * 6), notes="Why.\n" * 3),
    )
    add_rollouts(yard)
    hostile_news(yard)
    first, second = evaluated(yard.tasks, FIRST), evaluated(yard.tasks, SECOND)
    labelled_runs = {
        "evaluated": first,
        "evaluated again": second,
        "verifier": scored(first, yard.tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: None}),
        "verifier by tests": scored_by_tests(second, yard.tasks[0], {0: (5, 2), 1: (4, 0), 2: (None, None)}),
        "regraded": regrading(str(first.pk), changes(str(first.pk), yard.tasks[0].key, CHANGES)),
        **runs_by_state(),
        **runs_by_kind(),
    }
    imported_dataset()
    endpoints.save(
        name="hosted", address="https://api.example.org/v1", key="sk-an-example-key-4321", note="judges"
    )
    return Site(yard, labelled_runs)


def add_rollouts(yard: Yard) -> None:
    """Add a long rollout with terminal colours, an imported one, and reports of engines and machine."""
    stream = yard.stream
    long, imported = yard.ref(0, 0, LONG_ROLLOUT), yard.ref(0, 0, IMPORTED_ROLLOUT)
    stream.add("trajectory_started", ref=long, sandbox_id="s")
    for index in range(24):
        stream.step(long, index, tool="execute_bash", arguments={"command": "make"}, observation=ANSI * 4)
    stream.finished(long, steps=24, reward=0.0, termination="max_steps")
    stream.add("trajectory_started", ref=imported)
    stream.step(
        imported,
        0,
        tool="str_replace_editor",
        arguments={"command": "create", "path": "/a.py", "file_text": HOSTILE},
    )
    fields = {"agent_args": {"max_steps": 40, "other": HOSTILE}, "verifier_prob": 0.81, "exp_name": "deepswe"}
    stream.add(
        "trajectory_finished", ref=imported, termination="submitted", verdict="passed", reward=1.0,
        num_steps=1, imported=fields, thinking_tokens=None,
    )  # fmt: skip
    for second in range(0, 100, 20):
        replicas = [
            replica("engine-0", second),
            replica("engine-1", second + 13, state="left_out", detail="it lags"),
        ]
        stream.add("engines_reported", replicas=replicas, queued=3, time=T0 + second)
        stream.add("system_sampled", **machine_use(cpu_engine=1.5 + second / 40), time=T0 + second)
    yard.post()


def replica(name: str, second: int, **fields: Any) -> dict[str, Any]:
    wave = (second * 7 + len(name)) % 40
    defaults = {
        "name": name, "state": "ready", "version": second // 60, "running": 12 + wave // 8,
        "waiting": wave // 20, "kv_use": 0.35 + wave / 100, "prefix_hit_rate": min(0.95, 0.2 + second / 400),
        "tokens_per_s": 380.0 + 3 * wave, "restarts": 0, "detail": "",
    }  # fmt: skip
    return defaults | fields


def imported_dataset() -> Dataset:
    """Create a dataset with the records of an import that left rows out."""
    counts = {"read": 130, "imported": 9, "rejected": 120, "duplicates": 0, "excluded": 1, "ungradable": 2}
    record: dict[str, Any] = {"format": "r2e-gym", "source": "hf:R2E-Gym/R2E-Gym-Subset", "counts": counts}
    record["excluded_by"] = {"decontamination:repository": 1}
    dataset = Dataset.objects.create(
        name="left", num_tasks=9, provenance={"imports": [record]}, splits={"train": 9}
    )
    folder = Path(settings.TRAINYARD_HOME) / "datasets" / "left"
    folder.mkdir(parents=True, exist_ok=True)
    rejects = [
        {
            "row": n,
            "file": "train-00000-of-00009.parquet",
            "field": "parsed_commit_content",
            "reason": "not an object",
        }
        for n in range(120)
    ]
    (folder / "rejects.jsonl").write_text("".join(json.dumps(reject) + "\n" for reject in rejects))
    excluded = {
        "row": 7,
        "instance_id": "sympy__ab",
        "by": "decontamination:repository",
        "detail": "sympy is sympy/sympy",
    }
    (folder / "excluded.jsonl").write_text(json.dumps(excluded) + "\n")
    return dataset


def runs_by_state() -> dict[str, Run]:
    """Create a run in each state except running and succeeded."""
    created = {state: make_run(name=f"a {state} run") for state in ("draft", "queued")}
    runs.start(run=created["queued"])
    created["starting"] = launched(make_run(name="a starting run"))[0]
    for state in ("paused", "stopping", "stopped", "failed"):
        run, claim = launched(make_run(name=f"a {state} run"))
        stream = Stream(epoch=claim.epoch)
        stream.started()
        stream.iteration(0)
        stream.add("alert", severity="error", code="relaunch", message=f"attempt 1 was lost: {HOSTILE}")
        post(claim, stream)
        if state == "paused":
            runs.pause(run=run)
            stream.add("run_paused")
        elif state == "stopping":
            runs.stop(run=run)
        else:
            stream.add(
                "run_finished", state=state, reason="out of memory: 3 GiB were asked for, 1 GiB was free"
            )
        post(claim, stream, len(stream.lines) - 1)
        created[state] = run
    return created


def runs_by_kind() -> dict[str, Run]:
    """Create a run of each remaining kind."""
    created = {"collection": going(made())[0]}
    recipes = {"sft": "quickstart-sft", "improve": "quickstart-improve", "curate": "quickstart-dataset"}
    recipes["validate"], recipes["oracle"] = "validate-dataset", "quickstart-oracle"
    for name, recipe in recipes.items():
        run, claim = launched(runs.create(recipe=recipe, overrides={"name": f"{name} run"}))
        stream = Stream(epoch=claim.epoch)
        stream.started()
        stream.add("run_progress", message="tasks", done=3, total=9)
        stream.add("run_finished", state="succeeded", summary={"tasks": 9, "dataset": "quickstart"})
        post(claim, stream)
        created[name] = run
    created["traced"], claim = launched(make_run(name="traced run"))
    post(claim, trained_stream(400, text=HOSTILE))
    searches.save(name="lines that failed", filters=TrajectoryFilters(q="line", verdict="failed"))
    while passages.index_pending():
        pass
    folder = Path(settings.TRAINYARD_HOME) / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").touch()
    created["import"] = dataset_runs.launch_import(format="swe-bench", source="a.jsonl", name="d")
    return created


def addresses(site: Site) -> dict[str, str]:
    """Return the address of each page by a descriptive name."""
    yard, labelled_runs = site.yard, site.runs
    run, key, dataset = yard.run.pk, yard.tasks[0].key, f"/datasets/{yard.dataset.name}"
    first, second = labelled_runs["evaluated"].pk, labelled_runs["evaluated again"].pk
    report, pair = (
        f"/evaluations/{first}/eval:heldout/0/",
        f"first={first}:eval:heldout:0&second={second}:eval:heldout:0",
    )
    group = f"/runs/{run}/train/0/{key}/"
    siblings = Trajectory.objects.filter(run=run, phase="train", iteration=0, task_key=key)
    left, right = siblings.order_by("index").values_list("pk", flat=True)[:2]
    traced = Trajectory.objects.filter(run=labelled_runs["traced"])
    return {
        "overview": "/",
        "account": "/account/",
        "tokens": "/account/tokens/",
        "password": "/account/password/",
        "runs": "/runs/",
        "runs grouped": "/runs/?group=recipe&columns=state,gain,change,set:seed,metric:entropy/mean",
        "no runs": "/runs/?q=no+such+run",
        "recipes": "/runs/new/",
        **{
            f"new {name}": f"/runs/new/?recipe={name}"
            for name in ("quickstart", "deepswe-32b", "collect", "fine-tune", "verify", "regrade")
        },
        "clone": f"/runs/new/?clone={run}",
        "runs compared": f"/runs/compare/?runs={run},{labelled_runs['failed'].pk}",
        "no runs compared": "/runs/compare/",
        "tasks of runs": f"/runs/compare/tasks/?runs={first},{second}",
        "selected runs": f"/runs/selected/?run={run}&run={first}",
        "no selected runs": "/runs/selected/",
        "what if": f"/runs/{run}/what-if/?preset=grpo",
        **{f"run {tab}": f"/runs/{run}/?tab={tab}" for tab in TABS},
        **{f"run, {name}": f"/runs/{other_run.pk}/" for name, other_run in labelled_runs.items()},
        "evaluations": f"/runs/{first}/?tab=evaluation",
        "groups of a task": f"/runs/{run}/?tab=groups&task={key}",
        "iteration": f"/runs/{run}/train/0/",
        "iteration of an evaluation": f"/runs/{first}/eval:heldout/0/",
        "group": group,
        "two rollouts": f"/trajectories/compare/?left={left}&right={right}",
        "trajectory": f"{group}0/",
        "trajectory found in": f"{group}0/?find=line",
        "long trajectory": f"{group}{LONG_ROLLOUT}/",
        "imported trajectory": f"{group}{IMPORTED_ROLLOUT}/",
        "tokens of a rollout": f"/trajectories/{traced.get(index=0).pk}/tokens/?token=1&by=ratio",
        "traced rollout": f"/runs/{labelled_runs['traced'].pk}/train/0/a/0/",
        "rollout without a trace": f"/trajectories/{traced.get(index=1).pk}/tokens/",
        "live hostile trajectory": f"/runs/{run}/train/{yard.iterations}/{key}/0/",
        "report": report,
        "submission": f"{report}submission/",
        "evaluations compared": f"/evaluations/compare/?{pair}",
        "no evaluations compared": "/evaluations/compare/",
        "task compared": f"/evaluations/compare/{key}/?{pair}",
        "trajectories": "/trajectories/?q=line",
        "no trajectories": "/trajectories/?q=nosuchword",
        "sandboxes": "/sandboxes/",
        "sandboxes of a run": f"/sandboxes/?run={run}",
        "endpoints": "/endpoints/",
        "models": "/models/",
        "endpoint": "/endpoints/?edit=hosted",
        "notifications": "/notifications/",
        "scanners": "/scanners/",
        "experiments": "/experiments/",
        "new experiment": "/experiments/new/",
        "experiment": f"/experiments/{yard.experiment.pk}/",
        "launch of an experiment": f"/experiments/{yard.experiment.pk}/launch/",
        "datasets": "/datasets/",
        "disk": "/disk/",
        "dataset": f"{dataset}/",
        "health": f"{dataset}/health/",
        "task": f"{dataset}/tasks/{key}/",
        "left out": "/datasets/left/left-out/",
        "left out, excluded": "/datasets/left/left-out/?kind=excluded",
        "import": "/imports/new/",
    }

"""Display texts of enumeration values, codes, record names and values of settings.

A value without an entry is displayed without its underscores. Pages use the filter ``words`` and the chips of
``templatetags/yard.py``; contexts use ``in_words``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from engine.events.failures import POLICIES
from engine.types import ENDING_WORDS

VERDICTS = {
    "test_timeout": "tests timed out", "patch_failed": "patch did not apply",
    "infra_error": "infrastructure failed",
}  # fmt: skip
"""Verdicts of grading."""
MASKS = {"infrastructure": "infrastructure failed"}
"""Reasons beside endings why a trajectory carries no loss."""
SIGNS = {
    "tests_edited": "tests edited", "configuration_edited": "test configuration edited",
    "installed_edited": "installed packages edited", "suspicious_code": "suspicious code",
    "forged_report": "forged test report", "git_history": "searched the git history",
    "network": "tried to use the network", "outside_workdir": "wrote outside of the repository",
    "hidden_tests": "searched for the hidden tests", "background_process": "left a background process",
    "counterfactual": "a mutated test passed",
}  # fmt: skip
"""Signs of tampering."""
COUNTERFACTUALS = {
    "confirmed": "mutated tests failed as expected", "caught": "mutated tests passed",
    "no_mutants": "no test can be mutated", "unproven": "mutated tests are not proven",
    "own_box": "tests ran in the agent's sandbox",
}  # fmt: skip
"""Results of audits with mutated tests."""
SELECTION_RULES = {
    "ef": "highest judge score", "eb": "most passed tests",
    "hybrid": "most passed tests among the judge's best", "shortest": "fewest steps",
    "majority": "most frequent patch", "oracle": "any resolved rollout",
}  # fmt: skip
"""Rules that select one rollout of a task."""
TESTS = {
    "fail_to_pass": "must start to pass", "pass_to_pass": "must keep passing",
    "xfail": "failed as expected", "xpass": "passed unexpectedly", "missing": "not reported",
}  # fmt: skip
"""Roles and outcomes of tests."""
HEALTH = {
    "noop_passes": "no-op passes", "gold_fails": "gold fails",
    "infra": "infrastructure failed",
}  # fmt: skip
"""Results of validating a row."""
KINDS = {
    "rollout": "rollouts", "train": "training", "improve": "self-improvement", "sft": "fine-tuning",
    "verifier": "verification", "evaluate": "evaluation", "curate": "curation", "validate": "validation",
    "import": "dataset import", "regrade": "regrading",
}  # fmt: skip
"""Kinds of runs."""
FLIPS = {
    "passed_failed": "passed → failed", "failed_passed": "failed → passed",
    "passed_tampered": "passed → tampered", "tampered_passed": "tampered → passed",
    "failed_tampered": "failed → tampered", "tampered_failed": "tampered → failed",
}  # fmt: skip
"""Changes of a verdict between two gradings of one patch."""
OBSTACLES = {
    "no_row": "no row of this task", "other_tree": "row starts from other files", "no_patch": "no patch",
    "environment": "judged by the environment", "own_sandbox": "tested in the agent's sandbox",
    "written_tests": "patch consists of tests", "ungradable": "row not gradable",
}  # fmt: skip
"""Reasons why a trajectory cannot be graded again."""
REJECTIONS = {
    "no_test": "no test file", "did_not_run": "did not run", "timed_out": "timed out",
    "passes": "passes on the untouched repository",
}  # fmt: skip
"""Reasons why a written test is not kept."""
ENGINES = {"publishing": "receiving weights"}
"""States of inference engines."""
ALERTS = {
    "run.relaunched": "Restarted", "run.failed": "Run failed",
    "infrastructure_rate": "Rollouts lost to infrastructure", "gradient_not_finite": "Gradient not finite",
    "unreadable_calls": "No readable tool call", "uniform_groups": "Groups without contrast",
    "entropy_low": "Entropy collapses",
    "entropy_high": "Entropy rises", "clip_fraction": "Many tokens clipped",
    "mismatch": "Sampler and trainer disagree", "not_batch_invariant": "Sampling depends on its batch",
    "response_length": "Responses grow", "reward_without_submission": "Reward without submission",
    "reward_with_edited_tests": "Reward rises with edits of tests",
    "reward_with_looked_into_history": "Reward rises with looks into history",
    "reward_with_retrieved_answer": "Reward rises with retrieved answers",
    "reward_with_tampered": "Reward rises with tampering",
    "rows_ungradable": "Rows not gradable",
    "rollout_limits": "Rollouts ended by limits", "rollouts_alike": "All rollouts ended alike",
    "nothing_trained": "Nothing trained", "machine_busy": "Machine busy", "memory": "Memory",
    "rows_rejected": "Rows rejected",
    "validation_infrastructure": "Rows not tested", "counterfactual_unproven": "Mutated tests not proven",
    "tampering_caught": "Tampering caught", "regrading_infrastructure": "New verdicts missing",
    "hardening_infrastructure": "Tasks not examined",
    "trajectories_dropped": "Trajectories not used", "verifier_scores_missing": "Scores missing",
    "verifier_source_lost": "Source run lost", "toxic_tests": "Toxic tests",
    "judge_of_other_splits": "Judge trained on evaluation tasks", "sandbox_image": "Sandbox image failing",
    "sandbox_pool_paused": "Sandboxes paused", "publication_failed": "Weights not published",
    "engine_left_out": "Engine left out", "engines_lost": "Engines lost",
    "engine_restarted": "Engine restarted", "store": "Run folder copy",
}  # fmt: skip
"""Titles of alerts by code."""
EVENTS = {
    "run_started": "attempt started", "run_planned": "planned", "run_progress": "progress",
    "run_paused": "paused", "run_resumed": "resumed", "run_finished": "ended",
    "trajectory_started": "rollout started", "trajectory_finished": "rollout ended",
    "trajectory_scored": "rollout scored", "trajectory_regraded": "rollout graded again",
    "step_finished": "step", "group_finished": "advantages", "trajectory_trained": "token trace",
    "group_admitted": "group admitted", "batch_selected": "batch selected", "task_validated": "row validated",
    "sandboxes_changed": "sandboxes", "pool_status": "sandbox pool", "engines_reported": "engines",
    "system_sampled": "machine use",
    "evaluation_finished": "evaluation ended", "tasks_selected": "tasks selected",
}  # fmt: skip
"""Types of events."""
WORDS: Mapping[str, str] = MappingProxyType(
    dict(ENDING_WORDS)
    | VERDICTS
    | MASKS
    | SIGNS
    | TESTS
    | HEALTH
    | REJECTIONS
    | FLIPS
    | ENGINES
    | ALERTS
    | EVENTS
)
"""Display texts of values with the same meaning everywhere; values of ``KINDS``, ``COUNTERFACTUALS``,
``OBSTACLES`` and ``FAILURES`` have other meanings elsewhere."""
FAILURES = MappingProxyType({kind: policy.name for kind, policy in POLICIES.items()})
"""Kinds of sandbox failures."""


def in_words(value: str, table: Mapping[str, str] = WORDS) -> str:
    """Return the display text of a value: its entry in ``table``, or the value without underscores."""
    return table.get(value) or value.replace("_", " ")


def count(value: float) -> str:
    """Return a number rounded to an integer, with grouped thousands: ``12 800``."""
    return f"{value:,.0f}".replace(",", "\u202f")


def duration(seconds: float) -> str:
    """Return a duration: ``0.42 s``, ``38 s``, ``4 min 05 s``, ``3 h 12 min``."""
    if seconds < 10:
        return f"{seconds:.2f}\u202fs"
    if seconds < 60:
        return f"{seconds:.0f}\u202fs"
    if seconds < 3600:
        return f"{int(seconds // 60)}\u202fmin {int(seconds % 60):02d}\u202fs"
    if seconds < 172_800:
        return f"{int(seconds // 3600)}\u202fh {int(seconds % 3600 // 60):02d}\u202fmin"
    return f"{int(seconds // 86_400)}\u202fd {int(seconds % 86_400 // 3600)}\u202fh"


def show(value: object) -> str:
    """Return a setting's value for people: lists with commas, objects as JSON, "–" for none, yes and no."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return ", ".join(show(item) for item in value) or "–"
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False) if value else "–"
    return str(value)

"""Events as sentences, for the events tab of a run.

To add a sentence, add an entry to ``_SENTENCES``. Payloads have the fields of ``engine.events``; events of
earlier versions may lack some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from webapp.core.contexts.frame import trajectory_url
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.contexts.words import OBSTACLES, in_words
from webapp.runs.models.events import Event

Payload = Mapping[str, Any]
_MOST_CHARS = 300


def event_words(run_id: int, event: Event) -> tuple[str, str]:
    """Return an event as a sentence, and the URL of its rollout (empty for events without a rollout)."""
    payload = event.payload
    sentence = _SENTENCES.get(event.type)
    text = sentence(payload) if sentence is not None else ""
    ref = payload.get("ref")
    if not isinstance(ref, dict):
        return _cut(text), ""
    rollout = f"{ref['phase']} {ref['iteration']} · {ref['task_id']} #{ref['index']}"
    source = whole(str(payload.get("source", run_id)), most=MOST_ID)
    url = ""
    if source is not None:
        url = trajectory_url(source, ref["phase"], ref["iteration"], ref["task_id"], ref["index"])
    return _cut(f"{rollout}: {text}" if text else rollout), url


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "–"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _because(reason: object) -> str:
    return f": {reason}" if reason else ""


def _run_started(payload: Payload) -> str:
    text = f"on {payload.get('host')}, process {payload.get('pid')}"
    if payload.get("resumed_from") is not None:
        text += f"; resumed after iteration {payload['resumed_from']}"
    if payload.get("rollouts_kept"):
        text += f"; {_counted(payload['rollouts_kept'], 'finished rollout')} kept"
    return text


def _progress(payload: Payload) -> str:
    share = f"{payload.get('done')} of {payload['total']}" if payload.get("total") else ""
    return ", ".join(part for part in (str(payload.get("message", "")), share) if part)


def _finished(payload: Payload) -> str:
    return f"{in_words(str(payload.get('state', '')))}{_because(payload.get('reason'))}"


def _selected(payload: Payload) -> str:
    chosen = f"{payload.get('num_selected')} of {payload.get('num_tasks')}"
    text = f"{chosen} {payload.get('split')} tasks of {payload.get('dataset')}"
    left_out = [
        f"{payload[name]} {label}"
        for name, label in (
            ("num_quarantined", "in quarantine"), ("num_outside", "outside the selected solve rates"),
            ("num_weak", "with weaker tests"),
            ("num_unmeasured", "without a measured solve rate"),
        )
        if payload.get(name)
    ]  # fmt: skip
    return f"{text}; {', '.join(left_out)}" if left_out else text


def _validated(payload: Payload) -> str:
    record = payload.get("record", {})
    status = in_words(str(record.get("status", "")))
    return f"{record.get('task_id')}: {status}{_because(record.get('reason'))}"


def _iteration_started(payload: Payload) -> str:
    tasks = _counted(len(payload.get("task_ids", ())), "task")
    return f"iteration {payload.get('iteration')}: {tasks}, policy version {payload.get('policy_version')}"


def _iteration_finished(payload: Payload) -> str:
    metrics = payload.get("metrics", {})
    labels = (("reward/mean", "mean reward"), ("loss/value", "loss"), ("loss/heldout", "evaluation loss"))
    values = [f"{label} {_number(metrics[name])}" for name, label in labels if name in metrics]
    version = f"policy version {payload.get('policy_version')}"
    return f"iteration {payload.get('iteration')}: {', '.join([*values, version])}"


def _step(payload: Payload) -> str:
    tool = payload.get("tool") or "no readable tool call"
    return f"step {payload.get('index')}, {tool}{_because(payload.get('error'))}"


def _ended(payload: Payload) -> str:
    parts = [in_words(str(payload.get("termination", "")))]
    parts += [in_words(payload["verdict"])] if payload.get("verdict") else []
    parts += [f"reward {_number(payload['reward'])}"] if payload.get("reward") is not None else []
    return ", ".join(parts) + _because(payload.get("error"))


def _group(payload: Payload) -> str:
    members = payload.get("members", ())
    trained = sum(bool(member.get("loss_mask")) for member in members)
    where = f"{payload.get('phase')} {payload.get('iteration')} · {payload.get('task_id')}"
    return f"{where}: {trained} of {_counted(len(members), 'rollout')} in the loss"


def _trained(payload: Payload) -> str:
    ref = payload.get("ref", {})
    where = f"{ref.get('phase')} {ref.get('iteration')} · {ref.get('task_id')} · rollout {ref.get('index')}"
    return f"{where}: tokens of the update of iteration {payload.get('iteration')} recorded"


def _admitted(payload: Payload) -> str:
    replaced = f", in place of {payload['replaces']}" if payload.get("replaces") else ""
    where = f"iteration {payload.get('iteration')} · {payload.get('task_id')}"
    return f"{where}, after {_counted(payload.get('updates', 0), 'update')}{replaced}"


def _batch(payload: Payload) -> str:
    discarded = len(payload.get("discarded", ()))
    left_out = f", {_counted(discarded, 'group')} discarded" if discarded else ""
    trained = _counted(len(payload.get("groups", ())), "group")
    return f"iteration {payload.get('iteration')} trains on {trained}{left_out}"


def _evaluated(payload: Payload) -> str:
    names = ("solve_rate", "interval_low", "interval_high")
    rate, low, high = (100 * payload.get(name, 0.0) for name in names)
    tasks = _counted(payload.get("num_tasks", 0), "task")
    where = f"{payload.get('name')} at iteration {payload.get('iteration')}"
    return f"{where}: {rate:.1f} % solved, 95 % [{low:.1f} %, {high:.1f} %] over {tasks}"


def _checkpoint(payload: Payload) -> str:
    return f"after iteration {payload.get('iteration')}, policy version {payload.get('policy_version')}"


def _scored(payload: Payload) -> str:
    score = payload.get("score", {})
    if score.get("error"):
        return f"no score: {score['error']}"
    if score.get("p_yes") is not None:
        return f"P(YES) {_number(score['p_yes'])}"
    kinds = [
        f"{score[f'{kind}_passes']} of {score.get(f'{kind}_tests')} {kind} tests pass"
        for kind in ("regression", "reproduction")
        if score.get(f"{kind}_passes") is not None
    ]
    return ", ".join(kinds)


def _examined(payload: Payload) -> str:
    test = payload.get("test", {})
    if test.get("rejection"):
        return f"not kept, {in_words(test['rejection'])}{_because(test.get('detail'))}"
    return f"kept; {test.get('good_passed')} of {test.get('good')} resolving candidates pass"


def _regraded(payload: Payload) -> str:
    record = payload.get("regrade", {})
    old = in_words(str(record.get("old_verdict", "")))
    if record.get("obstacle"):
        reason = in_words(str(record["obstacle"]), OBSTACLES)
        return f"{old}; not graded again: {reason}{_because(record.get('detail'))}"
    return f"{old}, now {in_words(str(record.get('verdict', '')))}{_because(record.get('detail'))}"


def _alert(payload: Payload) -> str:
    return f"{in_words(str(payload.get('code', '')))}: {payload.get('message')}"


def _sandboxes(payload: Payload) -> str:
    states = Counter(str(record.get("state")) for record in payload.get("records", ()))
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _pool(payload: Payload) -> str:
    paused = payload.get("paused_reason")
    counts = ", ".join(
        f"{payload.get(name, 0)} {name}" for name in ("wanted", "waiting", "starting", "live", "idle")
    )
    return f"{counts}; paused: {paused}" if paused else counts


def _engines(payload: Payload) -> str:
    states = Counter(in_words(str(replica.get("state"))) for replica in payload.get("replicas", ()))
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _system(payload: Payload) -> str:
    processors = payload.get("cpu_engine", 0.0) + payload.get("cpu_children", 0.0)
    memory = payload.get("memory_engine", 0) + payload.get("memory_children", 0)
    cores = _counted(payload.get("cores", 0), "core")
    return f"{processors:.1f} of {cores} and {memory / 1e9:.1f} GB of memory in use"


_SENTENCES: Mapping[str, Callable[[Payload], str]] = {
    "run_started": _run_started,
    "run_planned": lambda payload: _counted(payload.get("total_iterations", 0), "iteration"),
    "run_progress": _progress,
    "run_paused": lambda _: "nothing is in flight",
    "run_finished": _finished,
    "tasks_selected": _selected,
    "task_validated": _validated,
    "iteration_started": _iteration_started,
    "iteration_finished": _iteration_finished,
    "step_finished": _step,
    "trajectory_finished": _ended,
    "group_finished": _group,
    "trajectory_trained": _trained,
    "group_admitted": _admitted,
    "batch_selected": _batch,
    "evaluation_finished": _evaluated,
    "checkpoint_saved": _checkpoint,
    "trajectory_scored": _scored,
    "test_examined": _examined,
    "trajectory_regraded": _regraded,
    "alert": _alert,
    "sandboxes_changed": _sandboxes,
    "pool_status": _pool,
    "engines_reported": _engines,
    "system_sampled": _system,
}

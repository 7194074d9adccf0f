"""Events as sentences, for the tab of events.

To add one: an entry in ``_SENTENCES``. Payloads are those of ``engine.events``; ones of earlier versions may
lack fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from webapp.core.contexts.frame import trajectory_url
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.contexts.words import in_words
from webapp.runs.models.events import Event

Payload = Mapping[str, Any]
_MOST_CHARS = 300


def event_words(run_id: int, event: Event) -> tuple[str, str]:
    """Return an event as one sentence, and the address of the rollout it is about (or an empty text)."""
    payload = event.payload
    sentence = _SENTENCES.get(event.type)
    said = sentence(payload) if sentence is not None else ""
    ref = payload.get("ref")
    if not isinstance(ref, dict):
        return _cut(said), ""
    rollout = f"{ref['phase']} {ref['iteration']} · {ref['task_id']} #{ref['index']}"
    source = whole(str(payload.get("source", run_id)), most=MOST_ID)
    url = ""
    if source is not None:
        url = trajectory_url(source, ref["phase"], ref["iteration"], ref["task_id"], ref["index"])
    return _cut(f"{rollout}: {said}" if said else rollout), url


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "–"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _because(reason: object) -> str:
    return f": {reason}" if reason else ""


def _run_started(said: Payload) -> str:
    begin = f"on {said.get('host')}, process {said.get('pid')}"
    if said.get("resumed_from") is not None:
        begin += f"; resumed after iteration {said['resumed_from']}"
    if said.get("rollouts_kept"):
        begin += f"; {_counted(said['rollouts_kept'], 'finished rollout')} kept"
    return begin


def _progress(said: Payload) -> str:
    share = f"{said.get('done')} of {said['total']}" if said.get("total") else ""
    return ", ".join(part for part in (str(said.get("message", "")), share) if part)


def _finished(said: Payload) -> str:
    return f"{in_words(str(said.get('state', '')))}{_because(said.get('reason'))}"


def _selected(said: Payload) -> str:
    chosen = f"{said.get('num_selected')} of {said.get('num_tasks')}"
    text = f"{chosen} {said.get('split')} tasks of {said.get('dataset')}"
    left = [
        f"{said[name]} {label}"
        for name, label in (
            ("num_quarantined", "in quarantine"), ("num_outside", "outside of the wanted solve rates"),
            ("num_unmeasured", "without a measured solve rate"),
        )
        if said.get(name)
    ]  # fmt: skip
    return f"{text}; {', '.join(left)}" if left else text


def _validated(said: Payload) -> str:
    found = said.get("record", {})
    return f"{found.get('task_id')}: {in_words(str(found.get('status', '')))}{_because(found.get('reason'))}"


def _iteration_started(said: Payload) -> str:
    tasks = _counted(len(said.get("task_ids", ())), "task")
    return f"iteration {said.get('iteration')}: {tasks}, policy version {said.get('policy_version')}"


def _iteration_finished(said: Payload) -> str:
    metrics = said.get("metrics", {})
    named = (("reward/mean", "mean reward"), ("loss/value", "loss"), ("loss/heldout", "evaluation loss"))
    found = [f"{label} {_number(metrics[name])}" for name, label in named if name in metrics]
    version = f"policy version {said.get('policy_version')}"
    return f"iteration {said.get('iteration')}: {', '.join([*found, version])}"


def _step(said: Payload) -> str:
    tool = said.get("tool") or "no readable tool call"
    return f"step {said.get('index')}, {tool}{_because(said.get('error'))}"


def _ended(said: Payload) -> str:
    parts = [in_words(str(said.get("termination", "")))]
    parts += [in_words(said["verdict"])] if said.get("verdict") else []
    parts += [f"reward {_number(said['reward'])}"] if said.get("reward") is not None else []
    return ", ".join(parts) + _because(said.get("error"))


def _group(said: Payload) -> str:
    members = said.get("members", ())
    trained = sum(bool(member.get("loss_mask")) for member in members)
    where = f"{said.get('phase')} {said.get('iteration')} · {said.get('task_id')}"
    return f"{where}: {trained} of {_counted(len(members), 'rollout')} in the loss"


def _admitted(said: Payload) -> str:
    replaced = f", in place of {said['replaces']}" if said.get("replaces") else ""
    where = f"iteration {said.get('iteration')} · {said.get('task_id')}"
    return f"{where}, after {_counted(said.get('updates', 0), 'update')}{replaced}"


def _batch(said: Payload) -> str:
    discarded = len(said.get("discarded", ()))
    left_out = f", {_counted(discarded, 'group')} discarded" if discarded else ""
    trained = _counted(len(said.get("groups", ())), "group")
    return f"iteration {said.get('iteration')} trains on {trained}{left_out}"


def _evaluated(said: Payload) -> str:
    rate, low, high = (100 * said.get(name, 0.0) for name in ("solve_rate", "interval_low", "interval_high"))
    tasks = _counted(said.get("num_tasks", 0), "task")
    where = f"{said.get('name')} at iteration {said.get('iteration')}"
    return f"{where}: {rate:.1f} % solved, 95 % [{low:.1f} %, {high:.1f} %] over {tasks}"


def _checkpoint(said: Payload) -> str:
    return f"after iteration {said.get('iteration')}, policy version {said.get('policy_version')}"


def _scored(said: Payload) -> str:
    score = said.get("score", {})
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


def _examined(said: Payload) -> str:
    test = said.get("test", {})
    if test.get("rejection"):
        return f"not kept, {in_words(test['rejection'])}{_because(test.get('detail'))}"
    return f"kept; {test.get('good_passed')} of {test.get('good')} resolving candidates pass"


def _alert(said: Payload) -> str:
    return f"{in_words(str(said.get('code', '')))}: {said.get('message')}"


def _sandboxes(said: Payload) -> str:
    states = Counter(str(record.get("state")) for record in said.get("records", ()))
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _pool(said: Payload) -> str:
    paused = said.get("paused_reason")
    counts = ", ".join(
        f"{said.get(name, 0)} {name}" for name in ("wanted", "waiting", "starting", "live", "idle")
    )
    return f"{counts}; paused: {paused}" if paused else counts


def _engines(said: Payload) -> str:
    states = Counter(in_words(str(replica.get("state"))) for replica in said.get("replicas", ()))
    return ", ".join(f"{count} {state}" for state, count in states.items())


_SENTENCES: Mapping[str, Callable[[Payload], str]] = {
    "run_started": _run_started,
    "run_planned": lambda said: _counted(said.get("total_iterations", 0), "iteration"),
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
    "group_admitted": _admitted,
    "batch_selected": _batch,
    "evaluation_finished": _evaluated,
    "checkpoint_saved": _checkpoint,
    "trajectory_scored": _scored,
    "test_examined": _examined,
    "alert": _alert,
    "sandboxes_changed": _sandboxes,
    "pool_status": _pool,
    "engines_reported": _engines,
}

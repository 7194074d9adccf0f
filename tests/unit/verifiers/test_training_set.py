"""Training sets of judges: balanced, reproducible, shortened like the judge's own prompts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.models.loader import open_model
from engine.verifiers.execution_free.training_set import (
    ExampleFormat,
    Labelled,
    choose,
    examples,
    write_examples,
)
from tests.unit.verifiers.builders import make_transcript, make_turn


def labelled(
    number: int, task: str, resolved: bool, *, submitted: bool = True, origin: str = "on_policy"
) -> Labelled:
    word = "right" if resolved else "wrong"
    return Labelled(
        key=f"r/{task}/{number}",
        task_id=task,
        instance_id=task,
        origin=origin,
        transcript=make_transcript(make_turn(number), patch=f"+ {word}\n" * 40),
        resolved=resolved,
        submitted=submitted,
    )


TABLE = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.booleans(), st.booleans(), st.sampled_from(["on_policy", "off_policy"])
    ),
    max_size=30,
)


@given(TABLE, st.integers(0, 3), st.integers(1, 3), st.integers(0, 5))
def test_every_origin_has_as_many_resolved_as_unresolved_examples(
    table: list[tuple[str, bool, bool, str]], extra: int, per_task: int, seed: int
) -> None:
    candidates = [
        labelled(number, task, resolved, submitted=submitted, origin=origin)
        for number, (task, resolved, submitted, origin) in enumerate(table)
    ]
    pairs = choose(candidates, seed=seed, per_task=per_task, extra=extra)
    assert pairs == choose(reversed(candidates), seed=seed, per_task=per_task, extra=extra)
    assert all(first.resolved != other.resolved and first.origin == other.origin for first, other in pairs)
    chosen = [example for pair in pairs for example in pair]
    assert len({example.key for example in chosen}) == len(chosen)
    counts = Counter((example.origin, example.resolved) for example in chosen)
    for origin in ("on_policy", "off_policy"):
        assert counts[origin, True] == counts[origin, False]
        tasks = {task for task, *_ in table}
        outcomes = [Counter(row[1] for row in table if row[0] == task and row[3] == origin) for task in tasks]
        pairs_of = [min(per_task, counter[True], counter[False]) for counter in outcomes]
        single = [sum(set(counter) == {outcome} for counter in outcomes) for outcome in (True, False)]
        assert counts[origin, True] == sum(pairs_of) + min(extra, *single)
    taken = Counter((example.origin, example.task_id, example.resolved) for example in chosen)
    assert max(taken.values(), default=1) <= per_task


def test_submitted_trajectories_are_preferred() -> None:
    candidates = [labelled(n, "a", True, submitted=n == 7) for n in range(10)]
    candidates += [labelled(n, "a", False, submitted=False) for n in range(10, 20)]
    for seed in range(5):
        (pair,) = choose(candidates, seed=seed)
        assert [example.key for example in pair if example.resolved] == ["r/a/7"]


def test_examples_end_with_the_right_judgement_and_fit(tmp_path: Path) -> None:
    opened = open_model("fresh:tiny", home=tmp_path)
    chat = opened.chat().without_thinking()
    long = labelled(0, "a", True)
    long = Labelled(
        key=long.key, task_id="a", instance_id="a", origin="on_policy", resolved=True,
        transcript=make_transcript(*(make_turn(n, thought="why " * 300) for n in range(5))),
    )  # fmt: skip
    hopeless = Labelled(
        key="r/a/2", task_id="a", instance_id="a", origin="on_policy", resolved=False,
        transcript=make_transcript(patch="+ line\n" * 3000),
    )  # fmt: skip
    dropped: list[str] = []
    result = list(
        examples(
            [(long, labelled(1, "a", False)), (labelled(3, "a", True), hopeless)],
            ExampleFormat(
                limit=1200,
                prompt_tokens=lambda messages: len(chat.open(messages)),
                text_tokens=lambda text: len(chat.tokenizer.encode(text)),
            ),
            too_long=dropped,
        )
    )
    assert dropped == ["r/a/3", "r/a/2"], "a trajectory is not kept without its partner"
    assert [example.messages[-1]["content"] for example in result] == [
        "<judgement>YES</judgement>",
        "<judgement>NO</judgement>",
    ]
    assert result[0].shortened > 0
    assert all(len(chat.open(example.messages[:-1])) <= 1200 for example in result)
    assert write_examples(tmp_path / "set.jsonl", result) == 2
    lines = [json.loads(line) for line in (tmp_path / "set.jsonl").read_text().splitlines()]
    assert [line["trajectory"] for line in lines] == ["r/a/0", "r/a/1"]
    assert [message["role"] for message in lines[0]["messages"]] == ["system", "user", "assistant"]

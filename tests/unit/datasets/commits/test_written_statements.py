"""Statements written and judged by models behind a local endpoint; hostile answers."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine.config.curation import CommitCuration
from engine.datasets.cached_model import NoAnswerError
from engine.datasets.commits.statements import Statement, failing_tests
from engine.datasets.commits.written_statements import NoStatementError, find_statement
from engine.errors import ConfigError, ContextLengthError, SpendLimitError
from engine.models.builtin.architectures import SHIPPED
from tests.builders.curation_models import READY, endpoint_config, opened_models
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server
from tests.unit.datasets.commits.test_commit_statements import TESTS, TRIAL, candidate

GOLD = ("pkg/m.py", "def f():\n    return 1\n", "def f():\n    return compute(left, right, mode='fast')\n")
ISSUE = """f() returns 1

Calling `f()` from `pkg.m` returns 1. I expected 2, as the documentation says: `f()` must be 2 by default."""
COPIED = "If a template does not end with a newline, its last line is missing:"
GOOD = Reply(content=f"<b>Sure!</b> [ISSUE]\n{ISSUE}\n[/ISSUE] Anything else?")
LEAKING = Reply(content=f"[ISSUE]{ISSUE}\nUse compute( left, right, mode = 'fast' ) instead.[/ISSUE]")
CLEAR = Reply(content="LEAKS: NO\nREASON: Only behaviour.\nSPECIFIED: YES\nREASON: It names the value.\n")
UNCLEAR = Reply(content="LEAKS: NO\nREASON: Fine.\nSPECIFIED: NO\nREASON: The value is missing.")
JUDGED_LEAK = Reply(content="LEAKS: YES\nREASON: It names compute.\nSPECIFIED: YES\nREASON: Clear.")


async def state(
    home: Path, server: OpenAIServer, *, judge: OpenAIServer | None = None, **settings: Any
) -> Statement:
    values: dict[str, Any] = {"writing": settings.pop("writing", {})}
    code = settings.pop("code", GOLD)
    if settings.pop("with_writer", True):
        values["writer"] = endpoint_config(server, **settings)
    if judge is not None:
        values["judge"] = endpoint_config(judge)
    config = CommitCuration.model_validate({"repositories": ("repo",), "output": "out", **values})
    async with opened_models(home, config) as (writer, reader):
        return await find_statement(candidate(code=code), TRIAL, writer=writer, judge=reader, seed=0)


async def test_a_written_statement_is_kept_and_its_model_not_asked_again(tmp_path: Path) -> None:
    with openai_server([READY, GOOD]) as server:
        statement = await state(tmp_path, server)
        assert await state(tmp_path, server, spend_limit=9, input_price=1, output_price=1) == statement
        assert len(server.requests) == 3  # two checks and one question
        await state(tmp_path, server, temperature=0.5)
        assert len(server.requests) == 5
    assert (statement.text, statement.method) == (ISSUE, "written")
    assert statement.record == {"method": "written", "model": "m", "leak_check": "passed"}
    question = server.requests[1]["messages"][-1]["content"]
    assert "compute(left, right, mode='fast')" in question
    assert "assert f() == helper(LIMIT)" in question
    assert "AssertionError: assert 1 == 2" in question


async def test_a_leak_is_named_to_the_writer_and_recorded(tmp_path: Path) -> None:
    with openai_server([READY, LEAKING, GOOD]) as server:
        statement = await state(tmp_path, server)
    assert statement.text == ISSUE
    assert [item["result"] for item in statement.record["rejected"]] == ["leaks"]
    assert "rejected (leaks): code of the fix: " in server.requests[2]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("answer", "result", "detail"),
    [
        (Reply(content="x" * 100), "form", "no [ISSUE]"),
        (Reply(content=f"[ISSUE]{ISSUE}\x1b[31m[/ISSUE]"), "form", "control characters"),
        (Reply(content=f"[ISSUE]{ISSUE} This commit mends it.[/ISSUE]"), "form", "of the fix: This commit"),
        (Reply(content="[ISSUE]\n" + "word " * 30), "form", "no description"),
        (Reply(content=f"[ISSUE]{ISSUE}\n{COPIED}[/ISSUE]"), "form", "copies the example"),
        (Reply(content="[ISSUE]It fails\n\n" + "I do not like it. " * 9), "form", "names neither what"),
        (Reply(content="[ISSUE]" + "a b\n" * 3000), "form", "expected 80 to 6000"),
        (Reply(content=f"[ISSUE]{ISSUE}\nSee test_value.[/ISSUE]"), "leaks", "hidden test test_value"),
        (Reply(content="[ISSUE]" + "a\n" * 30_000), "no_answer", "longer than 40000"),
        (Reply(content=ISSUE, finish_reason="length"), "no_answer", "cut off at 4096 tokens"),
        (Reply(content={"text": ISSUE}), "form", "no [ISSUE]"),
        (Reply(raw=b"\xff\x00 no JSON"), "no_answer", "no answer"),
        (Reply(endless=b" " * (1 << 20)), "no_answer", "no answer"),
        (Reply(hang="before"), "no_answer", "no answer within 0.2 s"),
        (Reply(status=500, error={"message": "broken"}), "no_answer", "broken"),
    ],
)  # fmt: skip
async def test_unusable_answers_end_in_the_template(
    tmp_path: Path, answer: Reply, result: str, detail: str
) -> None:
    limits = {"attempts": 2, **({"timeout_s": 0.2} if answer.hang else {})}
    with openai_server([READY, answer]) as server:
        statement = await state(tmp_path, server, writing=limits)
    assert statement.method == "template"
    assert [item["result"] for item in statement.record["rejected"]] == [result, result]
    assert detail in statement.record["rejected"][0]["detail"]
    assert all(len(item["detail"]) <= 500 for item in statement.record["rejected"])


async def test_a_refused_prompt_is_shortened(tmp_path: Path) -> None:
    refusal = Reply(status=400, error={"message": "Input is too long for requested model."})

    def script(body: dict[str, Any], number: int) -> Reply:
        return GOOD if number and len(str(body["messages"])) < 2000 else READY if not number else refusal

    with openai_server(script) as server:
        code = (GOLD[0], GOLD[1], GOLD[2] + "".join(f"x{number} = {number}\n" for number in range(150)))
        statement = await state(
            tmp_path, server, code=code, writing={"max_context": 2048, "max_response": 1024}
        )
    assert statement.text == ISSUE
    lengths = [len(str(request["messages"])) for request in server.requests[1:]]
    assert 3 * 1024 > lengths[0] > 2000 > lengths[-1]
    assert lengths == sorted(lengths, reverse=True)


async def test_the_judge_may_reject_leaks_and_unspecified_behaviour(tmp_path: Path) -> None:
    other = Reply(content=f"[ISSUE]{ISSUE} Please.[/ISSUE]")
    third = Reply(content=f"[ISSUE]{ISSUE} Thanks.[/ISSUE]")
    with (
        openai_server([READY, GOOD, other, third]) as server,
        openai_server([READY, JUDGED_LEAK, UNCLEAR, CLEAR]) as judge,
    ):
        statement = await state(tmp_path, server, judge=judge)
    assert statement.text.endswith("Thanks.")
    assert statement.record["rejected"] == [
        {"result": "leaks", "detail": "It names compute."},
        {"result": "unclear", "detail": "The value is missing."},
    ]
    assert statement.record["judge"] == {
        "model": "m", "leaks": False, "leaks_reason": "Only behaviour.", "specified": True,
        "specified_reason": "It names the value.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (UNCLEAR, "unclear"),
        (JUDGED_LEAK, "leaks"),
        (Reply(content=JUDGED_LEAK.content.replace("It names", "x" * 400)), "leaks"),
        (Reply(content=JUDGED_LEAK.content.replace("YES", "Yes")), "leaks"),
        (Reply(content=UNCLEAR.content.lower().replace("\n", "\r\n")), "unclear"),
    ],
)
async def test_a_template_that_the_judge_rejects_loses_the_commit(
    tmp_path: Path, answer: Reply, reason: str
) -> None:
    with openai_server([READY, answer]) as judge, pytest.raises(NoStatementError) as raised:
        await state(tmp_path, judge, judge=judge, with_writer=False)
    assert raised.value.reason == reason
    assert 0 < len(raised.value.detail) <= 300


@pytest.mark.parametrize(
    "answer",
    [
        Reply(content="LEAKS: NO\nSPECIFIED: NO"),
        Reply(content=f"{UNCLEAR.content}\nLEAKS: NO"),
        Reply(content=UNCLEAR.content.replace("The value", "\n")),
        Reply(content="LEAKS: NO\nREASON: x" + " " * 39_000),
        Reply(content=None),
        Reply(status=503, error={"message": "busy"}, headers={"Retry-After": "0"}),
    ],
)
async def test_an_unreadable_judgement_is_none_and_recorded(tmp_path: Path, answer: Reply) -> None:
    with openai_server([READY, answer]) as judge:
        statement = await state(tmp_path, judge, judge=judge, with_writer=False)
    assert statement.method == "template"
    assert set(statement.record["judge"]) == {"model", "problem"}
    assert len(statement.record["judge"]["problem"]) <= 300


async def test_the_spend_limit_ends_the_curation(tmp_path: Path) -> None:
    prices: dict[str, Any] = {"input_price": 1000.0, "output_price": 1000.0, "spend_limit": 0.2}
    with openai_server([READY, LEAKING]) as server, pytest.raises(SpendLimitError):
        await state(tmp_path, server, **prices)
    assert (tmp_path / "writer" / "spending.json").exists()


async def test_a_context_beyond_the_models_own_is_refused(tmp_path: Path) -> None:
    with openai_server([READY]) as server:
        server.models = [{"id": "m", "max_model_len": 4096}]
        with pytest.raises(ConfigError, match="curation.writing.max_context.*16384.*4096"):
            await state(tmp_path, server)


async def test_a_checkpoint_answers_like_an_endpoint(tmp_path: Path) -> None:
    values = {
        "writer": {"type": "transformer", "checkpoint": "fresh:tiny"},
        "writing": {"max_context": 2048, "max_response": 64, "attempts": 1},
    }
    config = CommitCuration.model_validate({"repositories": ("repo",), "output": "out", **values})
    async with opened_models(tmp_path, config) as (writer, judge):
        assert (writer is not None, judge) == (True, None)
        assert writer is not None
        prompt = [{"role": "user", "content": "Write."}]
        answer = await writer.model.answer(prompt, max_tokens=8, seed=3)
        assert await writer.model.answer(prompt, max_tokens=8, seed=3) == answer
        assert not answer.stopped
        assert writer.model.spent == 0
        assert writer.weights == ""
        with pytest.raises(ContextLengthError):
            await writer.model.answer([{"role": "user", "content": "a b " * 2000}], max_tokens=8, seed=3)


async def test_new_weights_of_a_checkpoint_are_asked_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED / "quickstart", folder)
    values = {
        "writer": {"type": "transformer", "checkpoint": str(folder)},
        "writing": {"max_context": 2048, "max_response": 64},
    }
    config = CommitCuration.model_validate({"repositories": ("repo",), "output": "out", **values})
    prompt = [{"role": "user", "content": "Write."}]
    for answers, is_new in ((1, False), (1, True), (2, False)):
        async with opened_models(tmp_path, config) as (writer, _):
            assert writer is not None
            with suppress(NoAnswerError):  # cut off
                await writer.ask(lambda _: prompt, seed=0)
        assert len(list((tmp_path / "model-answers").glob("*/*"))) == answers
        if is_new:
            (folder / "model.safetensors").touch()


def test_the_code_of_failing_tests_is_read_to_the_letter() -> None:
    trial = TRIAL.model_copy(
        update={"fail_to_pass": ("tests/test_m.py::test_value[1]", "tests/test_m.py::test_value[2]", "x::y")}
    )
    assert failing_tests(candidate(), trial) == (
        'def test_value():\n    """Check the value."""\n    assert f() == helper(LIMIT)'
    )
    generated = TRIAL.model_copy(update={"fail_to_pass": ("tests/test_m.py::Case::test_made",)})
    assert failing_tests(candidate(), generated) == TESTS

"""Hostile logs and reports: reading them is isolated, limited and off the event loop."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import isolation
from engine.config.rollout import GradingConfig
from engine.errors import DatasetError, HostileInputError
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import judge
from engine.grading.logs.parsers import find_parser, parse_log
from engine.grading.rules.reward_file import parse_rewards
from engine.isolation import run_isolated
from engine.testing.markers import END, START
from engine.testing.testrun import Record, parse_junit, read_record
from engine.types import GradeRule, TaskAnswer, TaskRow, TestOutcome
from tests.builders.rollout_builders import make_row

TEST = "test_a.py::test_x"


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "LOG_LIMITS", replace(isolation.LOG_LIMITS, cpu_s=1.0))


def graded_by_log(parser: str, **task: Any) -> TaskRow:
    answer = TaskAnswer(gold_patch="", fail_to_pass=(TEST,), log_parser=parser)
    row = make_row()
    return replace(row, task=replace(row.task, **task), answer=answer)


def evidence(log: str, **more: Any) -> Evidence:
    judged = f"{START}\n{log}\n{END}\n>>>>> Test Exit Code: 0\n"
    return Evidence(log=judged, judged=judged, shown=log, exit_code=0, **more)


async def judged(parser: str, log: str, **more: Any) -> Judgement:
    return await judge(graded_by_log(parser), evidence(log, **more), GradingConfig())


async def test_isolated_calls_return_and_raise_like_local_calls() -> None:
    assert await run_isolated(os.getpid) != os.getpid()
    with pytest.raises(DatasetError, match="no log parser 'x'"):
        await run_isolated(partial(find_parser, "x"))
    with pytest.raises(HostileInputError, match="ValueError: could not convert"):
        await run_isolated(partial(parse_rewards, "reward.txt", "much"))


@pytest.mark.usefixtures("short_limit")
async def test_isolated_calls_are_limited_in_time_and_memory_and_recover() -> None:
    with pytest.raises(HostileInputError, match="more than 1 s of processor time"):
        await run_isolated(partial(re.match, r"(a+)+$", "a" * 60 + "b"))
    with pytest.raises(HostileInputError, match="MemoryError"):
        await run_isolated(partial(bytes, 8 << 30))
    assert await run_isolated(partial(len, "abc")) == 3


async def test_each_isolated_call_has_its_own_limits() -> None:
    smaller = replace(isolation.LOG_LIMITS, memory_bytes=512 << 20)
    for limits in (isolation.LOG_LIMITS, smaller) * 2:
        soft_limit, _ = await run_isolated(partial(resource.getrlimit, resource.RLIMIT_AS), limits)
        assert soft_limit == limits.memory_bytes


def test_the_isolated_process_ends_with_its_killed_parent() -> None:
    code = (
        "import asyncio, os, signal; from engine.isolation import run_isolated;"
        "print(asyncio.run(run_isolated(os.getpid)), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = Path("/proc", done.stdout.strip())
    assert done.stdout.strip()
    give_up = time.monotonic() + 120
    while child.exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.usefixtures("short_limit")
async def test_a_log_that_exceeds_the_time_limit_of_its_parser_fails() -> None:
    """The published patterns take quadratic time; this process stays idle and its event loop free."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    others = asyncio.create_task(turn())
    started = time.process_time()
    result = await judged("parse_log_sympy", "cp " * 66_000)
    cpu_s = time.process_time() - started
    others.cancel()
    assert (result.passed, result.signs) == (False, ())
    assert "1 s of processor time" in result.detail
    assert [test.outcome for test in result.tests] == [TestOutcome.MISSING]
    assert cpu_s < isolation.LOG_LIMITS.cpu_s / 2
    assert turns > 10


async def test_lines_ended_by_carriage_returns_need_the_record_too() -> None:
    """A lone carriage return ends a line for swebench; splitting only at newlines would miss the claim."""
    result = await judged("parse_log_pytest", f"x\rPASSED {TEST}\r", record_wanted=True)
    assert result.signs
    recorded = Record(exit_status=0, altered=(), outcomes={TEST: "PASSED"})
    assert (
        await judged("parse_log_pytest", f"x\rPASSED {TEST}\r", record_wanted=True, record=recorded)
    ).passed


@pytest.mark.parametrize(
    ("parser", "task", "log"),
    [
        ("parse_log_jekyll", {"instance_id": "jekyll__jekyll-9141"}, f"{TEST}. = 0.1 s = ."),
        ("parse_log_immutable_js", {"instance_id": "immutable-js__immutable-js-2006"}, f"✓ {TEST} (1 ms)"),
        ("parse_log_lighthouse", {"metadata": {"version": "9.5"}}, f"running 1 test files\n✔ {TEST} (1ms)"),
    ],
)
async def test_parsers_receive_the_instance_and_version(parser: str, task: dict[str, Any], log: str) -> None:
    """These parsers cannot read the log of another instance."""
    assert (await judge(graded_by_log(parser, **task), evidence(log), GradingConfig())).passed
    other = await judge(
        graded_by_log(parser, instance_id="x-1", metadata={"version": "4"}), evidence(log), GradingConfig()
    )
    assert not other.passed


async def test_hostile_reward_files_and_json_logs_do_not_crash() -> None:
    answer = TaskAnswer(gold_patch="", grade_rule=GradeRule.REWARD_FILE)
    rewards = {"a": 1.7e308, "b": 1.7e308}
    result = await judge(replace(make_row(), answer=answer), Evidence(rewards=rewards), GradingConfig())
    assert not result.passed
    for text, message in (
        ("[" * 100_000, "recursion"), ("9" * 400, "too large"), ('{"a": ' + "9" * 400 + "}", "too large"),
        ("9" * 5000, "4300 digits"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            parse_rewards("reward.json", text)
    assert parse_log("swe_bench_pro", '{"tests": ' + "[" * 100_000 + "}") == {}


ENTITIES = '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><s>&b;</s>'


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (ENTITIES, "it declares entities"), ("<s>", "no element found"), ("", "no element found"),
        ("\0", "no JUnit report"), ("<s>" * 10, "no element found"), ('<testcase time="x"/>', "to float"),
    ],
)  # fmt: skip
def test_malformed_junit_reports_are_refused(xml: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_junit(xml)


def test_junit_reports_may_declare_an_encoding_and_quote_html() -> None:
    head, quoted = '<?xml version="1.0" encoding="latin-1"?>', "<![CDATA[<!DOCTYPE html>]]>"
    page = f'{head}<s><testcase name="ü">{quoted}</testcase></s>'
    assert list(parse_junit(page)) == [("", "ü")]
    assert list(parse_junit(page.encode("latin-1"))) == [("", "ü")]


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.parametrize(
    "work",
    [
        lambda n: read_record(b"0\n" + b"\n".join(b"PASSED t.py::test[%d]" % i for i in range(n))),
        lambda n: parse_junit("<s>" + '<testcase name="a"><b/></testcase>' * n + "</s>"),
        lambda n: parse_junit(f"<s>{'<a>' * n}{'</a>' * n}</s>"),
    ],
)
def test_records_and_junit_reports_are_read_in_linear_time(work: Callable[[int], object]) -> None:
    few, many = cpu_seconds(lambda: work(20_000)), cpu_seconds(lambda: work(160_000))
    assert many < 40 * few


def test_malformed_records_are_refused() -> None:
    for payload, message in (
        (b"", "invalid literal"), (b"x\nPASSED a", "invalid literal"), (b"0\nPASSED \\x", "unicodeescape"),
        (b"0\nMISSING a", "not a line of a record"), (b"0\n\xff a", "not a line of a record"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            read_record(payload)
    assert read_record(b"1\nALTERED pytest\nCHANGED LIMIT\nERROR a\\nb") == Record(
        exit_status=1, altered=("pytest",), changed=("LIMIT",), outcomes={"a\nb": "ERROR"}
    )

"""Shipped scanners on sequences of steps, by Trainyard's tools and as R2E-Gym's files record them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.trajectories_r2e import parse_action
from engine.scanners import rules
from engine.scanners.rules import RULES
from engine.scanners.trajectory import ScannedStep, ScannedTrajectory, read_step

Make = Callable[..., ScannedStep]
PASSED, FAILED = "===== 3 passed in 0.1s =====", "===== 1 failed, 2 passed in 0.1s ====="


def own_tools(
    index: int, action: tuple[str, dict[str, str]], output: str, code: int, thought: str
) -> ScannedStep:
    """Return a step as Trainyard's agent records it."""
    tool, arguments = action
    if tool == "bash":
        tool, arguments = "execute_bash", {"cmd": arguments["command"]}
        return read_step(
            index=index, tool=tool, arguments=arguments, thought=thought, exit_code=code,
            observation=f"Exit code: {code}\nOutput of [execute_bash]:\n{output}",
        )  # fmt: skip
    tool = "file_editor" if tool == "editor" else "finish"
    return read_step(
        index=index, tool=tool, arguments=arguments, thought=thought, observation=output,
        error=output if code else "",
    )  # fmt: skip


def r2e_file(
    index: int, action: tuple[str, dict[str, str]], output: str, code: int, thought: str
) -> ScannedStep:
    """Return a step as the importer reads it from R2E-Gym's XML actions."""
    tool, arguments = action
    name = {"bash": "execute_bash", "editor": "str_replace_editor", "finish": "submit"}[tool]
    parameters = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in arguments.items())
    call, error = parse_action(f"<function={name}>\n{parameters}</function>")
    assert call is not None
    status = f"Error: Exit code {code}" if code else "0"
    frame = f"Exit code: {status}\n" if tool == "bash" else ""
    refused = "ERROR: " if code and tool == "editor" else ""
    observation = f"{frame}Execution output of [{name}]:\n{refused}{output}"
    return read_step(
        index=index,
        tool=call.name,
        arguments=call.arguments,
        thought=thought,
        observation=observation,
        error=error,
    )


def bash(command: str, output: str = "", code: int = 0, thought: str = "") -> tuple[Any, ...]:
    return ("bash", {"command": command}), output, code, thought


def view(path: str) -> tuple[Any, ...]:
    return ("editor", {"command": "view", "path": f"/testbed/{path}"}), "1  x = 1", 0, ""


def replace(path: str, code: int = 0) -> tuple[Any, ...]:
    arguments = {"command": "str_replace", "path": f"/testbed/{path}", "old_str": "1", "new_str": "2"}
    return ("editor", arguments), "The file was edited.", code, ""


def create(path: str, text: str = "print(1)") -> tuple[Any, ...]:
    return ("editor", {"command": "create", "path": f"/testbed/{path}", "file_text": text}), "Created.", 0, ""


def submit(thought: str = "") -> tuple[Any, ...]:
    return ("finish", {}), "", 0, thought


def scanned(make: Make, *steps: tuple[Any, ...], **fields: Any) -> ScannedTrajectory:
    return ScannedTrajectory([make(index, *step) for index, step in enumerate(steps)], **fields)


def hits(name: str, trajectory: ScannedTrajectory) -> list[int | None]:
    return [hit.step for hit in RULES[name].scan(trajectory)]


@pytest.fixture(params=[own_tools, r2e_file])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


def test_runs_of_the_projects_tests_are_found(make: Make) -> None:
    commands = (
        "cd /testbed && python -m pytest tests/test_a.py -q", "PYTHONPATH=. timeout 60 pytest",
        "./tests/runtests.py x", "python tests/runtests.py admin", "npm run test", "go test ./...",
        "python manage.py test app", "coverage run -m pytest", "python -m unittest discover | tail -5",
        "make test",
    )  # fmt: skip
    others = (
        "pytest --version", "grep -rn 'pytest tests' .", "# pytest", "echo pytest; ls tests/test_a.py",
        "cat > notes.txt <<'EOF'\npytest tests\nEOF", "python setup.py install", "pip install pytest",
    )  # fmt: skip
    trajectory = scanned(make, *(bash(command) for command in (*commands, *others)))
    assert hits("ran_project_tests", trajectory) == list(range(len(commands)))
    own = scanned(
        make,
        create("test_mine.py"),
        bash("python -m pytest test_mine.py::test_a -q"),
        bash("python test_mine.py"),
    )
    assert hits("ran_project_tests", own) == []


def test_a_reproduction_is_written_and_run_before_the_fix(make: Make) -> None:
    run = bash("cd /testbed && python repro.py", code=1)
    assert hits("wrote_reproduction", scanned(make, create("repro.py"), run, replace("a.py"))) == [1]
    heredoc = bash("cat > /testbed/repro.py <<EOF\nimport a\nEOF\npython /testbed/repro.py")
    assert hits("wrote_reproduction", scanned(make, heredoc, replace("a.py"))) == [0]
    assert (
        hits(
            "wrote_reproduction", scanned(make, replace("a.py"), create("check.py"), bash("python check.py"))
        )
        == []
    )
    assert hits("wrote_reproduction", scanned(make, create("repro.py"), replace("a.py"), run)) == []
    others = (
        "cat repro.py",
        "rm repro.py",
        "python a.py > repro.py",
        "git add repro.py",
        "python -c 1 repro.py",
    )
    steps = (bash("cat > repro.py <<EOF\nimport a\nEOF"), *map(bash, others))
    assert hits("wrote_reproduction", scanned(make, *steps, bash("timeout 9 python -W ignore repro.py"))) == [
        6
    ]
    assert hits("wrote_reproduction", scanned(make, create("r.sh"), bash("chmod +x r.sh && ./r.sh"))) == [1]


def test_tests_after_the_last_edit_count_edits_of_the_project_only(make: Make) -> None:
    steps = (replace("a.py"), bash("pytest tests"), create("check.py"), bash("pytest tests", PASSED))
    assert hits("tests_after_last_edit", scanned(make, *steps)) == [1]
    assert hits("tests_after_last_edit", scanned(make, *steps, replace("a.py"))) == []
    assert hits("tests_after_last_edit", scanned(make, *steps, replace("a.py", code=1))) == [1], (
        "a refused edit"
    )
    assert hits("tests_after_last_edit", scanned(make, bash("pytest tests"))) == []


def test_thoughts_about_edge_cases_are_found(make: Make) -> None:
    thoughts = (
        "Edge cases: none.",
        "What if the list is empty?",
        "What happens when n is negative",
        "The edge of the case",
    )
    trajectory = scanned(make, *(bash("ls", thought=thought) for thought in thoughts))
    assert hits("edge_cases_considered", trajectory) == [0, 1, 2]


def test_changed_tests_are_found_but_not_new_ones(make: Make) -> None:
    steps = (
        replace("tests/test_a.py"), bash("sed -i 's/1/2/' tests/test_a.py"), replace("pkg/conftest.py"),
        create("tests/test_new.py"), replace("tests/test_new.py"), replace("pkg/latest.py"),
        view("tests/test_b.py"), bash("sed -n 1,5p tests/test_a.py"),
        bash("cat > tests/test_b.py <<'EOF'\nx\nEOF"),
    )  # fmt: skip
    assert hits("edited_tests", scanned(make, *steps)) == [0, 1, 2, 8]


def test_reads_of_the_history_are_found(make: Make) -> None:
    found = (
        "git log -3",
        "cd a && git --no-pager -C b show HEAD~1",
        "git diff HEAD~2",
        "git stash list",
        "git blame a.py",
    )
    others = ("git diff", "git status", "git stash", "git diff --name-only", "echo 'git log'", "git add log")
    trajectory = scanned(make, *(bash(command) for command in (*found, *others)))
    assert hits("looked_into_history", trajectory) == list(range(len(found)))


def test_retrieved_code_is_found_where_the_command_succeeded(make: Make) -> None:
    found = (
        "git fetch origin", "git checkout 1a2b3c4d5e -- pkg/a.py", "git show origin/main:a.py",
        "curl -sL https://raw.githubusercontent.com/x/y/main/a.py -o a.py", "pip download requests==2.0",
    )  # fmt: skip
    others = (
        "git checkout -- a.py",
        "git show HEAD",
        "pip install -e .",
        "curl http://localhost:8000/",
        "git checkout main",
    )
    trajectory = scanned(
        make,
        *(bash(command) for command in (*found, *others)),
        *(bash(command, code=128) for command in found),
    )
    assert hits("retrieved_answer", trajectory) == list(range(len(found)))


def test_repeated_calls_count_only_while_nothing_changed(make: Make) -> None:
    run = bash("python repro.py")
    steps = (run, view("a.py"), run, replace("a.py"), run, bash("git diff"), view("a.py"), view("a.py"))
    assert hits("repeated_command", scanned(make, *steps)) == [2, 7]
    assert hits("repeated_command", scanned(make, run, bash("pip install x"), run)) == []
    assert hits("repeated_command", scanned(make, replace("a.py", code=1), replace("a.py", code=1))) == [1]


def test_edits_after_passing_tests_need_an_earlier_edit(make: Make) -> None:
    tests = "pytest tests"
    steps = (replace("a.py"), bash(tests, PASSED), replace("tests/test_a.py"), replace("a.py"))
    assert hits("edited_after_passing", scanned(make, *steps)) == [3]
    assert hits("edited_after_passing", scanned(make, bash(tests, PASSED), replace("a.py"))) == []
    failed = (replace("a.py"), bash(tests, FAILED, code=1), replace("a.py"))
    assert hits("edited_after_passing", scanned(make, *failed)) == []
    piped = (replace("a.py"), bash(f"{tests} | tail -1", FAILED), replace("a.py"))
    assert hits("edited_after_passing", scanned(make, *piped)) == [], "the exit code is that of tail"


def test_giving_up_counts_at_the_end_only(make: Make) -> None:
    said = "I am unable to reproduce this, so I give up."
    assert hits("gave_up", scanned(make, bash("ls"), bash("ls", thought=said), submit())) == [1]
    assert hits("gave_up", scanned(make, bash("ls", thought=said), bash("ls"), submit("All done."))) == []


def test_submissions_without_a_change_are_found(make: Make) -> None:
    read = scanned(make, view("a.py"), submit(), termination="submitted")
    assert hits("submitted_without_change", read) == [None]
    for steps, fields, found in (
        ((replace("a.py"), submit()), {"termination": "submitted"}, []),
        ((replace("a.py"), submit()), {"termination": "submitted", "patch": ""}, [None]),
        ((view("a.py"), submit()), {"termination": "submitted", "patch": "diff"}, []),
        ((view("a.py"),), {"termination": "max_steps", "patch": ""}, []),
    ):
        assert hits("submitted_without_change", scanned(make, *steps, **fields)) == found


def test_hostile_steps_are_scanned_within_limits() -> None:
    """Every text of a step has a megabyte, and arguments have unexpected types."""
    texts = [
        "a" * 10**6,
        "https://" * 10**5,
        "> f.py " * 10**5,
        ";" * 10**6,
        "git show " * 10**5,
        "1" * 10**6,
        "'\"\\\n<<A" * 10**5,
    ]
    arguments: list[object] = [
        *({"command": text, "path": text, "search_term": text} for text in texts),
        {"command": ["a"], "path": {"b": 1}, "cmd": None}, {"command": 5}, {}, None, [], "text", 7,
    ]  # fmt: skip
    steps = [
        read_step(
            index=index, tool=tool, arguments=given, thought=text, observation=text, error="", exit_code=None
        )
        for index, (tool, given, text) in enumerate(
            (tool, given, text)
            for tool in ("execute_bash", "str_replace_editor", "search", "finish", "", "x" * 100)
            for given in arguments
            for text in texts[:3]
        )
    ]
    trajectory = ScannedTrajectory(steps, termination="submitted")
    for scanner in RULES.values():
        for hit in scanner.scan(trajectory):
            assert len(hit.detail) <= 200
    assert len(trajectory.edits) < 51 * len(steps)


def test_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(rules.__file__).parent / "README.md").read_text()
    exec(readme.partition("```python\n")[2].partition("```")[0], {})
    assert capsys.readouterr().out == "Hit(step=0, detail='tests/test_a.py')\n"


def test_scanners_describe_themselves() -> None:
    assert len(RULES) == 11
    for name, scanner in RULES.items():
        assert (scanner.name, scanner.version) == (name, 1)
        assert scanner.words[0].isupper()
        assert "\n" not in scanner.words

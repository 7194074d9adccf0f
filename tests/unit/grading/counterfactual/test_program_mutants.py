"""Other expected values in verifiers that are Python programs, proven false by running them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind, apply_mutants
from engine.grading.counterfactual.languages import mutator_of

PATH = "/tests/verify.py"
HEADER = "import json\nimport sys\nfrom pathlib import Path\n\nfrom answer import run\n\n"
BY_STATUS = (
    "python3 /tests/verify.py\n"
    "if [ $? -eq 0 ]; then echo 1 > /r/reward.txt; else echo 0 > /r/reward.txt; fi\n"
)
BY_REWARD = "mkdir -p /r\npython3 /tests/verify.py\n"
RIGHT = "def run(number=3):\n    return str(int(number) ** 2)\n"
WRONG = "def run(number=3):\n    return str(int(number) * 2 + 1)\n"

PROGRAMS = {
    "exit": 'if run() != "9":\n    print("wrong")\n    sys.exit(1)\nprint("good")\n',
    "exit at the end": 'got = run()\nsys.exit(0 if got == "9" else 1)\n',
    "assert": 'assert run(4) == "16", "wrong"\n',
    "raise": 'if not (run(4) == "16"):\n    raise SystemExit("wrong")\n',
    "raised error": 'got = int(run(5))\nif got != 25:\n    raise ValueError(f"wrong: {got}")\n',
    "else": 'if run() == "9":\n    print("good")\nelse:\n    print("wrong")\n    sys.exit(2)\n',
    "success first": 'if run() == "9":\n    print("good")\n    sys.exit(0)\nprint("wrong")\nsys.exit(1)\n',
    "main": (
        'def main():\n    if run() != "9":\n        return 1\n    return 0\n\n\n'
        'if __name__ == "__main__":\n    sys.exit(main())\n'
    ),
    "main that returns nothing": (
        'def main() -> None:\n    got = run()\n    expected = "9"\n    if got != expected:\n'
        '        print(f"expected {expected}, got {got}")\n        sys.exit(1)\n\n\nmain()\n'
    ),
    "functions that return truth": (
        'def check_square():\n    return run() == "9"\n\n\ndef check_other():\n    got = run(7)\n'
        '    if got != "49":\n        print(got)\n        return False\n    return True\n\n\n'
        "def main():\n    if not check_square():\n        return 1\n    if not check_other():\n"
        "        return 1\n    return 0\n\n\nraise SystemExit(main())\n"
    ),
    "functions in a conjunction": (
        'def a():\n    return run() == "9"\n\n\ndef b():\n    return run(2) == "4"\n\n\n'
        "ok = a() and b()\nprint(ok)\nsys.exit(not ok)\n"
    ),
    "all": 'results = [run() == "9", run(2) == "4"]\nsys.exit(0 if all(results) else 1)\n',
    "all of a table": (
        'checks = {"a": run() == "9", "b": run(2) == "4"}\nfor name, ok in checks.items():\n'
        "    print(name, ok)\nif not all(checks.values()):\n    sys.exit(1)\n"
    ),
    "collected": (
        'results = []\nresults.append(run() == "9")\nresults.append(run(2) == "4")\n'
        "if not all(results):\n    sys.exit(1)\n"
    ),
    "failures": (
        'failures = []\nif run() != "9":\n    failures.append("three")\nif run(2) != "4":\n'
        '    failures.append("two")\nif failures:\n    print("\\n".join(failures))\n    sys.exit(1)\n'
    ),
    "failures counted": (
        'failures = []\ngot = run()\nif got != "9":\n    failures.append(f"got {got}")\n'
        "print(len(failures))\nsys.exit(1 if len(failures) > 0 else 0)\n"
    ),
    "failures returned": (
        'def check():\n    errors = []\n    if run() != "9":\n        errors.append("three")\n'
        "    return errors\n\n\ndef main():\n    errors = check()\n    for error in errors:\n"
        "        print(error)\n    return 1 if errors else 0\n\n\nsys.exit(main())\n"
    ),
    "flag": (
        'ok = True\nif run() != "9":\n    print("three")\n    ok = False\n'
        'if run(2) != "4":\n    ok = False\nif not ok:\n    sys.exit(1)\n'
    ),
    "flag of a module": (
        "ok = True\n\n\ndef fail(message):\n    global ok\n    print(message)\n    ok = False\n\n\n"
        'if run() != "9":\n    fail("three")\nsys.exit(0 if ok else 1)\n'
    ),
    "counter": (
        'failed = 0\nif run() != "9":\n    failed += 1\nif run(2) != "4":\n    failed += 1\n'
        "sys.exit(failed)\n"
    ),
    "counter compared": 'bad = 0\nbad += run() != "9"\nif bad == 0:\n    sys.exit(0)\nsys.exit(1)\n',
    "kept conjunction": 'ok = True\nok = ok and run() == "9"\nok &= run(2) == "4"\nsys.exit(not ok)\n',
    "earned": 'ok = False\nif run() == "9":\n    ok = True\nsys.exit(0 if ok else 1)\n',
    "function that compares its arguments": (
        "failures = []\n\n\ndef check(name, got, want):\n    if got != want:\n"
        '        failures.append(f"{name}: {got} is not {want}")\n\n\n'
        'check("three", run(3), "9")\ncheck("two", run(2), want="4")\nif failures:\n    sys.exit(1)\n'
    ),
    "function that ends": (
        "def fail(message):\n    print(message, file=sys.stderr)\n    sys.exit(1)\n\n\n"
        'def expect(got, want):\n    if got != want:\n        fail(f"{got} is not {want}")\n\n\n'
        'def main():\n    expect(run(), "9")\n    if run(2) != "4":\n        fail("two")\n\n\nmain()\n'
    ),
    "constant of the module": (
        'EXPECTED = "9"\n\n\ndef main():\n    got = run()\n    if got != EXPECTED:\n'
        '        print(f"expected {EXPECTED}, got {got}")\n        return 1\n    return 0\n\n\n'
        "sys.exit(main())\n"
    ),
    "table": (
        'CASES = [(1, "1"), (3, "9"), (4, "16")]\nfailures = []\nfor number, want in CASES:\n'
        "    got = run(number)\n    if got != want:\n        print(number, got, want)\n"
        "        failures.append(number)\n        continue\nsys.exit(1 if failures else 0)\n"
    ),
    "table of a function": (
        'CASES = [(3, "9"), (4, "16")]\n\n\ndef main():\n    for number, want in CASES:\n'
        "        if run(number) != want:\n            return False\n    return True\n\n\n"
        "if not main():\n    sys.exit(1)\n"
    ),
    "tables with a function": (
        "errors = []\n\n\ndef check(number, want):\n    got = run(number)\n    if got != want:\n"
        '        errors.append(number)\n\n\nfor number, want in [(3, "9"), (4, "16")]:\n'
        "    check(number, want)\nsys.exit(len(errors))\n"
    ),
    "handled errors": (
        "failures = []\ntry:\n    got = json.loads(run())\n    if got != 9:\n"
        '        failures.append("three")\n'
        "except Exception as error:\n    failures.append(str(error))\n"
        'try:\n    assert run(2) == "4"\nexcept AssertionError:\n    print("two")\n    sys.exit(1)\n'
        "if failures:\n    sys.exit(1)\n"
    ),
    "file": (
        'def main():\n    Path("out.json").write_text(json.dumps({"n": run(), "all": [run(1)]}))\n'
        '    with open("out.json") as file:\n        data = json.load(file)\n'
        '    if data != {"n": "9", "all": ["1"]}:\n        return 1\n'
        '    if data.get("n") != "9" or not isinstance(data["all"], list):\n        return 1\n'
        "    return 0\n\n\nsys.exit(main())\n"
    ),
    "several in a condition": 'if run() != "9" or run(2) != "4":\n    sys.exit(1)\n',
}
REWARDS = {
    "written at the end": (
        'ok = run() == "9"\nPath("/r/reward.txt").write_text("1" if ok else "0")\n'
    ),
    "written on success": (
        'REWARD = Path("/r/reward.txt")\nREWARD.write_text("0")\nif run() != "9":\n    sys.exit(0)\n'
        'if run(2) != "4":\n    sys.exit(1)\nREWARD.write_text("1")\n'
    ),
    "written by a function": (
        'def write_reward(value):\n    with open("/r/reward.txt", "w") as file:\n'
        '        file.write(f"{value}\\n")\n\n\ndef main():\n    got = run()\n    if got != "9":\n'
        '        print("wrong")\n        write_reward(0)\n        return\n    write_reward(1)\n\n\nmain()\n'
    ),
    "kept in a variable": (
        'reward = 0.0\ngot = run()\nif got == "9":\n    print("good")\n    reward = 1.0\n'
        'with open("/r/reward.txt", "w") as file:\n    file.write(str(reward))\n'
    ),
    "by failures": (
        'errors = []\nif run() != "9":\n    errors.append("three")\n'
        'if run(2) != "4":\n    errors.append("two")\n'
        'Path("/r/reward.json").write_text(json.dumps({"reward": 0.0 if errors else 1.0}))\n'
    ),
    "by an exception": (
        'OUT = "/r/reward.txt"\n\n\ndef check():\n    assert run() == "9"\n\n\ntry:\n    check()\n'
        'except Exception:\n    Path(OUT).write_text("0")\n    sys.exit(1)\nelse:\n'
        '    Path(OUT).write_text("1")\n'
    ),
}  # fmt: skip
CATALOGUE = [
    *(pytest.param(text, BY_STATUS, id=f"status: {name}") for name, text in PROGRAMS.items()),
    *(pytest.param(text, BY_REWARD, id=f"reward: {name}") for name, text in REWARDS.items()),
]


def mutants_of(program: str, script: str) -> list[Mutant]:
    mutator = mutator_of(PATH)
    assert mutator is not None
    content = (HEADER + program).encode()
    beside = {PATH: content, "/tests/test.sh": script.encode()}
    return list(mutator.mutants(content, PATH, None, beside))


def passes(folder: Path, program: bytes, solution: str, *, by_reward: bool) -> bool:
    """Run a program beside a solution. Return whether it ends well, or leaves a reward."""
    folder.mkdir(exist_ok=True)
    (folder / "answer.py").write_text(solution)
    for old in folder.glob("reward.*"):
        old.unlink()
    text = program.decode().replace("/r/", f"{folder}/")
    (folder / "verify.py").write_text(text)
    ran = subprocess.run(
        [sys.executable, "-B", "verify.py"], cwd=folder, check=False, capture_output=True, timeout=60
    )
    if not by_reward:
        return ran.returncode == 0
    rewards = [one.read_text() for one in folder.glob("reward.*")]
    return any("1" in reward for reward in rewards)


@pytest.mark.parametrize(("program", "script"), CATALOGUE)
def test_what_a_right_solution_passes_it_fails_with_another_value(
    program: str, script: str, tmp_path: Path
) -> None:
    by_reward = script == BY_REWARD
    content = (HEADER + program).encode()
    assert passes(tmp_path, content, RIGHT, by_reward=by_reward)
    assert not passes(tmp_path, content, WRONG, by_reward=by_reward)

    mutants = mutants_of(program, script)
    assert mutants
    assert all(one.kind is MutantKind.VALUE and one.before for one in mutants)
    for mutant in mutants:
        false = apply_mutants(content, [mutant])
        assert not passes(tmp_path, false, RIGHT, by_reward=by_reward), mutant.after


@pytest.mark.parametrize("name", [name for name, text in PROGRAMS.items() if '"4"' in text])
def test_every_comparison_has_mutants(name: str) -> None:
    changed = {one.before for one in mutants_of(PROGRAMS[name], BY_STATUS)}
    assert any('"9"' in text or "9" in text for text in changed)
    assert any('"4"' in text for text in changed)


LEFT_ALONE = {
    # Another way to pass, before or after.
    "either": 'if run() != "9" and run() != "8":\n    sys.exit(1)\n',
    "one of several": 'if run() == "9":\n    sys.exit(0)\nif run() == "8":\n    sys.exit(0)\nsys.exit(1)\n',
    "an exit before": 'if Path("skip").exists():\n    sys.exit(0)\nif run() != "9":\n    sys.exit(1)\n',
    "an exit in a function before": (
        'def early():\n    if Path("x").exists():\n        sys.exit(0)\n\n\nearly()\nassert run() == "9"\n'
    ),
    "a branch": 'if Path("x").exists():\n    assert run() == "9"\n',
    "a loop that may not run": 'for one in Path(".").glob("x"):\n    assert run() == "9"\n',
    "an exception that nobody counts": 'try:\n    assert run() == "9"\nexcept AssertionError:\n    pass\n',
    "a context that may hide it": (
        'import contextlib\nwith contextlib.suppress(Exception):\n    assert run() == "9"\n'
    ),
    "nobody looks at the result": 'def check():\n    return run() == "9"\n\n\ncheck()\n',
    "nobody looks at the failures": 'failures = []\nif run() != "9":\n    failures.append("x")\n',
    "the failures are looked at before": (
        'failures = []\nif failures:\n    sys.exit(1)\nif run() != "9":\n    failures.append("x")\n'
    ),
    "the failures are looked at in a loop": (
        'failures = []\nif run() != "9":\n    failures.append("x")\nfor _ in Path(".").glob("x"):\n'
        "    if failures:\n        sys.exit(1)\n"
    ),
    "failures that are removed": (
        'failures = []\nif run() != "9":\n    failures.append("x")\nfailures.clear()\n'
        "if failures:\n    sys.exit(1)\n"
    ),
    "failures that something else has": (
        'failures = []\nif run() != "9":\n    failures.append("x")\nother = failures\nother.pop()\n'
        "if failures:\n    sys.exit(1)\n"
    ),
    "failures that are counted": (
        'failures = []\nif run() != "9":\n    failures.append("x")\nif len(failures) > 1:\n    sys.exit(1)\n'
    ),
    "passes that are counted": (
        'passed = 0\nif run() == "9":\n    passed += 1\nif run(2) == "4":\n    passed += 1\n'
        "if passed < 1:\n    sys.exit(1)\n"
    ),
    "passes that are compared with their number": (
        'passed = 0\nif run() == "9":\n    passed += 1\nif passed != 1:\n    sys.exit(1)\n'
    ),
    "a flag that is set again": (
        'ok = True\nif run() != "9":\n    ok = False\nif Path("x").exists():\n    ok = True\n'
        "sys.exit(not ok)\n"
    ),
    "a flag that is earned twice": (
        'ok = False\nif run() == "9":\n    ok = True\nif run() == "8":\n    ok = True\nsys.exit(not ok)\n'
    ),
    "a flag that any pass earns": (
        'ok = False\nfor one in (1, 3):\n    if run(one) == "9":\n        ok = True\nsys.exit(not ok)\n'
    ),
    "a failure after which it passes": (
        'failures = []\nif run() != "9":\n    failures.append("x")\n    sys.exit(0)\n'
        "if failures:\n    sys.exit(1)\n"
    ),
    # What differs does not decide, or says nothing of a solution.
    "what must not come out": 'if run() == "8":\n    sys.exit(1)\n',
    "an exit code": (
        "import subprocess\ndone = subprocess.run(['true'])\nif done.returncode != 0:\n    sys.exit(1)\n"
    ),
    "no constant": "if run() != str(3 * int(run(1)) ** 2 * 3):\n    sys.exit(1)\n",
    "about": "if abs(int(run()) - 9) > 1:\n    sys.exit(1)\n",
    "given to the program as well": (
        'expected = "9"\nif run(expected) != expected * 1:\n    pass\nassert run() == run()\n'
    ),
    "a function reads it as well": (
        'EXPECTED = "9"\n\n\ndef go():\n    return run(int(EXPECTED) // 3)\n\n\n'
        "if go() != EXPECTED:\n    sys.exit(1)\n"
    ),
    "an argument that the function uses": (
        "def check(number, want):\n    if run(int(want) // 3) != want:\n        sys.exit(1)\n\n\n"
        'check(3, "9")\n'
    ),
    # The program may end by other means.
    "an exit handler": 'import atexit\natexit.register(print)\nassert run() == "9"\n',
    "a test runner": 'import unittest\nassert run() == "9"\nunittest.main()\n',
    "its own exit": 'def exit(code):\n    print(code)\n\n\nif run() != "9":\n    exit(1)\n',
    "a function that is defined twice": (
        'def check():\n    return run() == "9"\n\n\ndef check():\n    return True\n\n\n'
        "sys.exit(not check())\n"
    ),
}


@pytest.mark.parametrize("program", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_may_not_decide_is_left_alone(program: str) -> None:
    assert mutants_of(program, BY_STATUS) == []


SCRIPTS = [
    ("set -e\npython3 /tests/verify.py\necho 1 > /r/reward.txt\n", True),
    ("python3 -u /tests/verify.py && echo 1 > /r/reward.txt || echo 0 > /r/reward.txt\n", True),
    ("if ! timeout 60 python /tests/verify.py; then exit 1; fi\necho 1 > /r/reward.txt\n", True),
    ('cd "$(dirname "$0")"\npython3 verify.py > /tmp/log 2>&1 || exit 1\n', True),
    ("cd /tests\npython3 verify.py\n", True),
    (
        'python3 /tests/verify.py\ncode=$?\nif [ "$code" -ne 0 ]; then exit 1; fi\necho 1 > /r/reward.txt\n',
        True,
    ),
    ('HERE="$(dirname "$0")"\npython3 "$HERE/verify.py" || exit 1\necho 1 > /r/reward.txt\n', True),
    ("python3 /tests/verify.py\necho 1 > /r/reward.txt\n", False),
    ("python3 /tests/verify.py || true\n", False),
    ("python3 -O /tests/verify.py\n", False),
    ("python3 /tests/verify.py | tee log\n", False),
    ("python3 /tests/other.py /tests/verify.py\n", False),
    ("python3 /tests/verify.py\necho done\nif [ $? -eq 0 ]; then exit 0; fi\nexit 1\n", False),
    ("trap 'exit 0' EXIT\npython3 /tests/verify.py\n", False),
    ("if p; then python3 /tests/verify.py || exit 1; fi\necho 1 > /r/reward.txt\n", False),
]


@pytest.mark.parametrize(("script", "decides"), SCRIPTS)
def test_programs_count_whose_status_decides(script: str, decides: bool) -> None:  # noqa: FBT001
    assert bool(mutants_of(PROGRAMS["exit"], script)) is decides


@pytest.mark.parametrize(
    "script",
    [
        "python3 /tests/verify.py || echo 1 > /r/reward.txt\n",
        "python3 /tests/verify.py && true || cp /tmp/x /r/reward.txt\n",
        "python3 /tests/verify.py\necho 1 > /r/reward.txt\n",
        'python3 /tests/verify.py\ncp /tmp/x "$REWARD"\n',
        "python3 /tests/verify.py\npython3 /tests/verify.py again\n",
    ],
)
def test_rewards_that_something_else_may_write_are_left_alone(script: str) -> None:
    assert mutants_of(REWARDS["written at the end"], script) == []


@pytest.mark.parametrize(
    "script",
    [
        "mkdir -p /r\necho 0 > /r/reward.txt\npython3 /tests/verify.py\ncat /r/reward.txt\n",
        "python3 /tests/verify.py || echo 0 > /r/reward.txt\n",
        "cd /app && python3 /tests/verify.py || echo 0 > /r/reward.txt\n",
    ],
)
def test_a_script_may_write_a_reward_of_zero_itself(script: str) -> None:
    assert mutants_of(REWARDS["written at the end"], script)

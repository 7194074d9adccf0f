"""Test files read from the answers of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.curation import WritingConfig
from engine.config.policies import EndpointPolicyConfig
from engine.datasets.cached_model import Answer, CachedModel, NoAnswerError, Prompt
from engine.datasets.commits.filters import Candidate
from engine.datasets.commits.trials import Trial, hidden_files
from engine.datasets.commits.written_tests import read_tests, try_written_tests
from tests.unit.datasets.commits.test_filters import CODE, commit, selected

WRITER = EndpointPolicyConfig(endpoint="lab", model="m")
FILE = "def test_f():\n    assert f() == 2\n"


class Scripted:
    """A model with one answer."""

    name = "m"
    spent = 0.0

    def __init__(self, text: str) -> None:
        self.text = text
        self.prompts: list[Prompt] = []

    async def answer(self, prompt: Prompt, *, max_tokens: int, seed: int) -> Answer:
        self.prompts.append(prompt)
        return Answer(text=self.text)


@pytest.mark.parametrize(
    ("trial", "reason", "asked"),
    [
        (Trial(reason="does_not_build", seconds=2.0), "does_not_build", 1),
        (Trial(reason="no_tests_run", seconds=2.0, detail="No module named 'x'"), "written_do_not_run", 3),
        (Trial(reason="unstable", seconds=2.0), "unstable", 3),
        (Trial(seconds=2.0), "", 1),
    ],
)
async def test_the_model_is_asked_again_only_where_other_tests_may_help(
    tmp_path: Path, trial: Trial, reason: str, asked: int
) -> None:
    model, tried = Scripted(f"```python\n{FILE}```"), list[Candidate]()

    async def try_tests(candidate: Candidate) -> Trial:
        tried.append(candidate)
        return trial

    writer = CachedModel(model=model, config=WRITER, limits=WritingConfig(), home=tmp_path)
    (candidate,) = selected(commit(CODE), writer=WRITER)
    assert isinstance(candidate, Candidate)
    last, found = await try_written_tests(candidate, writer, try_tests, seed=0)
    assert (found.reason, found.seconds) == (reason, 2.0 * asked)
    assert (len(model.prompts), len(tried)) == (asked, asked)
    assert hidden_files(last) == {"written_tests/test_behaviour.py": FILE}
    assert last.key.startswith("a" * 40 + "-")
    assert "def f():\n    return 2" in model.prompts[0][-1]["content"]
    assert all(trial.detail in prompt[-1]["content"] for prompt in model.prompts[1:])


def test_commits_without_tests_are_candidates_only_with_a_writer() -> None:
    assert selected(commit(CODE)) == ["no_tests"]
    (candidate,) = selected(commit(CODE), writer=WRITER)
    assert not isinstance(candidate, str)
    assert (candidate.test_paths, candidate.written_tests) == ((), None)


@pytest.mark.parametrize("answer", [f"```python\n{FILE}```", f"A\n``` py \n{FILE}```\n```python\nx\n```"])
def test_the_first_block_is_the_test_file(answer: str) -> None:
    assert read_tests(answer.replace("``` py ", "```py ")) == FILE


def test_files_below_tmp_path_may_be_read() -> None:
    code = """def test_f(tmp_path):
    path = tmp_path / "x"
    with open(path) as file:
        assert file.read() == path.read_text()
    assert [inner.read_bytes() for inner in sorted(tmp_path.iterdir())]
"""
    assert read_tests(f"```python\n{code}```") == code


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (FILE, "no block"),
        ("```python\ndef test_f(:\n```", "no Python"),
        ("```python\nx = 1\n```", "no function named test"),
        (f"```python\n{FILE}" + "# x\n" * 6000 + "```", "at most 20000"),
        ("```python\n\0\n```", "no Python"),
        ("```python\n" + "(" * 5000 + "\n```", "no Python|nested"),
        ("```python\n" * 3, "no function named test"),
        (f"x```python\n{FILE}```", "no block"),
        *(
            (f"```python\n{code}\n{FILE}```", "must not read source")
            for code in (
                "import inspect",
                "from importlib import resources",
                "text = m.__file__",
                "text = open('pkg/m.py').read()",
                "def test_g(tmp_path):\n    assert 'x' in pathlib.Path('pkg/m.py').read_text()",
            )
        ),
    ],
)
def test_other_answers_are_refused_with_the_reason(answer: str, problem: str) -> None:
    with pytest.raises(NoAnswerError, match=problem):
        read_tests(answer)

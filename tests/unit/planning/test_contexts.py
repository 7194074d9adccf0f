"""Maximum context lengths of models, read from their ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.recipes import RECIPES, resolve
from engine.planning.contexts import known_context, long_contexts
from tests.unit.models.gguf.gguf_files import tiny_model, write_gguf

SHORT = {"max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({**SHORT, "rope_parameters": YARN}, 32_768),
        ({**SHORT, "rope_parameters": {"full_attention": YARN}}, 32_768),
        (
            {**SHORT, "rope_scaling": {**YARN, "rope_type": None, "type": "yarn"}},
            32_768,
        ),
        ({**SHORT, "rope_scaling": {**YARN, "factor": "4"}}, 8192),
        ({**SHORT, "rope_scaling": {**YARN, "factor": float("inf")}}, None),
        ({**SHORT, "rope_scaling": {**YARN, "factor": float("nan")}}, None),
        (
            {**SHORT, "rope_scaling": {**YARN, "factor": 0.5, "original_max_position_embeddings": 10**400}},
            None,
        ),
        ({"max_position_embeddings": "long"}, None),
        ([], None),
    ],
)
def test_context_of_a_folder_is_read_from_its_config(
    tmp_path: Path, settings: Any, longest: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert known_context(str(tmp_path), home=tmp_path) == longest
    assert known_context(f"fresh:{tmp_path}", home=tmp_path) == longest


def test_context_of_a_run_is_that_of_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 7}')
    for number, length in ((99_999, 512), (100_000, 1024)):
        folder = tmp_path / f"runs/7/checkpoints/{number:05}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"max_position_embeddings": length}))
    assert known_context("run:7", home=tmp_path) == 1024
    assert known_context("run:8", home=tmp_path) is None


def test_context_is_known_for_built_in_and_published_models_only(tmp_path: Path) -> None:
    names = ("builtin:quickstart", "fresh:frozenlake", "Qwen/Qwen3-0.6B", "somebody/else", "builtin:none")
    assert [known_context(name, home=tmp_path) for name in names] == [2048, 1024, 40_960, None, None]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_request_no_longer_contexts_than_their_models_support(recipe: str, tmp_path: Path) -> None:
    assert not long_contexts(resolve(recipe, {}).model_dump(mode="json"), home=tmp_path)


def test_long_contexts_are_reported_with_their_settings(tmp_path: Path) -> None:
    policy, longer = {"checkpoint": "builtin:quickstart"}, {"max_context": 4096}
    config = {"policy": policy, "agent": {"max_context": 2048}, "evaluation": longer, "verifier": longer}
    problems = long_contexts(config, home=tmp_path)
    assert [problem.setting for problem in problems] == ["evaluation.max_context", "verifier.max_context"]
    assert "is 4096, but 'builtin:quickstart' was made for at most 2048 tokens" in str(problems[0])
    assert long_contexts({"sft": {"start": "fresh:tiny"}, "agent": longer}, home=tmp_path)
    assert not long_contexts({"policy": {"type": "endpoint"}, "agent": longer}, home=tmp_path)


def test_the_context_of_a_gguf_file_is_in_its_header(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model("qwen3"))
    assert known_context(str(path), home=tmp_path) == 512
    assert known_context(str(tmp_path), home=tmp_path) == 512
    path.write_bytes(b"GGUF")
    assert known_context(str(path), home=tmp_path) is None

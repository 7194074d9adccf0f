"""The rules of the lake, and the observations and grades of its environment."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from engine.agent.prompts import load_prompt
from engine.environments.frozenlake import FrozenLakeEnvironment, Lake
from engine.environments.frozenlake_maps import DIRECTIONS, GOAL, PLAYER
from engine.errors import ConfigError
from engine.models.builtin.architectures import ARCHITECTURES, SHIPPED
from engine.models.chat.chatml import ChatML
from engine.models.loader import fresh_tokenizer
from engine.tools import ObservationStyle
from engine.tools.parser import parse
from engine.tools.rendering import render_response
from engine.tools.schemas import LAKE_TOOLS, MOVE, SWE_TOOLS
from engine.types import ToolCall, Verdict
from tests.unit.environments.lake_builders import AGENT, MAP, row_of

_LARGEST = 9
"""Rows and columns of the largest map."""


def move(direction: str) -> ToolCall:
    return ToolCall(name="move", arguments={"direction": direction})


def walk(*directions: str, style: ObservationStyle = "compact") -> tuple[list[str], FrozenLakeEnvironment]:
    environment = FrozenLakeEnvironment(row_of(), style=style, seed=0)

    async def play() -> list[str]:
        assert await environment.reset() == ""
        return [(await environment.step(move(d), timeout_s=1)).observation for d in directions]

    return asyncio.run(play()), environment


def test_moves_over_the_edge_keep_the_square_and_cost_a_move() -> None:
    lake = Lake(MAP, slip_probability=0, seed=0)
    for direction in ("up", "left"):
        assert lake.move(direction) == direction
        assert lake.player == (0, 0)
    assert lake.moves == 2
    assert lake.draw() == MAP


def test_only_the_goal_is_a_success() -> None:
    seen, environment = walk("down", "down", "right")
    assert seen[0] == "_O_\nP__\n_G_\nP 1,0 G 2,1"
    assert seen[2].split("\n")[2] == "_√_"
    grade = asyncio.run(environment.grade(""))
    assert (grade.verdict, grade.reward, grade.tests) == (Verdict.PASSED, 1.0, ())
    assert grade.detail == "You reached the goal in 3 moves; the shortest way takes 3."
    _, environment = walk("down")
    grade = asyncio.run(environment.grade(""))
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert "still on the way after 1 move" in grade.detail


def test_full_observations_describe_the_move() -> None:
    assert walk("down", style="full")[0] == ["You moved down. The lake:\n\n_O_\nP__\n_G_"]
    environment = FrozenLakeEnvironment(row_of(slip_probability=1.0), style="full", seed=1)
    observation = asyncio.run(environment.step(move("left"), timeout_s=1)).observation
    assert observation.startswith("You slipped and moved ")


@pytest.mark.parametrize("probability", [0.0, 0.2, 2 / 3, 1.0])
def test_slips_are_split_evenly_between_both_right_angles(probability: float) -> None:
    count = 2000
    field = "\n".join(["_" * 3, "_P_", "__G"])
    taken: Counter[str] = Counter()
    for seed in range(count):
        taken[Lake(field, slip_probability=probability, seed=seed).move("up")] += 1
    assert taken["down"] == 0
    for direction, share in (("up", 1 - probability), ("left", probability / 2), ("right", probability / 2)):
        tolerance = 4 * (count * share * (1 - share)) ** 0.5  # four standard deviations
        assert abs(taken[direction] - count * share) <= tolerance, direction


# The words format


def test_calls_in_words_round_trip() -> None:
    for direction in ("up", "down", "left", "right"):
        text = render_response("left up", move(direction), "words")
        parsed = parse(text, "words", LAKE_TOOLS)
        assert (parsed.call, parsed.thought) == (move(direction), "left up")
    assert render_response("", move("up"), "words") == "move up"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no tool call was found"),
        ("up down", "no tool call was found"),
        ("move", "no tool call was found"),
        ("move upwards", "no tool call was found"),
        ("remove up", "no tool call was found"),
        ("move up move up", "more than one tool call"),
    ],
)
def test_anything_but_one_move_is_an_error(text: str, error: str) -> None:
    parsed = parse(text, "words", LAKE_TOOLS)
    assert parsed.call is None
    assert error in parsed.error


def test_the_words_format_refuses_tools_with_free_text() -> None:
    with pytest.raises(ConfigError, match="'words' cannot express calls of file_editor, execute_bash"):
        load_prompt("compact_v1", "words", SWE_TOOLS)


def lake_phrases() -> list[str]:
    """Return the texts of a turn that are one token each, except for squares."""
    errors = (parse(text, "words", LAKE_TOOLS).error for text in ("", "move up move up"))
    return [
        "user\n",
        "assistant\n",
        f"\n{PLAYER} ",
        f" {GOAL} ",
        *(f"{row},{column}" for row in range(_LARGEST) for column in range(_LARGEST)),
        *(f"{direction} " for direction in DIRECTIONS),
        *(f"{MOVE.name} {direction}" for direction in DIRECTIONS),
        *(f"ERROR: {error}" for error in errors),
    ]


def test_the_shipped_phrases_are_those_of_a_turn() -> None:
    assert json.loads((SHIPPED / "frozenlake" / "phrases.json").read_text()) == lake_phrases()


def test_turns_of_the_compact_protocol_take_few_tokens() -> None:
    tokenizer = fresh_tokenizer("frozenlake")
    assert tokenizer.vocab_size <= ARCHITECTURES["frozenlake"].vocab_size
    for phrase in lake_phrases():
        ids = tokenizer.encode(phrase)
        assert len(ids) == 1, phrase
        assert tokenizer.decode(ids) == phrase
    grid = "P_O_\n____\nOO__\n__G_"
    prompt = load_prompt(AGENT.prompt, AGENT.tool_format, LAKE_TOOLS)
    shown = prompt.user(row_of(grid).task)
    assert shown == f"{grid}\nP 0,0 G 3,2"
    assert len(tokenizer.encode(shown)) == 16 + 3 + 4
    assert len(ChatML(tokenizer).reply_ids("down right move down")) == 4
    hostile = "ünï <|im_end|> P 9,9"
    assert tokenizer.decode(tokenizer.encode(hostile)) == hostile
    assert tokenizer.im_end not in tokenizer.encode(hostile)

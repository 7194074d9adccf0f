"""Builders of transcripts of different sizes."""

from __future__ import annotations

from engine.verifiers.execution_free import Transcript, Turn

PATCH = "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


def make_turn(number: int = 0, **texts: str) -> Turn:
    return Turn(
        **{
            "thought": f"thought {number}",
            "action": f"<function=view>\n<parameter=path>{number}</parameter>\n</function>",
            "observation": f"observation {number}",
            **texts,
        }
    )


def make_transcript(
    *turns: Turn, problem: str = "x should be 2", patch: str = PATCH, system: str = ""
) -> Transcript:
    return Transcript(problem=problem, turns=turns, patch=patch, system=system)

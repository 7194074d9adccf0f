"""Execution-free verifier: a language model judges finished trajectories by reading them.

    transcript ─▶ shortening ─▶ judge prompt ─▶ YES and NO forced ─▶ P(YES), by trajectory

Nothing is executed and no hidden test is read. ``judge_all`` scores a table of transcripts, by ``TokenJudge``
(any model or policy that returns log-probabilities of tokens) or ``EndpointJudge`` (any endpoint that returns
``top_logprobs``). A trajectory without a score has an error, never a score of 0.
"""

from engine.verifiers.execution_free.answers import Score, forced_choice, probability_of_yes
from engine.verifiers.execution_free.endpoint_judge import EndpointJudge
from engine.verifiers.execution_free.judging import Judge, Judgement, judge_all
from engine.verifiers.execution_free.prompts import JudgedPart, judge_messages
from engine.verifiers.execution_free.shortening import Shortened, shorten
from engine.verifiers.execution_free.token_judge import TokenJudge, TokenScorer
from engine.verifiers.execution_free.transcripts import Transcript, Turn, turn_of

__all__ = [
    "EndpointJudge",
    "Judge",
    "JudgedPart",
    "Judgement",
    "Score",
    "Shortened",
    "TokenJudge",
    "TokenScorer",
    "Transcript",
    "Turn",
    "forced_choice",
    "judge_all",
    "judge_messages",
    "probability_of_yes",
    "shorten",
    "turn_of",
]

"""Core types of Trainyard: tasks, steps, trajectories, groups, grades.

Frozen, slotted dataclasses without behaviour. Everything that crosses a process boundary is
converted to the pydantic events of ``engine.events.types``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from engine.tokens import TokenRecord


class RunKind(StrEnum):
    """Kind of a run."""

    ROLLOUT = "rollout"
    TRAIN = "train"
    IMPROVE = "improve"
    SFT = "sft"
    VERIFIER = "verifier"
    EVALUATE = "evaluate"
    CURATE = "curate"
    VALIDATE = "validate"
    IMPORT = "import"
    REGRADE = "regrade"

    @property
    def has_rollouts(self) -> bool:
        """Return whether agents act in runs of this kind; others create data, score, grade or imitate."""
        return self in (RunKind.ROLLOUT, RunKind.TRAIN, RunKind.IMPROVE, RunKind.EVALUATE)


class RunState(StrEnum):
    """draft → queued → starting → running ⇄ paused → stopping → succeeded | failed | stopped."""

    DRAFT = "draft"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class TerminationReason(StrEnum):
    """Reason for the end of a rollout; exactly one per trajectory."""

    SUBMITTED = "submitted"
    MAX_STEPS = "max_steps"
    MAX_CONTEXT = "max_context"
    MAX_RESPONSE = "max_response"
    ROLLOUT_TIMEOUT = "rollout_timeout"
    ENV_TIMEOUT = "env_timeout"
    ENV_ERROR = "env_error"
    MODEL_ERROR = "model_error"
    CANCELLED = "cancelled"

    @property
    def words(self) -> str:
        """Return the reason in words."""
        return ENDING_WORDS.get(self, self.value)


INFRASTRUCTURE_REASONS = frozenset(
    {TerminationReason.ENV_ERROR, TerminationReason.MODEL_ERROR, TerminationReason.CANCELLED}
)
"""Reasons independent of the policy: excluded from a group's statistics, never reward 0."""
ENDING_WORDS: Mapping[str, str] = MappingProxyType(
    {
        TerminationReason.MAX_STEPS: "step limit",
        TerminationReason.MAX_CONTEXT: "context limit",
        TerminationReason.MAX_RESPONSE: "response limit",
        TerminationReason.ROLLOUT_TIMEOUT: "rollout time limit",
        TerminationReason.ENV_TIMEOUT: "command time limit",
        TerminationReason.ENV_ERROR: "environment failed",
        TerminationReason.MODEL_ERROR: "model failed",
    }
)
"""Display names of reasons; a reason without an entry is displayed as it is."""
LIMITS = tuple(
    reason
    for reason in TerminationReason
    if reason is not TerminationReason.SUBMITTED and reason not in INFRASTRUCTURE_REASONS
)
"""Limits of a rollout."""
CUT_OFF = frozenset({TerminationReason.MAX_RESPONSE, TerminationReason.MAX_CONTEXT})
"""Limits that cut a response off."""
TIME_LIMITS = frozenset({TerminationReason.ROLLOUT_TIMEOUT, TerminationReason.ENV_TIMEOUT})
"""Limits that a busy machine reaches sooner, so they reflect the machine as well as the policy."""


def is_cut_short(termination: TerminationReason, *, solved: bool | None) -> bool:
    """Return whether a time limit ended a rollout unsolved, which more time might have solved."""
    return termination in TIME_LIMITS and solved is False


class RolloutPhase(StrEnum):
    """Current work or wait of a live rollout."""

    PLACE = "place"
    """Waits for a place among the active rollouts."""
    SANDBOX = "sandbox"
    """Waits for its environment: for a place in the pool, image pull and start."""
    MODEL = "model"
    """Waits for a response of the policy."""
    TOOLS = "tools"
    """Everything else between start and end."""
    GRADING = "grading"
    """Waits for its grade: for a place among the gradings, and for the tests."""


class Verdict(StrEnum):
    """Verdict of grading."""

    PASSED = "passed"
    FAILED = "failed"
    TEST_TIMEOUT = "test_timeout"
    PATCH_FAILED = "patch_failed"
    INFRA_ERROR = "infra_error"
    TAMPERED = "tampered"


class GradeRule(StrEnum):
    """Rule that turns test outcomes into a verdict."""

    F2P_P2P = "f2p_p2p"
    """Every test of two lists passed, as in SWE-bench."""
    MAP_EQUAL = "map_equal"
    """The whole map of outcomes is the expected one, as in R2E-Gym."""
    EXIT_CODE = "exit_code"
    """The test script ended with 0."""
    JUNIT = "junit"
    """Every test of the lists passed in a JUnit report."""
    MULTI_SWE = "multi_swe"
    """Multi-SWE's transitions: no test broke, at least one was fixed, all expected ones occurred."""
    REWARD_FILE = "reward_file"
    """A number written by the verifier script, as in Harbor's tasks."""
    GOAL = "goal"
    """The environment itself determined whether its goal was reached."""


class TestKind(StrEnum):
    """Role of a test: it must start to pass, or must keep passing."""

    __test__ = False
    FAIL_TO_PASS = "fail_to_pass"
    PASS_TO_PASS = "pass_to_pass"


class TestOutcome(StrEnum):
    """Outcome of one test; ``missing`` when a required test did not report."""

    __test__ = False
    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAIL = "xfail"
    XPASS = "xpass"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The part of a dataset row visible to agents; it contains nothing of the answer."""

    id: str
    """Content hash, 16 hex digits, of everything that defines the task and its grading."""
    instance_id: str
    """Readable name, unique in its dataset, e.g. ``boltons__iterutils-compare-3``."""
    repo: str
    base_commit: str
    problem_statement: str
    image: str
    """Image of the sandboxes; ``local:<name>`` for a folder under the dataset's ``images/``;
    ``dockerfile:<hash>`` for an image to build (``engine.build_contexts``)."""
    workdir: str = "/testbed"
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the task's sandboxes, beside the image's own."""
    difficulty: Mapping[str, float] = field(default_factory=dict)
    """Proxies such as ``function_lines``, ``num_tests``, ``patch_lines``."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Provenance visible to agents, e.g. the source; the fault kind belongs to the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """The answer key of a row; it enters a sandbox only for grading."""

    gold_patch: str
    test_patch: str = ""
    test_files: Mapping[str, str] = field(default_factory=dict)
    """Path, relative to the workdir or absolute, → content, written over the graded tree."""
    binary_files: Mapping[str, str] = field(default_factory=dict)
    """Path → content in base64: further test files, which are not UTF-8 text."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    test_command: str = ""
    """Shell script run in the workdir; ``{junit}`` is replaced by the report's path."""
    grade_rule: GradeRule = GradeRule.F2P_P2P
    log_parser: str = ""
    """Name of the parser of the test log; empty where a report has the outcomes."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Test → status of the whole map, for ``map_equal``."""
    hidden_paths: tuple[str, ...] = ()
    """Hidden tests and runners in the image, absolute or below the workdir: removed before an agent enters,
    and present for grading, which starts from the image."""
    timeout_s: float | None = None
    """Time limit of the tests set by the row; else the run's ``grading.timeout_s``."""
    setup_patch: str = ""
    """Patch that turns the image's tree into the task's, applied before an agent enters and before grading;
    other patches apply on top of it (SWE-smith: the bug, on an image of the intact repository)."""
    deterministic: bool = False
    """Whether repeated runs had the same outcome, so that verdicts may be reused."""
    own_box: bool = False
    """Whether tests check the state of a system, not of a folder: they run in the sandbox in which the agent
    worked. All must be in ``test_files``, because the image's own were removed before the agent entered."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One dataset row: the visible task, its answer, its split (``train``, ``heldout``, …)."""

    task: Task
    answer: TaskAnswer
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A parsed and validated call; values are lossless (whitespace kept)."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn of a trajectory: thought, action, observation."""

    index: int
    thought: str
    response: str
    """The model's raw text of this turn, thinking included."""
    call: ToolCall | None
    """The parsed call; None after a parse error, with the reason in ``error``."""
    observation: str
    error: str = ""
    exit_code: int | None = None
    done: bool = False
    prompt_tokens: int = 0
    """Tokens of the prompt; 0 where a chat policy's endpoint does not report them."""
    cached_tokens: int = 0
    """Tokens of the prompt that came from the endpoint's cache."""
    generated_tokens: int = 0
    """Tokens of the response, thinking included; 0 where they are not reported."""
    thinking_tokens: int | None = 0
    """None where a chat policy's endpoint does not report them."""
    cost: float | None = None
    """US dollars that the response cost; None where no price is known."""
    provider_state: Mapping[str, Any] | None = None
    """Opaque state of the provider (signatures, encrypted reasoning), returned with its message unchanged;
    None without any."""
    truncated_chars: int = 0
    """Characters cut from the observation before it was sent to the model."""
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    policy_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One required test and its outcome."""

    __test__ = False
    test_id: str
    kind: TestKind
    outcome: TestOutcome
    seconds: float = 0.0


class FindingKind(StrEnum):
    """Kind of a sign of tampering."""

    TESTS_EDITED = "tests_edited"
    """The patch changed tests; the change was left out."""
    CONFIGURATION_EDITED = "configuration_edited"
    """The patch changed how tests run (conftest.py, sitecustomize.py, .pth, pytest's settings); left out."""
    INSTALLED_EDITED = "installed_edited"
    """The patch changed installed packages below the workdir; left out."""
    SUSPICIOUS_CODE = "suspicious_code"
    """Lines that the patch adds exit the process, access the test runner or print outcomes."""
    FORGED_REPORT = "forged_report"
    """Grading found a forged report or marker, or an altered runner."""
    GIT_HISTORY = "git_history"
    """A command looked for other commits."""
    NETWORK = "network"
    """A command tried to reach the network."""
    OUTSIDE_WORKDIR = "outside_workdir"
    """A command wrote where the test runner, the interpreter or the shell would read it."""
    HIDDEN_TESTS = "hidden_tests"
    """A command looked for the hidden tests or the grader."""
    BACKGROUND_PROCESS = "background_process"
    """A command tried to leave a process behind."""
    COUNTERFACTUAL = "counterfactual"
    """A test passed although it was mutated; the detail is its assertion, hidden from agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TamperFinding:
    """A sign of tampering: shown and counted, never a verdict by itself."""

    kind: FindingKind
    detail: str
    """The path, command or line, shortened."""
    step: int | None = None
    """Index of the step that shows it; None for a finding in the patch or in grading."""


class CounterfactualOutcome(StrEnum):
    """Result of the audit of a submission that passed: its runs with mutated tests."""

    CONFIRMED = "confirmed"
    """No mutated assertion passed."""
    CAUGHT = "caught"
    """A mutated assertion passed: the verdict is ``tampered``."""
    NO_MUTANTS = "no_mutants"
    """No test of the row can be mutated, or it has no gold patch: not audited."""
    UNPROVEN = "unproven"
    """The proof of the row's mutated tests failed: not audited."""
    OWN_BOX = "own_box"
    """The tests ran in the agent's own sandbox, which cannot be recreated: not audited."""
    NOT_SAMPLED = "not_sampled"
    """The submission is not in the sample."""
    OFF = "off"
    """Audits are off."""

    @classmethod
    def _missing_(cls, value: object) -> CounterfactualOutcome | None:
        """Map ``flaky`` of earlier versions: runs contradicted each other, so nothing was confirmed."""
        return cls.UNPROVEN if value == "flaky" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Result of grading; ``reward`` is None when the verdict is ``infra_error``."""

    verdict: Verdict
    reward: float | None
    tests: tuple[TestResult, ...] = ()
    log: str = ""
    """Test log; head and tail of a long one."""
    whole_log: bytes = b""
    """A long log without the cut, at most 10 MiB of text, zlib-compressed; empty where ``log`` is all."""
    findings: tuple[TamperFinding, ...] = ()
    """Signs of tampering in the patch and the test run."""
    seconds: float = 0.0
    reused: bool = False
    """Whether the verdict of an identical patch on a deterministic task was reused."""
    detail: str = ""
    """One sentence of explanation: failed tests, why the patch did not apply, …"""
    counterfactual: CounterfactualOutcome | None = None
    """Result of the audit; None for trusted patches and those without a reward."""
    extra_runs: int = 0
    """Number of mutated runs."""
    extra_seconds: float = 0.0
    """Part of ``seconds`` that these runs took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall time of a rollout by phase, in seconds."""

    queue: float = 0.0
    """Waiting for admission, in the scheduler and in the sandbox pool."""
    sandbox: float = 0.0
    """Opening, reading the patch, closing; ``pull`` and ``start`` are parts of it."""
    pull: float = 0.0
    start: float = 0.0
    model: float = 0.0
    tools: float = 0.0
    grading: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutKey:
    """Key of a trajectory in its run; each has one terminal record."""

    iteration: int
    """Training iteration (0, 1, …); for an evaluation the number of iterations completed before it."""
    phase: str
    """``train`` or ``eval:<name>``; rollouts of evaluations are never trained on."""
    task_id: str
    index: int
    """Position among the siblings of its group, 0 … n-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningMessage:
    """A message before the first response."""

    role: str
    """``system``, ``user``, or ``tools`` for functions that the chat template declares (JSON)."""
    content: str

    @classmethod
    def of_tools(cls, declarations: Sequence[Mapping[str, Any]]) -> OpeningMessage:
        """Return declared functions as a message."""
        return cls(role="tools", content=json.dumps(list(declarations), indent=2, ensure_ascii=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """Field of a recorded step that differs in a fresh environment; texts are excerpts."""

    step: int
    field: str
    """``observation``, ``error``, ``exit_code``, ``done``, or ``prompt_tokens`` for another prompt."""
    recorded: str
    found: str
    is_minor: bool = False
    """True where only times or memory addresses differ: the recorded text is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """Replay of the steps that an earlier attempt of the run recorded."""

    recorded: int
    """Number of recorded steps."""
    replayed: int
    """Number of steps whose responses were taken from the record, the first that differed included."""
    differences: tuple[ReplayDifference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout."""

    key: RolloutKey
    steps: tuple[Step, ...]
    termination: TerminationReason
    patch: str = ""
    grade: Grade | None = None
    tokens: TokenRecord = field(default_factory=TokenRecord)
    timings: Timings = field(default_factory=Timings)
    error: str = ""
    """Description of an infrastructure failure, in one sentence; empty without one."""
    failure: str = ""
    """Kind of the sandbox failure behind its end (``engine.events.failures``); empty without one."""
    attempts: int = 1
    findings: tuple[TamperFinding, ...] = ()
    """Signs of tampering in its steps, its patch and its grading."""
    prompt: str = ""
    """Name of the prompt, version included; empty where it is unknown."""
    prompt_hash: str = ""
    """Hash of the prompt's texts, tools and tool format, as sent to the model."""
    opening: tuple[OpeningMessage, ...] = ()
    """Messages before the first response, as sent to the model; empty where they are unknown."""
    cost: float | None = None
    """US dollars, lost attempts and unusable responses included; None where no price is known."""
    replay: ReplaySummary | None = None
    """None where the rollout began anew."""

    @property
    def reward(self) -> float | None:
        """Return the grade's reward; None when infrastructure failed."""
        return self.grade.reward if self.grade is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The sibling trajectories of one task in one iteration."""

    iteration: int
    phase: str
    task: Task
    trajectories: tuple[Trajectory, ...]

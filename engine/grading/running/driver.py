"""Execution of tests by the driver, whose report is signed."""

from __future__ import annotations

from engine.grading.evidence import Evidence
from engine.grading.running.guarded_files import GuardedFiles
from engine.grading.running.placement import place_files, remove_bytecode
from engine.grading.running.request import RunRequest
from engine.sandbox.base import Sandbox
from engine.testing.testrun import run_tests


async def run_driver(box: Sandbox, request: RunRequest) -> Evidence:
    """Run an answer's tests with the driver that its test command calls.

    Raises:
        SandboxError: the sandbox failed; failures of the tests are evidence.
    """
    answer, overlay = request.answer, request.overlay
    await remove_bytecode(box, overlay)
    await place_files(box, overlay)
    guarded = await GuardedFiles.hashed(box, answer, overlay=overlay)
    run = await run_tests(box, answer.test_command, timeout_s=request.timeout_s, changed=request.changed)
    evidence = Evidence(
        log=run.log,
        shown=run.log,
        seconds=run.seconds,
        timed_out=run.timed_out,
        problem=run.problem,
        forged=run.forged,
        signs=run.signs,
        data_signs=run.data_signs,
        signed=run,
    )
    return evidence if run.timed_out or run.forged else await guarded.checked(box, evidence)

"""Tests of bit-exact results, on the code paths that libraries take on other processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = (
    "models/test_transformer.py::test_logits_are_identical_for_all_prefill_chunks_and_batch_neighbours",
    "inference/test_sampler.py::test_results_do_not_depend_on_the_rest_of_the_batch",
)
PROCESSORS = {
    "SSE 4.2": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "AVX2, three threads": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "3",
    },
    "not Intel": {"MKL_CBWR": "COMPATIBLE"},
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_results_are_bit_identical_on_other_processors(processor: str) -> None:
    root = Path(__file__).parents[3]
    tests = [str(root / "tests/unit" / test) for test in TESTS]
    completed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-qx",
            "-p",
            "no:cacheprovider",
            *tests,
        ],
        cwd=root,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **PROCESSORS[processor]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-2000:]

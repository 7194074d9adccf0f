"""Device of the tests: CUDA; with ``TRAINYARD_GPU_TESTS=cpu`` the CPU, so that every line runs anywhere."""

from __future__ import annotations

import os

import pytest
import torch

ON_CPU = os.environ.get("TRAINYARD_GPU_TESTS") == "cpu"


@pytest.fixture
def device() -> torch.device:
    """The device to compare with the CPU."""
    if ON_CPU:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return torch.device("cuda")

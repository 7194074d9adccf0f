"""Peak FLOP/s of devices. To add a GPU: a line in ``_PEAK``.

Names are matched in full: "NVIDIA L40" is not an L4. A part that is not in the table (a laptop's, a slice of
a partitioned GPU) has no peak, which is better than a wrong one.
"""

from __future__ import annotations

import functools
import re
import time

import torch

_MAKER = re.compile(r"(NVIDIA |Tesla |GeForce |Graphics Device )*")
_MEMORY = r"( \d+GB)?( HBM\w+)?"
_PEAK: tuple[tuple[str, float, float], ...] = (
    (r"GB200", 2500e12, 80e12),
    (r"B200( SXM\w*)?", 2250e12, 75e12),
    (r"GH200" + _MEMORY, 990e12, 67e12),
    (r"H200( SXM\w*)?", 989e12, 67e12),
    (r"H200 NVL", 835e12, 60e12),
    (r"H[18]00( SXM\w*)?" + _MEMORY, 989e12, 67e12),
    (r"H[18]00 PCIe", 756e12, 51e12),
    (r"H100 NVL", 835e12, 60e12),
    (r"H20" + _MEMORY, 148e12, 44e12),
    (r"A[18]00-(SXM\d?|PCIE)-\d+GB|A[18]00 \d+GB PCIe", 312e12, 19.5e12),
    (r"A30", 165e12, 10.3e12),
    (r"A40", 149.7e12, 37.4e12),
    (r"A10", 125e12, 31.2e12),
    (r"L40S", 362e12, 91.6e12),
    (r"L40", 181e12, 90.5e12),
    (r"L4", 121e12, 30.3e12),
    (r"RTX 6000 Ada Generation", 364e12, 91.1e12),
    (r"RTX A6000", 154.8e12, 38.7e12),
    (r"RTX 5090", 209.5e12, 104.8e12),
    (r"RTX 4090", 165e12, 82.6e12),
    (r"RTX 3090", 71e12, 35.6e12),
)
"""Device name without its maker, and dense peak FLOP/s: bfloat16 matrix products with float32 sums, and
float32 (not TF32), from the vendors' data sheets."""


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the device's peak FLOP/s in matrix products; None for a GPU that is not in the table."""
    if device.type == "cuda":
        return named_peak(torch.cuda.get_device_name(device), dtype)
    return _measured(dtype, torch.get_num_threads())


def named_peak(name: str, dtype: torch.dtype) -> float | None:
    """Return the peak FLOP/s of the GPU with this name; None when it is not in the table."""
    part = _MAKER.sub("", name, count=1).strip()
    for pattern, half, single in _PEAK:
        if re.fullmatch(pattern, part):
            return single if dtype == torch.float32 else half
    return None


@functools.cache
def _measured(dtype: torch.dtype, _threads: int) -> float:
    """Return the best measured FLOP/s of a few products on this CPU, cached per number of threads."""
    size = 768
    a = torch.ones(size, size, dtype=dtype)  # not random: the process's random stream belongs to the run
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best

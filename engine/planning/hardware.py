"""GPUs that a plan can be made for. To add one: a line in ``GPUS``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.errors import ConfigError
from engine.models.memory.plan import Device

CPU = "CPU"
"""Name of a machine without GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Data sheet of a GPU."""

    name: str
    memory: int
    """Bytes of memory."""
    flops: float
    """Dense peak FLOP/s of bfloat16 products."""
    bandwidth: float
    """Peak bytes per second of the memory."""

    @property
    def device(self) -> Device:
        """Return the device type, as torch calls it."""
        return "cpu" if self.name == CPU else "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """GPUs of one kind."""

    gpu: Gpu
    count: int

    def __str__(self) -> str:
        return f"{self.count} × {self.gpu.name}"


def _gpu(name: str, gigabytes: int, teraflops: float, terabytes: float) -> tuple[str, Gpu]:
    return name, Gpu(name=name, memory=gigabytes * 10**9, flops=teraflops * 1e12, bandwidth=terabytes * 1e12)


GPUS: Mapping[str, Gpu] = MappingProxyType(
    dict(
        (
            _gpu("GB200", 186, 2500, 8.0),
            _gpu("B200", 180, 2250, 7.7),
            _gpu("H200", 141, 989, 4.8),
            _gpu("H100", 80, 989, 3.35),
            _gpu("H20", 96, 148, 4.0),
            _gpu("A100", 80, 312, 2.039),
            _gpu("A100-40GB", 40, 312, 1.555),
            _gpu("L40S", 48, 362, 0.864),
            _gpu("L4", 24, 121, 0.3),
            _gpu("A10", 24, 125, 0.6),
            _gpu("RTX-5090", 32, 209.5, 1.792),
            _gpu("RTX-4090", 24, 165, 1.008),
            _gpu("RTX-3090", 24, 71, 0.936),
            _gpu(CPU, 8, 0.5, 0.02),
        )
    )
)
"""Memory (GB), dense bfloat16 TFLOP/s with float32 sums and memory bandwidth (TB/s) from NVIDIA's data
sheets; data-centre GPUs are the SXM modules (GB200 and B200: per GPU, of the NVL72 and HGX systems). ``CPU``
is two nominal cores of a server: machines differ, and finished runs measure their speed."""

_PATTERN = re.compile(r"(?:(\d{1,7})\s*[x×]\s*)?(.+)")


def parse_hardware(text: str) -> Hardware:
    """Return the hardware named like ``8xH100`` or ``H100``. Raises ConfigError with the known GPUs."""
    match = _PATTERN.fullmatch(text.strip())
    count, name = (int(match[1] or 1), match[2].upper()) if match else (0, text)
    if name not in GPUS or not count:
        raise ConfigError(
            f"unknown GPUs '{text}': expected COUNTxNAME, e.g. 8xH100; known names: {', '.join(GPUS)}"
        )
    return Hardware(gpu=GPUS[name], count=count)

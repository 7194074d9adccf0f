"""Proof that a vLLM server computes with the published weights: log-probabilities of a probe, and checksums.

Neither is enough alone. The probe is a sequence of random ids, different for each version, scored by the
trainer and by the server. It detects a different computation (another model, missing tensors, a wrong
layout), but a step at a small learning rate changes log-probabilities by less than the rounding of bfloat16.
A server's checksums are of its fused and sharded tensors, which the trainer cannot predict. But each has to
change exactly if one of its published tensors changed, and replicas of one layout must agree. A server that
ignores an update or a part of it fails the checksums, the probe or both.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Checksums = Mapping[str, str]
"""SHA-256 of each tensor that a server computes with, by rank and name (``dp0:pp0:pcp0:tp0:NAME``)."""
Digests = Mapping[str, int]
"""Digest of each published tensor by name; equal exactly if its bytes are."""

PROBE_TOKENS = 256
_FUSED = (
    (re.compile(r"\.(q|k|v)_proj\."), ".qkv_proj."),
    (re.compile(r"\.(gate|up)_proj\."), ".gate_up_proj."),
)
"""Published tensors that vLLM fuses."""
_BLOCK = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Greatest differences of log-probabilities that rounding explains, in nats."""

    mean: float
    """Of the mean absolute difference over the probe."""
    worst: float
    """Of a single token."""


EXACT = Tolerance(mean=1e-4, worst=1e-4)
"""For float32 in server and trainer; observed differences: up to 5e-6."""
ROUNDED = Tolerance(mean=0.2, worst=2.0)
"""For bfloat16 in server or trainer. A value is rounded by up to 2⁻⁹ of itself. vLLM rounds the residual
stream after each of the 2L blocks' outputs, the trainer never: at random signs that is a relative error of
2⁻⁹ √(2L / 3), 1.3 % for L = 64, of logits whose spread over the vocabulary is a few nats; and logits of up to
32 are themselves rounded by up to 1/16. Both together stay below 0.1 on average and below 0.5 for single
tokens of a few hundred; twice and four times that is allowed. Measured between transformers all in bfloat16
and our trainer in either precision, on CPUs: 0.04 on average and 0.33 at most for the quickstart model, 0.04
and 0.16 for a random Qwen3 of 48 layers. Other weights differ by whole nats at random ids. Checksums
detect smaller changes."""


def tolerance(served: torch.dtype, *, exact_trainer: bool) -> Tolerance:
    """Return the tolerance for a type of the served weights and whether the trainer computes in float32."""
    return EXACT if served == torch.float32 and exact_trainer else ROUNDED


def probe_ids(version: int, *, vocabulary: int, max_context: int) -> tuple[int, ...]:
    """Return the probe of a version: random ids over the whole vocabulary, different for each version."""
    generator = random.Random(f"probe of version {version}")
    length = min(PROBE_TOKENS, max_context - 2)  # room for the token that a request has to sample
    return tuple(generator.randrange(vocabulary) for _ in range(length))


def compare_logprobs(found: Sequence[float], expected: Sequence[float], allowed: Tolerance) -> str:
    """Return why a server's log-probabilities are not the trainer's; empty where they are."""
    mean, worst = differences(found, expected)
    if mean <= allowed.mean and worst <= allowed.worst:  # false for NaN
        return ""
    return (
        f"log-probabilities of the probe differ from the trainer's by {mean:.3g} on average and {worst:.3g} "
        f"at most; expected at most {allowed.mean:g} and {allowed.worst:g}"
    )


def differences(found: Sequence[float], expected: Sequence[float]) -> tuple[float, float]:
    """Return mean and maximum of the absolute differences of two sequences of log-probabilities."""
    gap = (torch.tensor(found, dtype=torch.float64) - torch.tensor(expected, dtype=torch.float64)).abs()
    return float(gap.mean()), float(gap.max())


def check_changes(before: Checksums, after: Checksums, sent_before: Digests, sent: Digests) -> str:
    """Return why a server's checksums contradict the published tensors; empty where they do not.

    Args:
        before: checksums of the previous version.
        after: checksums now.
        sent_before: digests of the previous version's tensors.
        sent: digests of the tensors published now.
    """
    if before.keys() != after.keys():
        return "its weights have other names than before"
    changed = _changed(before, after)
    published = {name: sent_before.get(name) != digest for name, digest in sent.items()}
    parts: dict[str, list[bool]] = defaultdict(list)
    for name, is_changed in published.items():
        parts[_fused(name)].append(is_changed)
    for name in sorted(changed.keys() & parts.keys()):
        if changed[name] != any(parts[name]):
            return _contradiction(name, changed[name])
    blocks: dict[str, list[bool]] = defaultdict(list)  # for tensors served under other names, e.g. experts
    for name, is_changed in published.items():
        blocks[_block(name)].append(is_changed)
    served: dict[str, list[bool]] = defaultdict(list)
    for name, is_changed in changed.items():
        served[_block(name)].append(is_changed)
    for block in sorted(served.keys() & blocks.keys()):
        if any(served[block]) != any(blocks[block]):
            return _contradiction(f"layer {block}" if block else "the embedding", any(served[block]))
    return ""


def find_deviating(
    checksums: Sequence[Checksums | None], proven: Mapping[frozenset[str], Checksums]
) -> list[bool]:
    """Return for each server whether its checksums differ from those expected of its layout.

    Expected are the proven checksums, else the majority's; without either, all servers of the layout differ.

    Args:
        checksums: one entry per server; None never differs.
        proven: checksums of each layout that servers have proven before, by the names of its tensors.
    """
    layouts: dict[frozenset[str], list[Checksums]] = defaultdict(list)
    for weights in checksums:
        if weights is not None:
            layouts[frozenset(weights)].append(weights)
    accepted = {
        names: proven.get(names) or next((c for c in layout if 2 * layout.count(c) > len(layout)), None)
        for names, layout in layouts.items()
    }
    return [weights is not None and accepted[frozenset(weights)] != weights for weights in checksums]


def _changed(before: Checksums, after: Checksums) -> dict[str, bool]:
    """Return whether each tensor changed in any rank, by name without the rank."""
    changed: dict[str, bool] = defaultdict(bool)
    for key, checksum in after.items():
        changed[key.rpartition(":")[2]] |= before[key] != checksum
    return dict(changed)


def _fused(name: str) -> str:
    for pattern, fused in _FUSED:
        name = pattern.sub(fused, name)
    return name


def _block(name: str) -> str:
    """Return the number of a tensor's layer; empty outside of the layers."""
    match = _BLOCK.search(name)
    return match[1] if match else ""


def _contradiction(what: str, has_changed: bool) -> str:
    if has_changed:
        return f"its checksums of {what} changed, though its published tensors did not"
    return f"its checksums of {what} are those of the previous version, though other weights were published"

"""The sampler of a run on given GPUs: room in its KV cache, and time per token.

A decoding step reads the weights and the keys and values of all conversations, and computes the new tokens
with the prefill between them; the slower of the two defines its time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config.policies import TransformerPolicyConfig
from engine.models.sizes import ModelSizes
from engine.planning.assumptions import Assumptions
from engine.planning.hardware import Gpu
from engine.planning.shapes import Shape

BYTES = 2
"""Bytes of a weight, key or value of the sampler, in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Replicas of a model on GPUs of one kind; sizes are those of one replica."""

    shape: Shape
    sizes: ModelSizes
    policy: TransformerPolicyConfig
    gpu: Gpu
    assume: Assumptions

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return self.policy.vllm.replicas if self.policy.engine == "vllm" else 1

    @property
    def width(self) -> int:
        """Return the number of GPUs of a replica."""
        return self.policy.vllm.tensor_parallel if self.policy.engine == "vllm" else 1

    @property
    def weights(self) -> int:
        """Return the bytes of the weights on each GPU."""
        return BYTES * self.sizes.parameters // self.width

    @property
    def cache(self) -> int:
        """Return the bytes of a vLLM server's KV cache on each GPU."""
        share = self.policy.vllm.gpu_memory - self.assume.sampler_reserve
        return max(0, round(share * self.gpu.memory) - self.weights)

    @property
    def token_bytes(self) -> int:
        """Return the bytes of a token's keys and values; GPUs beyond the key heads hold copies."""
        copies = max(1, self.width * self.shape.head // self.shape.keys)
        return BYTES * self.shape.cache_values * copies

    def cache_tokens(self) -> int:
        """Return the number of tokens that a vLLM server's KV cache holds."""
        return self.cache * self.width // self.token_bytes

    def concurrent(self, reserved: float) -> float:
        """Return the maximum number of conversations at once in all replicas.

        Args:
            reserved: mean tokens that a conversation reserves.
        """
        room = float(self.policy.max_batch)
        if self.policy.engine == "vllm":
            room = min(room, self.policy.vllm.cache_share * self.cache_tokens() / reserved)
        return max(1.0, room) * self.replicas

    def latency(self, sequences: float, context: float, prefill: float) -> float:
        """Return the seconds per token, as ``engine.planning.rollouts.Latency``."""
        batch = max(1.0, sequences / self.replicas)
        read = BYTES * self._touched(batch) + batch * context * self.token_bytes
        attention = 2.0 * context * sum(block.attention for block in self.sizes.blocks)
        products = 2.0 * sum(block.products for block in self.sizes.blocks)
        flops = batch * ((1 + prefill) * (products + attention) + 2.0 * self.sizes.head)
        reading = read / (self.assume.sampler_bandwidth * self.gpu.bandwidth * self.width)
        computing = flops / (self.assume.sampler_mfu * self.gpu.flops * self.width)
        return self.assume.sampler_slowdown * (self.assume.decode_overhead_s + max(reading, computing))

    def _touched(self, batch: float) -> float:
        """Return the expected number of parameters that a step reads, without experts that no token chose."""
        experts = self.shape.expert_parameters
        if not experts:
            return self.sizes.parameters
        unused = math.pow(1 - self.shape.chosen / self.shape.experts, batch)
        return self.sizes.parameters - experts * unused

"""The transformer: Qwen3's architecture in plain PyTorch, with a KV cache for sampling.

Parameter names and ``config.json`` are those of ``transformers``' ``Qwen3ForCausalLM``, so a saved
folder loads there unchanged (and any dense Qwen3 loads here). It is written out here because the
sampler and the trainer share one set of weights and need exact control over numerics and cache.
To add an architecture: put a named ``TransformerConfig`` in ``ARCHITECTURES`` (``fresh:<name>``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape of a model, under the keys of Qwen3's ``config.json``.

    ``from_json(qwen3_config.to_dict())`` makes one of a ``transformers.Qwen3Config``.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int = 2048
    """Longest sequence, tokens."""
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_theta": 10_000.0, "rope_type": "default"}
    )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TransformerConfig:
        """Read ``config.json``'s content.

        Raises:
            CheckpointError: another architecture, or a setting this model does not have.
        """
        if data.get("model_type") != "qwen3":
            raise CheckpointError(f"model_type is {data.get('model_type')!r}; only 'qwen3' is supported")
        if data.get("attention_bias") or data.get("use_sliding_window"):
            raise CheckpointError("attention_bias and use_sliding_window are not supported")
        rope = data.get("rope_parameters") or {"rope_theta": data.get("rope_theta", 10_000.0)}
        if rope.get("rope_type", "default") != "default":
            raise CheckpointError(f"rope_type {rope['rope_type']!r} is not supported")
        names = set(cls.__dataclass_fields__) - {"rope_parameters"}
        values = {name: data[name] for name in names if name in data}
        rope = {"rope_theta": float(rope["rope_theta"]), "rope_type": "default"}
        return cls(**values, rope_parameters=rope)

    def to_json(self) -> dict[str, Any]:
        """Content of a ``config.json`` that ``transformers`` reads."""
        return {
            **asdict(self),
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "hidden_act": "silu",
            "use_sliding_window": False,
        }


ARCHITECTURES: Mapping[str, TransformerConfig] = {
    "quickstart": TransformerConfig(
        vocab_size=2048,
        hidden_size=160,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        intermediate_size=448,
    ),
    "frozenlake": TransformerConfig(
        vocab_size=384,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=1024,
    ),
    "tiny": TransformerConfig(
        vocab_size=2048,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
    ),
}


_GROWTH = 256
"""Positions a cache grows by: doubling would hold twice what the longest sequence needs, in every row."""


class KVCache:
    """Keys and values of ``rows`` sequences, ``[layers, rows, kv_heads, capacity, head_dim]`` each."""

    def __init__(
        self, config: TransformerConfig, rows: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._limit = config.max_position_embeddings
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, 0, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def reserve(self, length: int) -> None:
        """Make room for sequences of ``length`` tokens, keeping what is stored."""
        have = self.keys.shape[3]
        if length <= have:
            return
        capacity = min(-(-length // _GROWTH) * _GROWTH, max(length, self._limit))
        pad = (0, 0, 0, capacity - have)
        self.keys = functional.pad(self.keys, pad)
        self.values = functional.pad(self.values, pad)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions ``start`` … ``end``-1 of one row to another."""
        for store in (self.keys, self.values):
            store[:, target, :, start:end] = store[:, source, :, start:end]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first ``length`` positions of two rows."""
        if a == b or length == 0:
            return
        for store in (self.keys, self.values):
            kept = store[:, a, :, :length].clone()
            store[:, a, :, :length] = store[:, b, :, :length]
            store[:, b, :, :length] = kept


@dataclass(slots=True)
class _Cached:
    """One cached forward: which cache positions the new tokens take and what they may attend to."""

    cache: KVCache
    rows: Tensor
    """[n, 1] indices of the n consecutive rows."""
    positions: Tensor
    """[n, T] positions of the new tokens."""
    visible: Tensor
    """[n, 1, T, K] True where a query sees a key."""


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as ``x``."""
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with grouped queries, RoPE and normalised queries and keys."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)
        self.q_norm = RMSNorm(self.size, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cached: _Cached | None, layer: int) -> Tensor:
        """[n, T, hidden] → [n, T, hidden]; writes to the cache when there is one."""
        n, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(n, length, self.heads, self.size)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(n, length, self.kv_heads, self.size)).transpose(1, 2)
        v = self.v_proj(x).view(n, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = _rotate(q, rope), _rotate(k, rope)
        grouped = self.heads != self.kv_heads
        if cached is None:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        else:
            keys, values = cached.cache.keys[layer], cached.cache.values[layer]
            keys[cached.rows, :, cached.positions] = k.transpose(1, 2)
            values[cached.rows, :, cached.positions] = v.transpose(1, 2)
            first, seen = int(cached.rows[0, 0]), cached.visible.shape[-1]
            mine = slice(first, first + n), slice(None), slice(seen)
            out = functional.scaled_dot_product_attention(
                q, keys[mine], values[mine], attn_mask=cached.visible, enable_gqa=grouped
            )
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(n, length, -1))
        return merged


class MLP(nn.Module):
    """SwiGLU feed-forward block."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] → [..., hidden]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cached: _Cached | None, layer: int) -> Tensor:
        """[n, T, hidden] → [n, T, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), rope, cached, layer)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Trunk(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Transformer(nn.Module):
    """A causal language model.

    Args:
        config: shape of the model.
        seed: initialises the weights, the same on every machine.
    """

    def __init__(self, config: TransformerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.model = _Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        theta = float(config.rope_parameters["rope_theta"])
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._frequencies: Tensor
        self.register_buffer("_frequencies", theta**-exponent, persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    def _initialise(self, generator: torch.Generator) -> None:
        """Scaled normal weights; keys start out equal to queries, so that same tokens attend to each other.

        A small model finds copying, which every edit needs, much sooner from there.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                continue
            fan_in = parameter.shape[1]
            std = 0.02 if "embed_tokens" in name or "lm_head" in name else 1 / math.sqrt(fan_in)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2 * self.config.num_hidden_layers)
            nn.init.normal_(parameter, std=std, generator=generator)
        for module in self.modules():
            if isinstance(module, Attention) and module.heads == module.kv_heads:
                module.k_proj.weight.data.copy_(module.q_proj.weight.data)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits of right-padded sequences.

        Args:
            ids: int64 [B, T]; anything may stand after a sequence's end.
            lengths: int64 [B], 1 … T.

        Returns:
            [B, T, V]; zeros after a sequence's end.
        """
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        return self.logits(self.hidden(ids) * inside.unsqueeze(2))

    def hidden(self, ids: Tensor) -> Tensor:
        """Final hidden states [B, T, H] of right-padded ids [B, T]; padding rows hold nothing of use."""
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        return self._run(ids, positions, None)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] → [..., V]."""
        head = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return functional.linear(hidden, head.weight)

    def extend(self, ids: Tensor, starts: Tensor, lengths: Tensor, cache: KVCache, first: int) -> Tensor:
        """Continue the sequences in the cache's rows first … first+n-1 and return their next-token logits.

        Args:
            ids: int64 [n, T] new tokens, right-padded; the padding's cache entries are overwritten later.
            starts: int64 [n] tokens already in the cache.
            lengths: int64 [n] how many of the T are real, ≥ 1.
            cache: must have room for ``max(starts) + T`` tokens.
            first: row of the first sequence.

        Returns:
            [n, V]: logits after each sequence's last real token.
        """
        n, width = ids.shape
        positions = starts.unsqueeze(1) + torch.arange(width, device=ids.device)
        seen = int((starts + lengths).max())
        visible = torch.arange(seen, device=ids.device) <= positions.unsqueeze(2)
        rows = torch.arange(first, first + n, device=ids.device).unsqueeze(1)
        cached = _Cached(cache=cache, rows=rows, positions=positions, visible=visible.unsqueeze(1))
        hidden = self._run(ids, positions, cached)
        return self.logits(hidden[torch.arange(n, device=ids.device), lengths - 1])

    def _run(self, ids: Tensor, positions: Tensor, cached: _Cached | None) -> Tensor:
        angles = positions.unsqueeze(-1) * self._frequencies
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        rope = angles.cos(), angles.sin()
        x = self.model.embed_tokens(ids)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, rope, cached, index)
        out: Tensor = self.model.norm(x)
        return out


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)

"""The transformer: Qwen3's architecture in plain PyTorch, with a KV cache for sampling.

Parameter names and ``config.json`` are those of ``transformers``' ``Qwen3ForCausalLM``, so a saved
folder loads there unchanged (and any dense Qwen3 loads here). It is written out here because the
sampler and the trainer share one set of weights and need exact control over numerics and cache.

Cached forwards give each token the same bits in every batch and for every cut of a prompt: their
matrix products have few fixed shapes (``cached_attention``), which are checked on each machine
(``batch_invariance``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engine.models.attention import Segments, attend
from engine.models.base import Head, LanguageModel
from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.cached_attention import CachedChunk, Tiles
from engine.models.builtin.kv_cache import KVCache
from engine.models.caches.base import Piece, split_into_chunks

Rope = tuple[Tensor, Tensor]
"""Cosines and sines of the rotary embedding, [..., 1, D]."""
Context = CachedChunk | Segments | None
"""Context of the tokens: a cache, their segment of a packed row, or (None) their row of a batch."""


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32 or float64."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised ``x``, of the same shape."""
        wide = torch.promote_types(x.dtype, torch.float32)
        weight = autocast_weight(self.weight).to(wide)
        return functional.rms_norm(x.to(wide), (x.shape[-1],), weight, self.eps).to(x.dtype)


def autocast_weight(weight: Tensor) -> Tensor:
    """Return the weight rounded to autocast's precision, if that is enabled.

    autocast rounds only the weights of matrix products; FSDP gathers every weight rounded.
    """
    device = weight.device.type
    return weight.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else weight


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

    def forward(self, x: Tensor, rope: Rope, context: Context, layer: int) -> Tensor:
        """Compute attention, [..., hidden] → [..., hidden]; writes to the cache when there is one."""
        shape = *x.shape[:-1], -1, self.size
        q = self.q_norm(self.q_proj(x).view(shape))
        k = self.k_norm(self.k_proj(x).view(shape))
        v = self.v_proj(x).view(shape)
        q, k = _rotate(q, rope), _rotate(k, rope)
        if isinstance(context, CachedChunk):
            out = context.attend(layer, q, k, v)
        elif isinstance(context, Segments):
            out = attend(q, k, v, context)
        else:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            grouped = self.heads != self.kv_heads
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            out = out.transpose(1, 2)
        merged: Tensor = self.o_proj(out.flatten(-2))
        return merged


class MLP(nn.Module):
    """SwiGLU feed-forward block."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, *, invariant: bool = False) -> Tensor:
        """Compute [..., hidden] → [..., hidden]; ``invariant`` rounds elements alike at every position."""
        activate = _invariant_silu if invariant else functional.silu
        out: Tensor = self.down_proj(activate(self.gate_proj(x)) * self.up_proj(x))
        return out


def _invariant_silu(x: Tensor) -> Tensor:
    """Compute x · sigmoid(x); torch's own uses another formula for elements that do not fill a vector."""
    return x / x.neg().exp_().add_(1)


class Block(nn.Module):
    """A layer: attention and feed-forward, each with a norm before it and a residual around it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.recompute = False
        """Activation checkpointing: only the input is kept for the backward pass, the rest is recomputed."""

    def forward(self, x: Tensor, rope: Rope, context: Context, layer: int) -> Tensor:
        """Compute the layer, [..., hidden] → [..., hidden]."""
        if self.recompute and torch.is_grad_enabled():
            kept: Tensor = checkpoint(self._apply_layers, x, rope, context, layer, use_reentrant=False)
            return kept
        return self._apply_layers(x, rope, context, layer)

    def _apply_layers(self, x: Tensor, rope: Rope, context: Context, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, context, layer)
        invariant = isinstance(context, CachedChunk)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x), invariant=invariant)
        return out


class _Trunk(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Transformer(LanguageModel):
    """A small causal language model.

    Args:
        config: shape of the model.
        seed: initialises the weights, the same on every machine.
    """

    def __init__(self, config: TransformerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.family = "qwen3"
        self.vocab_size = config.vocab_size
        self.max_context = config.max_position_embeddings
        self.model = _Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        theta = float(config.rope_parameters["rope_theta"])
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._frequencies: Tensor
        self.register_buffer("_frequencies", theta**-exponent, persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    def _initialise(self, generator: torch.Generator) -> None:
        """Initialise scaled normal weights; keys start equal to queries, so that equal tokens attend.

        From this start a small model learns copying, which every edit needs, much sooner.
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
        """Return logits of right-padded sequences.

        Args:
            ids: int64 [B, T]; arbitrary after a sequence's end.
            lengths: int64 [B], 1 … T.

        Returns:
            [B, T, V]; zeros after a sequence's end.
        """
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        return self.logits(self.hidden(ids) * inside.unsqueeze(2))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return final hidden states [B, T, H] of right-padded ids [B, T]; padding rows are meaningless."""
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        return self._run(ids, positions, None)

    def packed_hidden(self, ids: Tensor, segments: Segments) -> Tensor:
        """Return final hidden states [T, H] of one packed row of ids [T]."""
        return self._run(ids, segments.positions, segments)

    @property
    def head(self) -> Head:
        """Return the output layer."""
        tied = self.config.tie_word_embeddings
        return Head(weight=self.model.embed_tokens.weight if tied else self.lm_head.weight)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Return the layers in order."""
        return list(self.model.layers)

    def set_activation_checkpointing(self, on: bool) -> None:
        """Keep only each layer's input for the backward pass, or everything."""
        for block in self.model.layers:
            assert isinstance(block, Block)
            block.recompute = on

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, [..., H] → [..., V]."""
        return functional.linear(hidden, self.head.weight)

    def extend(self, pieces: Sequence[Piece], cache: KVCache, tiles: Tiles) -> Tensor:
        """Continue sequences in the cache and return their next-token logits.

        Args:
            pieces: new tokens of n sequences, in consecutive rows of the cache.
            cache: grows as needed.
            tiles: shapes to compute in.

        Returns:
            [n, V]: logits after each piece's last token.
        """
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        rows: list[int] = []
        states: list[Tensor] = []
        for chunk in split_into_chunks(pieces, tiles.max_rows):
            cached = CachedChunk(chunk, cache, tiles, group=group)
            states.append(self._run(cached.ids, cached.positions, cached)[cached.last])
            rows += [piece.row for piece in chunk]
        last = {row: index for index, row in enumerate(rows)}  # the last chunk of a cut piece wins
        ends = torch.cat(states)[[last[piece.row] for piece in pieces]]
        logits = []
        for part in torch.split(ends, tiles.max_rows):
            padded = functional.pad(part, (0, 0, 0, -len(part) % tiles.row_step))
            logits.append(self.logits(padded)[: len(part)])
        return torch.cat(logits)

    def _run(self, ids: Tensor, positions: Tensor, context: Context) -> Tensor:
        angles = positions.unsqueeze(-1) * self._frequencies
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(-2)
        rope = angles.cos(), angles.sin()
        x = functional.embedding(ids, autocast_weight(self.model.embed_tokens.weight))
        if torch.is_autocast_enabled(x.device.type):
            x = x.float()  # the residual stream is never rounded
        for index, layer in enumerate(self.model.layers):
            x = layer(x, rope, context, index)
        out: Tensor = self.model.norm(x)
        return out


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    cos, sin = rope
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)

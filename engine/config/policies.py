"""Settings of policies: transformers, endpoints and scripts.

To add a policy: a section with its own ``type``, a member of ``PolicyConfig`` and a case in
``engine.orchestrator.policies.policies``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from engine.config.access.places import (
    AttachedServers,
    CheckpointPlace,
    EndpointPlace,
    Granted,
    Harmless,
    LocalPath,
    Text,
)
from engine.config.base import ImpossibleSettingsError, Section
from engine.errors import Problem

_OWN_SERVERS = (
    "launcher", "python", "replicas", "tensor_parallel", "gpu_memory", "cpu_cache_gib", "start_timeout_s",
    "max_restarts",
)  # fmt: skip
"""Settings of servers that the run starts."""


class VllmConfig(Section):
    """vLLM servers that sample the policy; used with ``policy.engine`` = ``vllm``."""

    addresses: Annotated[tuple[str, ...], AttachedServers()] = ()
    """Running servers: names of endpoints that runs may attach to, with their keys, or addresses
    (``http://HOST:PORT``), outside of a server with the key in ``TRAINYARD_VLLM_KEY``; empty: the run starts
    its own."""
    launcher: Literal["local", "ray"] = "local"
    """Place of servers that the run starts: its own machine, or nodes of the Ray cluster that it is a job of
    (``launcher.backend`` = ``ray``), spread over them."""
    python: Annotated[str, Granted()] = ""
    """Interpreter of the environment with vLLM, on every node; empty: the one that ``make vllm`` made, else
    this one."""
    replicas: int = Field(default=1, ge=1)
    """Number of servers that the run starts."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Number of devices over which each server splits the model."""
    gpu_memory: float = Field(default=0.85, gt=0, lt=1)
    """Share of a GPU's memory that a server may use, weights and KV cache together."""
    cpu_cache_gib: float = Field(default=1.0, gt=0)
    """Size of a server's KV cache on a machine without GPU, GiB."""
    cache_share: float = Field(default=0.9, gt=0)
    """Share of a server's KV cache that the conversations in flight may fill before new ones have to wait."""
    transfer: Literal["auto", "disk", "nccl", "ipc"] = "auto"
    """Transfer of new weights to the servers: by files, by NCCL, or by CUDA IPC on the same device; ``auto``
    uses NCCL between GPUs to servers that the run starts, else files."""
    in_flight: Literal["finish", "keep", "abort"] = "finish"
    """Requests in flight when weights change: ``finish`` waits for them, ``keep`` freezes them and continues
    with the new weights, ``abort`` sends them again."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Maximum time for a server to start, seconds."""
    stall_timeout_s: float = Field(default=120.0, gt=0)
    """Maximum time that a server may leave its requests without a token, seconds; it is then restarted."""
    max_restarts: int = Field(default=3, ge=0)
    """Consecutive restarts, none of which served for ten minutes, after which a server is left out."""

    @model_validator(mode="after")
    def _effective(self) -> VllmConfig:
        if not self.addresses:
            return self
        inert = [
            name for name in _OWN_SERVERS if getattr(self, name) != type(self).model_fields[name].default
        ]
        if inert:
            raise ImpossibleSettingsError(
                Problem("has no effect on the running servers of policy.vllm.addresses: leave it out", name)
                for name in inert
            )
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError("addresses names a server twice")
        return self


class TransformerPolicyConfig(Section):
    """A transformer, sampled by the engine's own batched KV-cache sampler or by vLLM."""

    type: Literal["transformer"] = "transformer"
    checkpoint: Annotated[str, CheckpointPlace()] = "builtin:quickstart"
    """Folder with config.json, safetensors and tokenizer files, or GGUF file (on a server: below a policy
    folder), ``OWNER/NAME`` (Hugging Face Hub; on a server: of the administrator's list), ``builtin:<name>``
    (shipped with the engine), ``run:<id>`` (last checkpoint of a run), ``fresh:<architecture or folder>``
    (random weights), or ``warm`` (FrozenLake: trained by imitation as set by
    ``environment.warm_start_*``, once per data folder)."""
    engine: Literal["builtin", "vllm"] = "builtin"
    """Sampler: ``builtin`` runs in the trainer's process and needs nothing else, ``vllm`` in processes of its
    own."""
    vllm: VllmConfig = VllmConfig()
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Probability mass of nucleus sampling."""
    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens to sample from; 0 samples from all."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Minimum probability of a sampled token, as a share of the most likely one's; 0 samples from all."""
    max_batch: int = Field(default=64, ge=1)
    """Maximum number of sequences sampled at once, by each server with ``engine`` = ``vllm``."""
    precision: Literal["auto", "f32", "bf16"] = "auto"
    """Precision of sampling (and of a judge's scores) by either engine. ``auto``: in training as
    ``trainer.precision``, else bf16 on a GPU and on processors that multiply it faster. The built-in
    sampler computes built-in policies in f32 always."""

    @model_validator(mode="after")
    def _effective(self) -> TransformerPolicyConfig:
        if self.vllm.addresses and self.precision != "auto":
            raise ImpossibleSettingsError(
                [Problem("has no effect on the running servers of policy.vllm.addresses", "precision")]
            )
        if self.engine == "builtin" and self.vllm != VllmConfig():
            names = [
                name
                for name in VllmConfig.model_fields
                if getattr(self.vllm, name) != getattr(VllmConfig(), name)
            ]
            raise ImpossibleSettingsError(
                Problem(
                    "has no effect while engine is 'builtin': leave it out, or set engine to 'vllm'",
                    f"vllm.{name}",
                )
                for name in names
            )
        return self


_MAX_EXTRA_CHARS = 8000
_SET_ELSEWHERE: Mapping[str, str] = {
    "model": "model", "temperature": "temperature", "top_p": "top_p", "reasoning_effort": "reasoning_effort",
    "max_tokens": "token_limit_name", "max_completion_tokens": "token_limit_name", "seed": "send_seed",
    "tool_choice": "tool_choice", "parallel_tool_calls": "single_call", "stream": "stream",
    "stream_options": "stream", "messages": "", "tools": "", "functions": "", "n": "", "models": "",
    "fallbacks": "", "api_base": "", "base_url": "", "api_key": "",
}  # fmt: skip
"""Request fields that the run itself sends → the setting of each; empty: no setting. The last five would
redirect gateways to another model or server."""


class EndpointPolicyConfig(Section):
    """A model behind an OpenAI-compatible address: for collecting and evaluating, never trained."""

    type: Literal["endpoint"] = "endpoint"
    endpoint: Annotated[str, EndpointPlace()]
    """Name of an endpoint that the administrator entered, with its key; outside of a server also an address
    (``http://HOST:PORT/v1``), with the key in ``TRAINYARD_ENDPOINT_KEY``."""
    model: Text = Field(min_length=1)
    """Model, as the endpoint names it."""
    answers_as: Text = ""
    """Model named in the endpoint's responses if it differs, as with deployments and aliases; empty:
    ``model``, also with a provider as prefix or a date as suffix."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; None leaves it to the endpoint, which some reasoning models require."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Probability mass of nucleus sampling; None leaves it to the endpoint."""
    reasoning_effort: Text = ""
    """Effort of reasoning models (``low``, ``medium``, ``high``); empty leaves it out."""
    extra_body: Annotated[Mapping[str, JsonValue], Harmless()] = {}
    """Further fields of every request, a JSON object of options that have no setting: ``{"top_k": 20}``, or
    ``{"chat_template_kwargs": {"enable_thinking": false}}`` (Qwen3 without thinking on vLLM and SGLang)."""
    token_limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the parameter that limits a response's tokens; OpenAI's reasoning models take the latter."""
    send_seed: bool = True
    """Send each request's seed; some endpoints refuse it."""
    tool_choice: Literal["auto", "required"] = "auto"
    """``auto`` allows answers without a tool call; ``required`` forbids them if endpoints can enforce it."""
    single_call: bool = True
    """Ask for one tool call per response (``parallel_tool_calls``: false), as agents expect; some endpoints
    refuse the parameter."""
    thinking_field: Literal["", "reasoning_content", "reasoning"] = ""
    """Field in which the thinking of earlier turns is sent back to models that want it; empty leaves it out,
    since other endpoints refuse it."""
    stream: bool = False
    """Receive responses while they are generated: stalls are noticed early and proxies keep long responses
    connected. Costs more CPU, and some servers read tool calls less reliably in streams."""
    stall_timeout_s: float = Field(default=120.0, gt=0)
    """Maximum pause between two parts of a streamed response, seconds."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Rate limit of requests; None sets none."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Rate limit of tokens, prompts and responses together; None sets none."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Maximum time of one request, seconds."""
    max_retries: int = Field(default=8, ge=0)
    """Retries of a request that met a rate limit, a time-out, a broken connection or a server error."""
    input_price: float | None = Field(default=None, ge=0)
    """US dollars per million prompt tokens; None: unknown."""
    cached_price: float | None = Field(default=None, ge=0)
    """US dollars per million prompt tokens from the endpoint's cache; None: as ``input_price``."""
    output_price: float | None = Field(default=None, ge=0)
    """US dollars per million tokens of responses; None: unknown."""
    spend_limit: float | None = Field(default=None, gt=0)
    """US dollars after which the run ends as stopped; needs prices. None sets no limit."""

    @field_validator("extra_body")
    @classmethod
    def _adds_only(cls, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in extra:
            if setting := _SET_ELSEWHERE.get(name):
                raise ValueError(f"'{name}' is set by policy.{setting}: leave it out")
            if name in _SET_ELSEWHERE or not name.isprintable() or not name:
                raise ValueError(
                    f"'{name[:64]}' cannot be set: the run sets it, or it is not a valid field name"
                )
        try:
            text = json.dumps(dict(extra), allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if len(text) > _MAX_EXTRA_CHARS:
            raise ValueError(f"{len(text)} characters, above {_MAX_EXTRA_CHARS}")
        return extra

    @model_validator(mode="after")
    def _possible(self) -> EndpointPolicyConfig:
        if self.spend_limit is not None and (self.input_price is None or self.output_price is None):
            raise ImpossibleSettingsError(
                [Problem("needs input_price and output_price: without them no cost is known", "spend_limit")]
            )
        return self


class NoPolicyConfig(Section):
    """No model."""

    type: Literal["none"] = "none"


class OraclePolicyConfig(Section):
    """Oracle: applies the gold patch through the tools, then submits."""

    type: Literal["oracle"] = "oracle"


class NoopPolicyConfig(Section):
    """No-op: submits at once without any change."""

    type: Literal["noop"] = "noop"


class ReplayPolicyConfig(Section):
    """Replay of the responses of stored trajectories."""

    type: Literal["replay"] = "replay"
    source: Annotated[str, LocalPath("imports")]
    """JSONL file of trajectories, as Trainyard exports them."""


PolicyConfig = Annotated[
    TransformerPolicyConfig
    | EndpointPolicyConfig
    | OraclePolicyConfig
    | NoopPolicyConfig
    | ReplayPolicyConfig,
    Field(discriminator="type"),
]

JudgePolicyConfig = Annotated[TransformerPolicyConfig | EndpointPolicyConfig, Field(discriminator="type")]
"""Models that a verifier can use."""

OptionalPolicyConfig = Annotated[
    NoPolicyConfig | TransformerPolicyConfig | EndpointPolicyConfig, Field(discriminator="type")
]
"""Models that write or judge parts of a dataset, or none."""

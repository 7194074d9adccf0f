"""The endpoint policy against a real vLLM server with tools: its calls, usage, limits and errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from pydantic import SecretStr
from transformers import AutoConfig

from engine.config.policies import EndpointPolicyConfig
from engine.config.recipes import resolve
from engine.errors import ContextLengthError, EndpointRefusedError, ScoreError
from engine.inference.base import ChatRequest, GenerationContext, SamplingParams
from engine.inference.endpoint import keys
from engine.inference.endpoint.keys import Endpoint
from engine.inference.endpoint.policy import EndpointPolicy
from engine.inference.vllm.servers.server import VllmServer
from engine.models.loader import open_model
from engine.models.published.networks import build_causal
from engine.models.published.tiny import write_tiny_model
from engine.orchestrator import execute
from engine.tools.parser import parse_native
from engine.tools.schemas import LAKE_TOOLS
from engine.verifiers.execution_free import EndpointJudge, Transcript, judge_messages
from engine.verifiers.execution_free.answers import differing
from engine.verifiers.execution_free.token_judge import ModelScorer
from tests.builders.rollout_builders import make_key, make_row
from tests.drills.vllm.servers import command
from tests.integration.toy_yard import events, open_context

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with tools, which the tiny model's own template lacks."""
TOOLS = [tool.json_schema() for tool in LAKE_TOOLS.values()]
MAX_CONTEXT = 4096


@pytest.fixture(scope="module")
def server(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server of a tiny random model with hermes' tool calls."""
    folder = tmp_path_factory.mktemp("endpoint")
    write_tiny_model("Qwen/Qwen3-0.6B", folder / "model", home=folder)
    config = AutoConfig.from_pretrained(folder / "model")
    config.head_dim = 64  # the smallest of vLLM's attention on the CPU
    build_causal(config, seed=0).save_pretrained(folder / "model")
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = [
        "--enable-auto-tool-choice",
        *("--tool-call-parser", "hermes"),
        *("--tool-strict-level", "parameter"),  # without it a call's arguments may be any JSON
        "--enable-prompt-tokens-details",
    ]
    settings = command(
        folder / "model",
        vllm_python,
        max_context=MAX_CONTEXT,
        cpu_cache_gib=1.0,
        has_tokenizer=True,
        extra=(*flags, "--chat-template", str(folder / "template.jinja")),
    )
    server = VllmServer(settings, log=folder / "vllm.log")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@asynccontextmanager
async def opened(
    server: VllmServer, *, key: str | None = None, model: str = "policy", **settings: Any
) -> AsyncIterator[EndpointPolicy]:
    address = f"{server.address}/v1"
    config = EndpointPolicyConfig(endpoint=address, model=model, max_retries=1, **settings)
    endpoint = Endpoint(address=address, key=server.api_key if key is None else key)
    policy = EndpointPolicy(config, endpoint)
    try:
        yield policy
    finally:
        await policy.close()


def request(text: str = "Go.", *, seed: int = 0, max_tokens: int = 512, **sampling: Any) -> ChatRequest:
    return ChatRequest(
        messages=[{"role": "user", "content": text}],
        tools=TOOLS,
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        seed=seed,
        context=GenerationContext(key=make_key(), row=make_row()),
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_native_calls_are_returned_with_their_usage(server: VllmServer, stream: bool) -> None:
    async with opened(
        server, stream=stream, tool_choice="required", input_price=1.0, output_price=1.0
    ) as policy:
        await policy.check(TOOLS)
        assert policy.max_context == MAX_CONTEXT
        responses = await asyncio.gather(*(policy.respond(request(seed=seed)) for seed in range(8)))
        repeated = await policy.respond(request(seed=0))
    parsed = [parse_native(response.calls, LAKE_TOOLS).call for response in responses if response.stopped]
    assert len(parsed) >= 4
    assert {call.name for call in parsed if call} == {"move"}
    assert all(parsed)
    assert len({str(call) for call in parsed}) > 1
    for response in responses:
        usage = response.usage
        assert usage.prompt_tokens > 100
        assert 0 < usage.generated_tokens <= 512
        assert usage.cost == pytest.approx((usage.prompt_tokens + usage.generated_tokens) / 1e6)
    assert repeated.usage.cached_tokens > 0
    assert repeated.calls == responses[0].calls


async def test_a_text_without_calls_is_a_response(server: VllmServer) -> None:
    async with opened(server) as policy:
        response = await policy.respond(request(max_tokens=8))
    assert not response.stopped
    assert response.content
    assert response.usage.generated_tokens == 8


async def test_full_context_raises_context_length_error(server: VllmServer) -> None:
    async with opened(server) as policy:
        with pytest.raises(ContextLengthError):
            await policy.respond(request("x" * 2 * MAX_CONTEXT, max_tokens=16))


async def test_wrong_key_and_wrong_model_raise_endpoint_refused_error(server: VllmServer) -> None:
    async with opened(server, key="a-wrong-key-0815") as policy:
        with pytest.raises(EndpointRefusedError, match="refuses the key"):
            await policy.check(TOOLS)
    async with opened(server, model="other") as policy:
        with pytest.raises(EndpointRefusedError, match="no such model"):
            await policy.check(TOOLS)


def test_evaluation_with_native_calls_records_steps_and_cached_tokens(
    server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents cross a frozen lake."""
    lab = Endpoint(address=f"{server.address}/v1", key=SecretStr(server.api_key))
    monkeypatch.setitem(keys._named, "lab", lab)
    settings = {
        "policy.type": "endpoint",
        "policy.endpoint": "lab",
        "policy.model": "policy",
        "policy.tool_choice": "required",
        "agent.tool_format": "native",
        "agent.max_context": MAX_CONTEXT,
        "agent.max_response": 256,
        "rollout.group_size": 1,
        "rollout.max_concurrent": 8,
        "environment.heldout_maps": 8,
    }
    config = resolve("frozenlake-evaluate", settings)
    with open_context(tmp_path, "lake", config) as run:
        assert execute(config, run) == 0
    finished = [event for event in events(run.run_dir) if event["type"] == "trajectory_finished"]
    steps = [event for event in events(run.run_dir) if event["type"] == "step_finished"]
    assert len(finished) == 8
    assert not {event["termination"] for event in finished} & {"model_error", "env_error"}
    tools = Counter(step["tool"] for step in steps)
    assert tools["move"] > 8
    assert all(step["prompt_tokens"] > 0 for step in steps)
    assert max(step["cached_tokens"] for step in steps if step["index"] > 0) > 0


async def test_forced_answers_have_the_logprobs_of_the_builtin_forward(
    server: VllmServer, tmp_path: Path
) -> None:
    """A random model answers neither YES nor NO, but both can be scored as continuations."""
    transcript = Transcript(problem="x should be 2", turns=(), patch="+x = 2\n")
    async with opened(server) as policy:
        score = await EndpointJudge(policy, max_context=MAX_CONTEXT, forced=True).score(transcript)
        with pytest.raises(ScoreError, match="no <judgement>"):
            await EndpointJudge(policy, max_context=MAX_CONTEXT).score(transcript)
    model = open_model(str(server.command.model), home=tmp_path)
    prompts = []
    for word in ("YES", "NO"):
        reply = {"role": "assistant", "content": f"<judgement>{word}</judgement>"}
        text = Template(TEMPLATE).render(messages=[*judge_messages(transcript), reply], tools=None)
        prompts.append(model.tokenizer.encode(text.removesuffix("<|im_end|>\n"), add_special_tokens=False))
    start, end = differing(*prompts)
    scorer = ModelScorer(model.model)
    assert prompts[0][:start] == prompts[1][:start]
    expected = await scorer.logprobs(prompts[0][:start], [ids[start : len(ids) - end] for ids in prompts])
    await scorer.close()
    assert (score.yes_logprob, score.no_logprob) == pytest.approx(expected, abs=1e-3)
    assert score.prompt_tokens == max(map(len, prompts))

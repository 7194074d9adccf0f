"""Refusals of a request's length, as providers send them, and the requests that follow."""

# ruff: noqa: E501 - bodies are quoted as providers send them

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from engine.errors import ContextLengthError, EndpointRefusedError, ModelError
from engine.inference.endpoint.failures import Failure, classify
from engine.inference.endpoint.lengths import LengthRefusal, RequestLength
from engine.models.chat.base import Message
from tests.builders.web.endpoint_builders import OK, TALK, opened, request
from tests.fakes.openai_server import Reply, openai_server

URL = httpx2.Request("POST", "http://h/v1/chat/completions")
CLIENT = AsyncOpenAI(api_key="x", base_url="http://h/v1")


def classify_refusal(status: int, body: Any, *, prompt: int, response: int = 2048) -> Failure:
    """Classify an HTTP response that ``openai`` has parsed."""
    text = body if isinstance(body, str) else json.dumps(body)
    answer = httpx2.Response(status, text=text, request=URL)
    error = CLIENT._make_status_error_from_response(answer)
    return classify(error, endpoint="h", request=RequestLength(prompt=prompt, response=response))


ANTHROPIC = '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 233885 tokens > 200000 maximum"}}'
TOO_LONG: dict[str, tuple[int, Any, int]] = {
    "Gemini": (
        400,
        [{"error": {
            "code": 400, "status": "INVALID_ARGUMENT",
            "message": "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        }}],
        1_000_000,
    ),
    "xAI": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        },
        100_000,
    ),
    "Anthropic": (400, ANTHROPIC, 180_000),
    "Anthropic, bytes": (
        413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, 9_000_000
    ),
    "Moonshot": (
        400,
        {"error": {
            "message": "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
            "type": "invalid_request_error",
        }},
        250_000,
    ),
    "Zhipu": (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, 130_000),
    "DashScope": (
        400,
        {
            "error": {
                "code": "invalid_parameter_error", "param": None, "type": "invalid_request_error",
                "message": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
            },
            "request_id": "81a373d6-28bd-9968-8335-e22a2127c41b",
        },
        990_000,
    ),
    "TGI": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32768. Given: 40000 "
            "`inputs` tokens and 2048 `max_new_tokens`",
            "error_type": "validation",
        },
        35_000,
    ),
    "TGI, prompt": (
        422,
        {
            "error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1872",
            "error_type": "validation",
        },
        1500,
    ),
    "nginx": (413, "<html><head><title>413 Request Entity Too Large</title></head></html>", 300_000),
    "LiteLLM": (
        500,
        {"error": {
            "message": "litellm.APIConnectionError: BedrockException - Error doing the fallback: "
            f"litellm.ContextWindowExceededError: litellm.BadRequestError: AnthropicError - {ANTHROPIC}",
            "type": None, "param": None, "code": "500",
        }},
        190_000,
    ),
    "OpenAI, rate": (
        429,
        {"error": {
            "message": "Request too large for gpt-4o in organization org-VDAWofJASuLH0vVz8o9tiQZr on tokens per "
            "min (TPM): Limit 30000, Requested 37313. The input or output tokens must be reduced in order to run "
            "successfully. Visit https://platform.openai.com/account/rate-limits to learn more.",
            "type": "tokens", "param": None, "code": "rate_limit_exceeded",
        }},
        36_000,
    ),
    "Groq, rate": (
        413,
        {"error": {
            "message": "Request too large for model `llama-3.3-70b-versatile` on tokens per minute (TPM): Limit "
            "12000, Requested 14563, please reduce your message size and try again.",
            "type": "tokens", "code": "rate_limit_exceeded",
        }},
        13_000,
    ),
    "OpenAI": (
        400,
        {"error": {
            "message": "Your input exceeds the context window of this model. Please adjust your input.",
            "type": "invalid_request_error", "param": "input", "code": "context_length_exceeded",
        }},
        400_000,
    ),
    "vLLM": (
        400,
        {
            "object": "error", "type": "BadRequestError", "param": None, "code": 400,
            "message": "This model's maximum context length is 65536 tokens. However, your request has 70000 "
            "input tokens. Please reduce the length of the input messages.",
        },
        60_000,
    ),
    "vLLM, 500": (
        500,
        {"detail": "[address=0.0.0.0:43769, pid=1065] The decoder prompt (length 66501) is longer than the "
         "maximum model length of 65536. Make sure that `max_model_len` is no smaller than the number of text "
         "tokens."},
        60_000,
    ),
    "SGLang": (
        400,
        {
            "object": "error", "type": "BadRequestError", "code": 400,
            "message": "The input (70000 tokens) is longer than the model's context length (65536 tokens).",
        },
        60_000,
    ),
    "llama.cpp": (
        400,
        {"error": {
            "code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 14429, "n_ctx": 8192,
            "message": "the request exceeds the available context size, try increasing it",
        }},
        14_000,
    ),
    "LM Studio": (
        400,
        {"error": "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded "
         "with context length of only 7866 tokens, which is not enough."},
        9000,
    ),
    "Mistral": (
        400,
        {
            "object": "error", "type": "invalid_request_error", "param": None, "code": "3051",
            "message": "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
        },
        60_000,
    ),
    "OpenRouter": (
        400,
        {"error": {
            "message": "This endpoint's maximum context length is 163840 tokens. However, you requested about "
            "197952 tokens (195904 of text input, 2048 in the output).",
            "code": 400, "metadata": {"provider_name": None},
        }},
        180_000,
    ),
    "Bedrock": (400, {"message": "Input is too long for requested model."}, 200_000),
    "unknown, by its counts": (
        400, {"error": {"message": "输入 70000 tokens 超过上限 65536", "code": "bad_request"}}, 60_000
    ),
}  # fmt: skip


@pytest.mark.parametrize("provider", TOO_LONG)
def test_refusals_of_long_conversations_are_context_length_errors(provider: str) -> None:
    status, body, prompt = TOO_LONG[provider]
    failure = classify_refusal(status, body, prompt=prompt)
    assert isinstance(failure.error, ContextLengthError)
    assert (failure.retry, failure.overloaded, failure.length) == (False, False, LengthRefusal())


OTHERS: dict[str, tuple[int, Any]] = {
    "parameter": (400, {"error": {"message": "seed is not supported", "param": "seed"}}),
    "signature": (
        400,
        [{"error": {"code": 400, "message": "Function call is missing a thought_signature in functionCall parts, "
          "function call `default_api:Bash` , position 3.", "status": "INVALID_ARGUMENT"}}],
    ),
    "JSON": (400, {"error": {"message": "invalid JSON: line 1 column 7001 (char 7000)"}}),
    "rate": (
        429,
        {"error": {
            "message": "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
            "Used 25000, Requested 8000. Please try again in 6s.",
            "type": "tokens", "code": "rate_limit_exceeded",
        }},
    ),
    "rate, Anthropic": (
        429,
        {"error": {"message": "This request would exceed the rate limit for your organization of 20,000 input "
         "tokens per minute. Please reduce the prompt length or the maximum tokens requested."}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_unrelated_refusals_are_not_length_refusals(name: str) -> None:
    failure = classify_refusal(*OTHERS[name], prompt=7000)
    assert type(failure.error) is ModelError
    assert failure.length is None


@pytest.mark.parametrize(
    ("status", "code"), [(429, "exceeded_current_quota_error"), (429, "1113"), (400, "Arrearage")]
)
def test_exhausted_accounts_end_the_run(status: int, code: str) -> None:
    failure = classify_refusal(status, {"error": {"message": "x", "code": code}}, prompt=10)
    assert isinstance(failure.error, EndpointRefusedError)


VLLM = (
    "'max_tokens' or 'max_completion_tokens' is too large: {sent}. This model's maximum context length is 8192 "
    "tokens and your request has 2000 input tokens ({sent} > 8192 - 2000)."
)
OPENAI = (
    "This model's maximum context length is 8192 tokens. However, you requested {total} tokens ({prompt}, {sent} "
    "in the completion). Please reduce the length of the messages or completion."
)


@pytest.mark.parametrize(
    ("message", "prompt", "sent", "expected"),
    [
        (VLLM, 1500, 16_384, LengthRefusal(fitting=6192, context=8192)),
        (OPENAI, 1500, 16_384, LengthRefusal(fitting=6192, context=8192)),
        (OPENAI.replace("{prompt}", "1400 in the messages, 600 in the functions"), 900, 7000,
         LengthRefusal(fitting=6192, context=8192)),
        (
            "input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000, decrease input length",
            150_000, 64_000, LengthRefusal(fitting=25_833, context=200_000),
        ),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 1512. Given: 1000 `inputs` tokens and 1024 "
            "`max_new_tokens`", 900, 1024, LengthRefusal(fitting=512, context=1512),
        ),
        (
            "max_tokens is too large: 16384. This model supports at most 4096 completion tokens, whereas you "
            "provided 16384.", 1500, 16_384, LengthRefusal(fitting=4096, response=4096),
        ),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 1500, 16_384,
         LengthRefusal(fitting=8192, response=8192)),
        ("Error code: 400 - maximum context length is 8192, requested 16850 (466 + 16384)", 400, 16_384,
         LengthRefusal(fitting=7726, context=8192)),
        ("max_tokens=16384 cannot be greater than max_model_len=8192", 1500, 16_384, LengthRefusal(fitting=8192)),
    ],
)  # fmt: skip
def test_refused_response_limits_are_distinguished_from_long_prompts(
    message: str, prompt: int, sent: int, expected: LengthRefusal
) -> None:
    message = message.replace("{sent}", str(sent)).replace("{total}", str(2000 + sent))
    message = message.replace("{prompt}", "2000 in the messages")
    failure = classify_refusal(400, {"error": {"message": message}}, prompt=prompt, response=sent)
    assert failure.length == expected


def vllm_script(context: int) -> Any:
    """Return the script of a server with this context; three characters are one token."""

    def answer(body: dict[str, Any], _: int) -> Reply:
        prompt = sum(len(message["content"] or "") for message in body["messages"]) // 3
        sent = body["max_tokens"]
        if prompt + sent <= context:
            return Reply(content="fine", usage={"prompt_tokens": prompt, "completion_tokens": 1})
        message = VLLM.replace("8192", str(context)).replace("2000", str(prompt)).replace("{sent}", str(sent))
        return Reply(status=400, error={"message": message, "code": 400})

    return answer


LONG: list[Message] = [{"role": "user", "content": "-" * 3000}]


async def test_retries_request_the_fitting_length_and_record_the_context() -> None:
    with openai_server(vllm_script(8192)) as server:
        async with opened(server) as endpoint:
            for _ in range(2):
                response = await endpoint.respond(request(LONG, max_tokens=16_384))
                assert response.content == "fine"
            assert endpoint.max_context == 8192
    assert [body["max_tokens"] for body in server.requests] == [16_384, 7192, 16_384, 7192]


async def test_refusals_without_counts_are_retried_with_smaller_limits() -> None:
    full = Reply(
        status=400, error={"message": "Please reduce the length.", "code": "context_length_exceeded"}
    )
    with openai_server(lambda body, _: full if body["max_tokens"] > 2000 else OK) as server:
        async with opened(server) as endpoint:
            await endpoint.respond(request(LONG, max_tokens=16_384))
            assert endpoint.max_context is None
            with pytest.raises(ContextLengthError):
                await endpoint.respond(request(LONG * 5, max_tokens=2048))
    assert [body["max_tokens"] for body in server.requests] == [16_384, 4096, 1024, 2048]


async def test_the_maximum_response_length_is_remembered() -> None:
    capped = Reply(
        status=400, error={"message": "max_tokens: 16384 > 4096, the maximum", "param": "max_tokens"}
    )
    with openai_server(lambda body, _: capped if body["max_tokens"] > 4096 else OK) as server:
        async with opened(server) as endpoint:
            for _ in range(2):
                await endpoint.respond(request(LONG, max_tokens=16_384))
            assert endpoint.max_context is None
    assert [body["max_tokens"] for body in server.requests] == [16_384, 4096, 4096]


async def test_retries_stop_at_a_server_that_refuses_every_limit() -> None:
    def answer(body: dict[str, Any], _: int) -> Reply:
        sent = body["max_tokens"]
        return Reply(status=400, error={"message": f"max_tokens {sent} > {sent - 1}"})

    with openai_server(answer) as server:
        async with opened(server) as endpoint:
            with pytest.raises(ModelError):
                await endpoint.respond(request(max_tokens=1000))
    assert len(server.requests) == 5


def text_turns(turns: int) -> list[Message]:
    return [*TALK, *({"role": "user", "content": "-" * 1000} for _ in range(turns))]


STRANGE = Reply(status=400, error={"message": "Bad Request"})


def call_turns(turns: int) -> list[Message]:
    function = {"name": "write", "arguments": "-" * 1000}
    call = {"id": "c", "type": "function", "function": function}
    return [*TALK, *({"role": "assistant", "content": "", "tool_calls": [call]} for _ in range(turns))]


@pytest.mark.parametrize("talk", [text_turns, call_turns], ids=["texts", "arguments"])
async def test_repeated_unexplained_refusals_of_growing_conversations_are_context_errors(
    talk: Callable[[int], list[Message]],
) -> None:
    with openai_server(lambda body, _: STRANGE if len(body["messages"]) > 5 else OK) as server:
        async with opened(server) as endpoint:
            for turns in range(4):
                await endpoint.respond(request(talk(turns)))
            with pytest.raises(ContextLengthError, match="twice; shorter conversations were answered"):
                await endpoint.respond(request(talk(4)))
    assert len(server.requests) == 6


async def test_unexplained_refusals_of_short_conversations_are_model_errors() -> None:
    with openai_server(lambda body, _: STRANGE if "bad" in str(body) else OK) as server:
        async with opened(server) as endpoint:
            for turns in range(10):
                await endpoint.respond(request(text_turns(turns)))
            endpoint.release(request().context.key)
            for turns in range(3):
                await endpoint.respond(request(text_turns(turns)))
            with pytest.raises(ModelError) as error:
                await endpoint.respond(request([*text_turns(3), {"role": "user", "content": "bad"}]))
    assert type(error.value) is ModelError

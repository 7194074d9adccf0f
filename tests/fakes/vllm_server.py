"""A vLLM server's routes without vLLM: real HTTP, real streams, and every kind of misbehaviour on demand.

Tokens come from a script, or from our own sampler over a policy folder, so that log-probabilities are
real and new weights change them. As a process (``python -m tests.fakes.vllm_server``) it can be killed; in a
test's own event loop it is fast. Each ``Fault`` strikes a number of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from engine.inference.base import Generation, GenerationContext, GenerationRequest, SamplingParams
from engine.inference.builtin.sampler import TransformerPolicy
from engine.inference.vllm.servers.server import ServerCommand
from engine.types import RolloutKey, Task, TaskAnswer, TaskRow
from tests.fakes.vllm_script import VOCABULARY, adapter_digest, choice, scripted, scripted_logprob, stamp

CHUNK = 4
"""Tokens per event of a stream."""
_COUNTERS = ("generation_tokens", "prompt_tokens", "prefix_cache_queries", "prefix_cache_hits")
_TASK = Task(
    id="0" * 16, instance_id="x", repo="", base_commit="", problem_statement="", image="local:x"
)  # fmt: skip
_CONTEXT = GenerationContext(
    key=RolloutKey(iteration=0, phase="train", task_id="0" * 16, index=0),
    row=TaskRow(task=_TASK, answer=TaskAnswer(gold_patch=""), split="train"),
)


@dataclass(kw_only=True)
class Fault:
    """A misbehaviour; the first one that has strikes left is used up by the next request."""

    kind: Literal["hang", "cut", "nan", "short", "beyond", "error", "refuse", "oom", "version"]
    requests: int = 1
    """Number of requests that it strikes; negative: all."""
    after: int = 0
    """Tokens that are sent before."""


class FakeVllm:
    """State and routes of one server.

    Args:
        policy: samples; None follows a script.
        cache_tokens: capacity that it reports.
        token_s: time per token, seconds.
        key: that requests must carry; empty: none.
    """

    def __init__(
        self,
        policy: TransformerPolicy | None = None,
        *,
        cache_tokens: int = 10_000,
        token_s: float = 0.0,
        key: str = "",
    ) -> None:
        self.policy = policy
        self.cache_tokens = cache_tokens
        self.token_s = token_s
        self.key = key
        self.faults: list[Fault] = []
        self.version = "default"
        self.weights = ""
        """Folder of the served weights; empty: those of the start."""
        self.adapters: dict[str, str] = {}
        """SHA-256 of the weights of each loaded adapter."""
        self.fixed_adapter = ""
        """Weights that every adapter has whatever is loaded; empty: its own."""
        self.is_dead = False
        self.prompts: list[list[int]] = []
        """Prompts in order of arrival."""
        self.running: set[str] = set()
        self.max_running = 0
        self.aborted: list[str] = []
        """Requests whose client went away."""
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self._seen: set[tuple[int, ...]] = set()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._aborting = False
        self.pauses: list[str] = []

    def app(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(middlewares=[self._guarded])
        app.add_routes(
            [
                web.get("/version", self._version),
                web.get("/openapi.json", self._openapi),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/weight_info", self._weight_info),
                web.post("/collective_rpc", self._collective_rpc),
                web.post("/inference/v1/generate", self._generate),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
                web.post("/reset_prefix_cache", self._reset),
                web.post("/update_weight_version", self._update_version),
                web.post("/weight_checker", self._checksums),
                web.post("/v1/load_lora_adapter", self._load_adapter),
                web.post("/v1/unload_lora_adapter", self._unload_adapter),
            ]
        )
        return app

    @asynccontextmanager
    async def serving(self, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[str]:
        """Serve on an interface; yield the address."""
        runner = web.AppRunner(self.app(), handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
        try:
            yield f"http://{host}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def restart(self) -> None:
        """Forget what a new process would not know."""
        self.version, self.weights = "default", ""
        self.adapters.clear()
        self._seen.clear()

    # --- routes ------------------------------------------------------------------------------------

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.is_dead:
            return web.json_response({"error": {"message": "EngineDeadError", "code": 500}}, status=503)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _openapi(self, request: web.Request) -> web.Response:
        named = (route.resource for route in request.app.router.routes())
        routes: dict[str, Any] = {one.canonical: {} for one in named if one is not None}
        return web.json_response({"paths": routes})

    async def _models(self, _: web.Request) -> web.Response:
        names = ["policy", *self.adapters]
        return web.json_response({"data": [{"id": name, "max_model_len": 2048} for name in names]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        counters = "".join(f"vllm:{name}_total {value}\n" for name, value in self.counters.items())
        return web.Response(
            text=f"vllm:num_requests_running {len(self.running)}\nvllm:num_requests_waiting 0\n"
            f"vllm:kv_cache_usage_perc {min(1.0, 0.1 * len(self.running))}\n"
            f'vllm:cache_config_info{{kv_cache_size_tokens="{self.cache_tokens}"}} 1.0\n{counters}'
        )

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["method"] == "trainyard_facts":
            vocabulary = VOCABULARY if self.policy is None else self.policy._model.vocab_size
            return web.json_response({"results": [{"vocabulary": vocabulary, "tensors": 1}]})
        assert body["method"] == "trainyard_load_folder"
        self.weights = body["args"][0]
        if self.policy is not None:
            self._load(Path(self.weights))
        return web.json_response({"results": [{"tensors": 1, "bytes": 1}]})

    def _load(self, folder: Path) -> None:
        import torch

        from engine.models.sharding import load_weights
        from engine.models.weights.checkpoint_folder import open_weights

        assert self.policy is not None
        model = self.policy._model
        load_weights(model, model, open_weights(folder, model), torch.device("cpu"))
        self.policy.set_version(self.policy.version + 1)

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query["mode"]
        self.pauses.append(mode)
        self._resumed.clear()
        self._aborting = mode == "abort"
        while mode != "keep" and self.running:
            await asyncio.sleep(0.01)
        return web.json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self._resumed.set()
        return web.json_response({"status": "resumed"})

    async def _reset(self, _: web.Request) -> web.Response:
        self._seen.clear()
        return web.json_response({"success": not self.running})

    async def _update_version(self, request: web.Request) -> web.Response:
        self.version = (await request.json())["new_version"]
        return web.json_response({})

    async def _checksums(self, _: web.Request) -> web.Response:
        if self.policy is None:
            contents = {"weight": f"weights of {self.weights}".encode()}
        else:
            state = self.policy._model.state_dict()
            contents = {name: tensor.numpy().tobytes() for name, tensor in state.items()}
        rank = "dp0:pp0:pcp0:tp0"
        sums = {f"{rank}:{name}": hashlib.sha256(data).hexdigest() for name, data in contents.items()}
        return web.json_response({"checksums": sums})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return web.json_response({"error": {"message": "already loaded", "code": 400}}, status=400)
        digest = adapter_digest(Path(body["lora_path"]))
        self.adapters[body["lora_name"]] = self.fixed_adapter or digest
        return web.Response()

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return web.json_response({"error": {"message": f"no {name}", "code": 404}}, status=404)
        return web.Response()

    # --- sampling ----------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt, params, model = body["token_ids"], body["sampling_params"], body["model"]
        if model != "policy" and model not in self.adapters:
            error = {"message": f"The model `{model}` does not exist.", "code": 404}
            return web.json_response({"error": error}, status=404)
        weights = self.adapters.get(model, self.weights)
        if not body.get("stream"):
            return web.json_response({"prompt_logprobs": self._prompt_logprobs(prompt, weights)})
        self.prompts.append(prompt)
        fault = self._next_fault()
        if fault is not None and fault.kind in ("error", "refuse"):
            status = 500 if fault.kind == "error" else 400
            return web.json_response({"error": {"message": "on demand", "code": status}}, status=status)
        self._count_prefix(prompt)
        self.running.add(body["request_id"])
        self.max_running = max(self.max_running, len(self.running))
        try:
            return await self._stream(request, await self._sample(prompt, params, weights), fault)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted.append(body["request_id"])
            raise
        finally:
            self.running.discard(body["request_id"])

    async def _stream(
        self, request: web.Request, generation: Generation, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        stop = len(generation.ids) if fault is None else min(fault.after, len(generation.ids))
        spans: list[dict[str, Any]] = []
        for start in range(0, stop, CHUNK):
            end = min(start + CHUNK, stop)
            await asyncio.sleep(self.token_s * (end - start))
            if self._aborting and not self._resumed.is_set():
                await self._event(response, {"choices": [{"token_ids": [], "finish_reason": "abort"}]})
                return response
            await self._resumed.wait()
            stamp(spans, start, end, self.version)
            await self._event(response, {"choices": [choice(generation, start, end)]})
        self.counters["generation_tokens"] += stop
        if fault is not None:
            await self._misbehave(request, response, generation, stop, fault, spans)
        reason = "stop" if generation.stopped else "length"
        final = {"token_ids": [], "finish_reason": reason, "weight_versions": spans}
        await self._event(response, {"choices": [final]})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _misbehave(
        self,
        request: web.Request,
        response: web.StreamResponse,
        generation: Generation,
        start: int,
        fault: Fault,
        spans: list[dict[str, Any]],
    ) -> None:
        rest = choice(generation, start, len(generation.ids))
        match fault.kind:
            case "hang":
                await asyncio.Event().wait()
            case "cut":
                assert request.transport is not None
                request.transport.abort()
                raise ConnectionResetError
            case "oom":
                self.is_dead = True
                error = {"message": "EngineCore died: out of memory", "code": 500}
                await self._event(response, {"error": error})
                raise ConnectionResetError
            case "nan":
                rest["logprobs"]["content"][-1]["logprob"] = -9999.0
            case "short":
                rest["logprobs"]["content"].pop()
            case "beyond":
                rest["token_ids"][-1] = 10**6
        stamp(spans, start, len(generation.ids), "999" if fault.kind == "version" else self.version)
        await self._event(response, {"choices": [rest]})

    async def _event(self, response: web.StreamResponse, content: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    async def _sample(self, prompt: list[int], params: dict[str, Any], weights: str) -> Generation:
        if self.policy is None:
            return scripted(prompt, params["seed"], params["max_tokens"], params["stop_token_ids"], weights)
        names = ("temperature", "top_p", "top_k", "min_p", "max_tokens")
        request = GenerationRequest(
            prompt_ids=prompt,
            sampling=SamplingParams(**{name: params[name] for name in names}),
            seed=params["seed"],
            stop_ids=frozenset(params["stop_token_ids"]),
            context=_CONTEXT,
        )
        return await self.policy.generate(request)

    def _prompt_logprobs(self, prompt: list[int], weights: str) -> list[dict[str, Any] | None]:
        if self.policy is None:
            return [None, *({str(t): {"logprob": scripted_logprob(t, weights)}} for t in prompt[1:])]
        import torch

        with torch.no_grad():
            logits = self.policy._model(torch.tensor([prompt]), torch.tensor([len(prompt)]))[0]
        logprobs = torch.log_softmax(logits.float(), -1)
        return [
            None,
            *({str(token): {"logprob": float(logprobs[i, token])}} for i, token in enumerate(prompt[1:])),
        ]

    def _count_prefix(self, prompt: Sequence[int]) -> None:
        """Count hits as vLLM does, by blocks; here of four tokens."""
        blocks = [tuple(prompt[: end + CHUNK]) for end in range(0, len(prompt) - CHUNK + 1, CHUNK)]
        self.counters["prompt_tokens"] += len(prompt)
        self.counters["prefix_cache_queries"] += len(prompt)
        self.counters["prefix_cache_hits"] += CHUNK * sum(block in self._seen for block in blocks)
        self._seen.update(blocks)

    def _next_fault(self) -> Fault | None:
        for fault in self.faults:
            if fault.requests:
                fault.requests -= 1
                return fault
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCommand(ServerCommand):
    """Command line of this module instead of vLLM's: all else of ``VllmServer`` is real."""

    options: tuple[str, ...] = field(default=())
    model: Path = Path()
    python: Path = Path(sys.executable)
    max_context: int = 2048

    def arguments(self, host: str, port: int) -> list[str]:
        """Return the command line of the server."""
        where = ("--host", host, "--port", str(port))
        return [sys.executable, "-m", "tests.fakes.vllm_server", *where, *self.options]

    def environment(self, key: str) -> dict[str, str]:
        """Return this process's environment; the tests are imported from it."""
        root = str(Path(__file__).parents[2])
        return {**os.environ, "VLLM_API_KEY": key, "PYTHONPATH": root}


def fake_interpreter(folder: Path, *, token_s: float = 0.0) -> Path:
    """Write an interpreter whose vLLM is this module; return its path.

    Args:
        folder: where it is written.
        token_s: time that its servers take per token, seconds.
    """
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for parent in (package, *package.parents[:2]):
        (parent / "__init__.py").touch()
    (package / "api_server.py").write_text(f"from tests.fakes.vllm_server import main\nmain({token_s})\n")
    script = folder / "python"
    paths = f"{folder}:{Path(__file__).parents[2]}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


def main(token_s: float = 0.0) -> None:
    """Serve until killed.

    Args:
        token_s: time per token where ``--token-s`` does not say it, seconds.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="", help="a policy folder; without one tokens follow a script")
    parser.add_argument("--token-s", type=float, default=token_s)
    options, _ = parser.parse_known_args()  # of vLLM's own there are many more
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    policy = None
    if options.model:
        from engine.models.loader import open_model

        opened = open_model(options.model, home=Path(options.model))
        policy = TransformerPolicy(opened.model, opened.chat())
    fake = FakeVllm(policy, token_s=options.token_s, key=os.environ.get("VLLM_API_KEY", ""))
    async with fake.serving(options.port, host=options.host):
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()

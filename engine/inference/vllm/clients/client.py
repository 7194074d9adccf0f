"""Adapter of vLLM's HTTP routes: the only module that names them.

Token ids go through ``/inference/v1/generate`` (``--enable-scale-out``), weights and versions through the
development routes (``VLLM_SERVER_DEV_MODE=1``) and our worker module. All answers are validated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import aiohttp
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from engine.errors import EngineError
from engine.inference.base import Generation, GenerationRequest
from engine.inference.vllm.clients.facts import EngineMetrics, ServerFacts
from engine.inference.vllm.clients.generation import GenerationStream, generation_body, stream_events
from engine.inference.vllm.clients.responses import (
    Answer,
    Checksums,
    Models,
    PromptLogprobs,
    ResetAnswer,
    Routes,
    VersionAnswer,
    WeightInfo,
    WorkerAnswer,
    WorkerAnswers,
    check_checksums,
    parse_metrics,
    read_answer,
    read_prompt_logprobs,
)
from engine.inference.vllm.clients.stalls import StallWatch

SUPPORTED = SpecifierSet(">=0.32,<0.33")
"""Versions of vLLM covered by the contract test: routes change every few releases."""
_GENERATE = "/inference/v1/generate"
_UNLIMITED = aiohttp.ClientTimeout(total=None)
_Form = TypeVar("_Form", bound=Answer)
_PAUSE_MODES: Mapping[str, str] = MappingProxyType({"finish": "wait", "keep": "keep", "abort": "abort"})


class VllmClient:
    """Client of one vLLM server; used in one event loop.

    Args:
        address: ``http://HOST:PORT``.
        model: name of the model in requests.
        api_key: the server's key; empty: it has none.
        timeout_s: maximum time of a request that neither samples nor loads.
        stall_timeout_s: maximum time without a token while requests are sampled.
        load_timeout_s: maximum time to load weights.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str = "policy",
        api_key: str = "",
        timeout_s: float = 60.0,
        stall_timeout_s: float = 120.0,
        load_timeout_s: float = 1800.0,
    ) -> None:
        self.address = address.rstrip("/")
        self.model = model
        self.version = 0
        """Version of the weights that this client last stamped."""
        self._is_stamped = False
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        """Headers that authorize requests."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._load_timeout = aiohttp.ClientTimeout(total=load_timeout_s)
        self._stalls = StallWatch(stall_timeout_s)
        self._adapters: dict[str, int] = {}
        """Version of each adapter that was loaded with one."""
        self._vocabulary: int | None = None
        self._session: aiohttp.ClientSession | None = None

    async def check(self) -> ServerFacts:
        """Return the server's facts.

        Raises:
            EngineError: its version is not supported (``refused``), or it lacks a route that sampling needs.
        """
        version = (await self._get(VersionAnswer, "/version")).version
        _check_version(version, self.address)
        routes = (await self._get(Routes, "/openapi.json")).paths.keys()
        if _GENERATE not in routes:
            raise EngineError(
                f"the vLLM server at {self.address} does not take token ids; start it with "
                "--enable-scale-out",
                kind="refused",
            )
        models = {model.id: model.max_model_len for model in (await self._get(Models, "/v1/models")).data}
        if (max_context := models.get(self.model)) is None:
            raise EngineError(
                f"the vLLM server at {self.address} serves {', '.join(models)} and not '{self.model}'; start "
                f"it with --served-model-name {self.model}",
                kind="refused",
            )
        worker = await self._worker_facts() if "/collective_rpc" in routes else None
        self._vocabulary = worker.vocabulary if worker is not None else None
        features = {
            "weights": worker is not None,
            "versions": "/update_weight_version" in routes,
            "adapters": "/v1/load_lora_adapter" in routes,
        }
        return ServerFacts(
            vllm=version,
            max_context=max_context,
            cache_tokens=(await self.metrics()).cache_tokens,
            vocabulary=self._vocabulary,
            features=frozenset(name for name, is_available in features.items() if is_available),
        )

    async def healthy(self) -> bool:
        """Return whether the server answers and its engine is alive."""
        try:
            async with self._response("GET", "/health"):
                return True
        except EngineError:
            return False

    async def generate(
        self, request: GenerationRequest, *, request_id: str, model: str = "", salt: str = ""
    ) -> Generation:
        """Sample a response; cancelling aborts the request on the server.

        Args:
            request: prompt and sampling parameters.
            request_id: unique among the server's requests.
            model: name of a loaded adapter; empty: the model itself.
            salt: only requests with the same salt share cached prefixes.

        Raises:
            EngineError: with the tokens received so far.
        """
        stream = GenerationStream(
            version=self._adapters.get(model, self.version),
            is_stamped=self._is_stamped,
            is_adapter=bool(model),
            max_tokens=request.sampling.max_tokens,
            stop_ids=request.stop_ids,
            vocabulary=self._vocabulary,
        )
        body = generation_body(request, request_id=request_id, model=model or self.model, salt=salt)
        try:
            async with (
                self._stalls.watch(),
                self._response("POST", _GENERATE, json=body, timeout=_UNLIMITED) as response,
            ):
                async for data in stream_events(response):
                    self._stalls.progress()
                    stream.add(data)
        except EngineError as error:
            error.tokens = error.tokens or stream.partial()
            raise
        except TimeoutError:
            raise EngineError(
                f"the vLLM server at {self.address} sampled no token for {self._stalls.timeout_s:g} s",
                kind="stalled",
                tokens=stream.partial(),
            ) from None
        if stream.finish_reason is None or stream.finish_reason == "abort":
            is_aborted = stream.finish_reason == "abort"
            raise EngineError(
                f"the vLLM server at {self.address} {'aborted' if is_aborted else 'cut off'} a response",
                kind="aborted" if is_aborted else "lost",
                tokens=stream.partial(),
            )
        return stream.result()

    async def prompt_logprobs(self, ids: Sequence[int], *, model: str = "") -> list[float]:
        """Return the log-probability of each token after the first, at temperature 1.

        The prompt is computed anew: cached prefixes are not read.
        """
        sampling = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        body = {"token_ids": list(ids), "model": model or self.model, "sampling_params": sampling}
        answer = await self._ask(PromptLogprobs, _GENERATE, json=body, timeout=self._load_timeout)
        return read_prompt_logprobs(answer, ids)

    async def metrics(self) -> EngineMetrics:
        """Return the server's load and counters."""
        async with self._response("GET", "/metrics") as response:
            return parse_metrics(await response.text())

    async def pause(self, mode: Literal["finish", "keep", "abort"]) -> None:
        """Stop sampling; return when no request is being sampled.

        Args:
            mode: ``finish`` waits for the requests in flight, ``keep`` freezes them, ``abort`` ends them
                (EngineError ``aborted``). Later ones wait for ``resume``.
        """
        await self._ask(Answer, f"/pause?mode={_PAUSE_MODES[mode]}", timeout=_UNLIMITED)
        self._stalls.suspend()

    async def resume(self) -> None:
        """Continue sampling after ``pause``."""
        await self._ask(Answer, "/resume")
        self._stalls.resume()

    async def reset_prefix_cache(self) -> None:
        """Clear the prefix cache. Raises EngineError while requests use the cache."""
        if not (await self._ask(ResetAnswer, "/reset_prefix_cache")).success:
            raise EngineError(
                f"the vLLM server at {self.address} keeps its prefix cache: requests are in flight; pause it "
                "first, or salt requests by version",
                kind="refused",
            )

    async def load_weights(self, folder: Path, version: int) -> None:
        """Replace the live model's weights by a folder's, then stamp the version.

        Args:
            folder: safetensors files, readable by the server, with the names and shapes that it started from.
            version: version of the new weights.

        Raises:
            EngineError: ``refused`` where names or shapes differ (nothing was changed); else the server must
                be restarted: it may serve a mixture.
        """
        answers = await self._call_workers("trainyard_load_folder", str(folder), timeout=self._load_timeout)
        for answer in answers:
            if answer.refused:
                raise EngineError(f"the vLLM server refused weights: {answer.refused}", kind="refused")
        await self.set_version(version)

    async def set_version(self, version: int) -> None:
        """Stamp tokens sampled from now on with ``version``."""
        await self._ask(Answer, "/update_weight_version", json={"new_version": str(version)})
        self.version, self._is_stamped = version, True

    async def served_version(self) -> int | None:
        """Return the version that the server stamps on tokens; None where none was set."""
        label = (await self._get(WeightInfo, "/weight_info")).weight_version
        return int(label) if label.isdecimal() else None

    async def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each weight that the server computes with, by rank and name."""
        answer = await self._ask(
            Checksums, "/weight_checker", json={"action": "checksum"}, timeout=self._load_timeout
        )
        return check_checksums(answer.checksums)

    async def load_adapter(self, name: str, folder: Path, *, version: int | None = None) -> None:
        """Load a LoRA adapter under a new name.

        Args:
            name: name for its selection in ``generate``.
            folder: adapter in peft's format, readable by the server.
            version: stamped on its tokens; None: that of the model when a request is sent.
        """
        body = {"lora_name": name, "lora_path": str(folder)}
        async with self._response("POST", "/v1/load_lora_adapter", json=body, timeout=self._load_timeout):
            pass
        if version is not None:
            self._adapters[name] = version

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter."""
        async with self._response("POST", "/v1/unload_lora_adapter", json={"lora_name": name}):
            self._adapters.pop(name, None)

    async def close(self) -> None:
        """Close the connections; requests in flight are aborted."""
        if self._session is not None:
            await self._session.close()

    async def _worker_facts(self) -> WorkerAnswer | None:
        try:
            return (await self._call_workers("trainyard_facts"))[0]
        except EngineError as error:
            if error.kind in ("refused", "lost") and await self.healthy():
                return None  # vLLM without our worker module
            raise

    async def _call_workers(
        self, method: str, *arguments: str, timeout: aiohttp.ClientTimeout | None = None
    ) -> list[WorkerAnswer]:
        body = {"method": method, "args": arguments}
        return (await self._ask(WorkerAnswers, "/collective_rpc", json=body, timeout=timeout)).results

    async def _get(self, form: type[_Form], route: str) -> _Form:
        async with self._response("GET", route) as response:
            return read_answer(form, await response.read())

    async def _ask(
        self, form: type[_Form], route: str, *, json: Any = None, timeout: aiohttp.ClientTimeout | None = None
    ) -> _Form:
        async with self._response("POST", route, json=json, timeout=timeout) as response:
            return read_answer(form, await response.read())

    @asynccontextmanager
    async def _response(
        self, verb: str, route: str, *, json: Any = None, timeout: aiohttp.ClientTimeout | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; raise EngineError on a failed connection, an error status or a time-out."""
        limit = timeout or self._timeout
        try:
            async with self._open_session().request(
                verb, self.address + route, json=json, headers=self.headers, timeout=limit
            ) as response:
                if response.status != 200:
                    text = (await response.text())[:500]
                    raise EngineError(
                        f"the vLLM server at {self.address} answered {route.partition('?')[0]} with status "
                        f"{response.status}: {text}",
                        kind=_failure_kind(response.status, route),
                    )
                yield response
        except TimeoutError:
            raise EngineError(
                f"the vLLM server at {self.address} did not answer {route} within {limit.total} s",
                kind="stalled",
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(
                f"the connection to the vLLM server at {self.address} failed: {error!r}", kind="lost"
            ) from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Reused connections fail at random: uvicorn closes them when idle and after its own errors.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        return self._session


def _failure_kind(status: int, route: str) -> Literal["unloaded", "refused", "lost"]:
    """Return the kind of failure of an error status."""
    if status == 404 and route == _GENERATE:
        return "unloaded"
    return "refused" if 400 <= status < 500 else "lost"


def _check_version(version: str, address: str) -> None:
    try:
        is_supported = Version(version) in SUPPORTED
    except InvalidVersion:
        is_supported = False
    if not is_supported:
        raise EngineError(
            f"the server at {address} runs vLLM {version}; this release supports {SUPPORTED}: "
            "`make vllm` creates an environment with it",
            kind="refused",
        )

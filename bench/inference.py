"""Sampled tokens per second of the built-in sampler and of vLLM, next to vLLM's own offline throughput.

Multi-turn rollouts of the shipped quickstart model, 1 to 64 at once: each turn samples a fixed number of
tokens and an observation of random tokens follows. vLLM's offline engine (``LLM.generate`` in its own
environment, with the settings of the server) receives the same prompts and seeds of each turn, all at once,
and should sample the same tokens ("alike"). The three alternate, after one warm-up round. Prefix hits are
shares of all prompt tokens from turn 2 on; "reachable" is the share computed by an earlier turn, because
observations and the last sampled token are new. Without vLLM's environment (``make vllm``) only the built-in
sampler is measured.
Run: ``python -m bench.inference [--quick]``; results go to ``bench/results/inference.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.harness import store
from engine.config.policies import VllmConfig
from engine.errors import PreflightError
from engine.inference.base import GenerationContext, GenerationRequest, SamplingParams, TokenPolicy
from engine.inference.builtin.sampler import TransformerPolicy
from engine.inference.vllm.policy import VllmPolicy
from engine.inference.vllm.publishing.publication import Publisher, ServedModel
from engine.inference.vllm.replicas import Replica
from engine.inference.vllm.servers.environment import INHERITED, find_interpreter
from engine.inference.vllm.servers.server import ServerCommand, VllmServer
from engine.models.loader import OpenedModel, open_model
from engine.orchestrator.policies.engines import model_folder
from engine.orchestrator.policies.frozen_weights import FrozenWeights
from engine.processes.guarded import inherited_environment
from engine.types import RolloutKey, Step
from tests.builders.rollout_builders import make_row

PROMPT, SAMPLED, OBSERVED, TURNS = 400, 48, 32, 4
MAX_CONTEXT, MAX_BATCH, CACHE_GIB = 1024, 64, 1.0
CONCURRENT, QUICK_CONCURRENT = (1, 8, 32, 64), (1, 8)
SHARE_BAR, HIT_BAR = 0.8, 0.9
_GROWTH = SAMPLED + OBSERVED
_LATER_PROMPTS = [PROMPT + _GROWTH * turn for turn in range(1, TURNS)]
REACHABLE = 1 - (TURNS - 1) * (OBSERVED + 1) / sum(_LATER_PROMPTS)
"""Share of prompt tokens from turn 2 on whose keys and values an earlier turn computed."""


@dataclass(slots=True)
class Measured:
    """Rates of the rounds at one concurrency, tokens per second; and vLLM's prefix hits from turn 2 on."""

    builtin: list[float] = field(default_factory=list)
    vllm: list[float] = field(default_factory=list)
    offline: list[float] = field(default_factory=list)
    alike: list[float] = field(default_factory=list)
    """Shares of the responses that are equal between the server and the offline engine."""
    hits: int = 0
    queries: int = 0


class Rollouts:
    """A round of concurrent rollouts, turn by turn, with the prompts of each turn."""

    def __init__(self, number: int, *, seed: int, vocabulary: int) -> None:
        self._random = random.Random(seed)
        self._vocabulary = vocabulary
        self.seed = seed
        self.prompts = [self._ids(PROMPT) for _ in range(number)]
        self.history: list[list[list[int]]] = []
        """Prompts of each turn."""
        self.responses: list[list[list[int]]] = []
        """Responses of each turn."""

    async def turn(self, policy: TokenPolicy, number: int) -> None:
        """Sample one turn of all rollouts at once, and append observations."""
        self.history.append([list(prompt) for prompt in self.prompts])
        sampling = (policy.generate(self._request(i, number)) for i in range(len(self.prompts)))
        self.responses.append([list(generation.ids) for generation in await asyncio.gather(*sampling)])
        for prompt, response in zip(self.prompts, self.responses[-1], strict=True):
            assert len(response) == SAMPLED
            prompt += [*response, *self._ids(OBSERVED)]

    def seed_of(self, index: int) -> int:
        """Return the seed of a rollout's requests."""
        return 1000 * self.seed + index

    def release(self, policy: TokenPolicy) -> None:
        """End all rollouts."""
        for index in range(len(self.prompts)):
            policy.release(self._key(index))

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocabulary) for _ in range(count)]

    def _key(self, index: int) -> RolloutKey:
        return RolloutKey(iteration=self.seed, phase="bench", task_id="b" * 16, index=index)

    def _request(self, index: int, turn: int) -> GenerationRequest:
        steps = tuple(Step(index=i, thought="", response="", call=None, observation="") for i in range(turn))
        return GenerationRequest(
            prompt_ids=self.prompts[index],
            sampling=SamplingParams(max_tokens=SAMPLED),
            seed=self.seed_of(index),
            stop_ids=frozenset(),
            context=GenerationContext(key=self._key(index), row=make_row(), steps=steps),
        )


class Offline:
    """vLLM's ``LLM`` in a process with vLLM's environment and the settings of a server."""

    def __init__(self, command: ServerCommand) -> None:
        script = Path(__file__).with_name("inference_offline.py")
        arguments = command.arguments("127.0.0.1", port=0)
        settings = arguments[next(i for i, argument in enumerate(arguments) if argument.startswith("--")) :]
        self._process = subprocess.Popen(
            [str(command.python), str(script), *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=inherited_environment(INHERITED) | command.environment(key=""),
        )
        self._read()

    def rate(self, rollouts: Rollouts) -> tuple[float, float]:
        """Sample the turns of a round, all prompts of a turn at once.

        Returns:
            Tokens per second, and the share of responses equal to those of the round.
        """
        seconds, alike = 0.0, 0
        seeds = [rollouts.seed_of(index) for index in range(len(rollouts.prompts))]
        for number, (prompts, responses) in enumerate(zip(rollouts.history, rollouts.responses, strict=True)):
            job = {"prompts": prompts, "seeds": seeds, "max_tokens": SAMPLED, "forget": number == 0}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            answer = self._read()
            seconds += answer["seconds"]
            alike += sum(a == b for a, b in zip(answer["responses"], responses, strict=True))
        number = len(seeds) * len(rollouts.history)
        return number * SAMPLED / seconds, alike / number

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


async def sampled(policy: TokenPolicy, rollouts: Rollouts) -> float:
    """Return the tokens per second of a round."""
    began = time.perf_counter()
    for number in range(TURNS):
        await rollouts.turn(policy, number)
    seconds = time.perf_counter() - began
    rollouts.release(policy)
    return len(rollouts.prompts) * TURNS * SAMPLED / seconds


async def open_vllm(opened: OpenedModel, command: ServerCommand, out: Path) -> VllmPolicy:
    """Start one server and publish the model to it."""
    served = ServedModel(
        vocabulary=opened.model.vocab_size,
        max_context=MAX_CONTEXT,
        dtype=torch.float32,
        base=str(command.model),
    )
    config = VllmConfig()
    policy = VllmPolicy(
        [Replica(name="engine-0", server=VllmServer(command, log=out / "engine.log"))],
        Publisher(config, served, folder=out / "weights"),
        config,
        chat=opened.chat(),
        max_context=MAX_CONTEXT,
    )
    policy.start()
    try:
        await policy.publish(0, FrozenWeights(opened.model))
    except BaseException:
        await policy.close()
        raise
    return policy


async def count_hits(policy: VllmPolicy, rollouts: Rollouts) -> tuple[int, int]:
    """Roll out and return the tokens hit and queried in the prefix cache from turn 2 on."""
    client = policy._fleet.replicas[0].client
    await rollouts.turn(policy, 0)
    before = await client.metrics()
    for number in range(1, TURNS):
        await rollouts.turn(policy, number)
    after = await client.metrics()
    rollouts.release(policy)
    return after.prefix_hits - before.prefix_hits, after.prefix_queries - before.prefix_queries


async def measure(concurrent: Sequence[int], rounds: int, python: Path | None) -> dict[int, Measured]:
    """Measure all samplers alternately."""
    results = {number: Measured() for number in concurrent}
    async with AsyncExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = model_folder("builtin:quickstart", out / "model", home=out, dtype=torch.float32)
        opened = open_model(str(folder), home=out)
        builtin = TransformerPolicy(opened.model, opened.chat(), max_batch=MAX_BATCH)
        stack.push_async_callback(builtin.close)
        vllm, offline = None, None
        if python is not None:
            command = ServerCommand(
                model=folder, python=python, max_context=MAX_CONTEXT, max_batch=MAX_BATCH, dtype="float32",
                cpu_cache_gib=CACHE_GIB,
            )  # fmt: skip
            vllm = await open_vllm(opened, command, out)
            stack.push_async_callback(vllm.close)
            offline = await asyncio.to_thread(Offline, command)
            stack.callback(offline.close)
        for turn in range(rounds + 1):
            for number, measured in results.items():
                await _round(turn, number, measured, builtin, vllm, offline, opened.model.vocab_size)
    return results


async def _round(
    turn: int,
    number: int,
    measured: Measured,
    builtin: TransformerPolicy,
    vllm: VllmPolicy | None,
    offline: Offline | None,
    vocabulary: int,
) -> None:
    """Measure each sampler once; round 0 warms up and counts prefix hits."""
    seed = 100 * turn + number
    rates = [await sampled(builtin, Rollouts(number, seed=seed, vocabulary=vocabulary))]
    if vllm is not None and offline is not None:
        rollouts = Rollouts(number, seed=seed, vocabulary=vocabulary)
        if turn:
            rates.append(await sampled(vllm, rollouts))
        else:
            measured.hits, measured.queries = await count_hits(vllm, rollouts)
        rate, alike = await asyncio.to_thread(offline.rate, rollouts)
        rates.append(rate)
        measured.alike.append(alike)
    if turn:
        for samples, rate in zip((measured.builtin, measured.vllm, measured.offline), rates, strict=False):
            samples.append(rate)


def report(found: dict[int, Measured]) -> None:
    """Print the table."""
    names = ("concurrent", "builtin", "vLLM", "offline", "share", "alike", "prefix hits")
    print(" ".join(f"{name:>{width}}" for name, width in zip(names, (10, 9, 9, 9, 7, 6, 12), strict=True)))
    for number, measured in found.items():
        if not measured.vllm:
            print(f"{number:>10} {median(measured.builtin):>9,.0f}")
            continue
        share = median(vllm / offline for vllm, offline in zip(measured.vllm, measured.offline, strict=True))
        print(
            f"{number:>10} {median(measured.builtin):>9,.0f} {median(measured.vllm):>9,.0f} "
            f"{median(measured.offline):>9,.0f} {share:>7.0%} {median(measured.alike):>6.0%} "
            f"{measured.hits / max(measured.queries, 1):>12.1%}"
        )
    print(
        f"tokens/s, medians; bars: share ≥ {SHARE_BAR:.0%}, prefix hits from turn 2 on ≥ {HIT_BAR:.0%} "
        f"(reachable: {REACHABLE:.1%})"
    )


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round at 1 and 8 at once")
    quick = parser.parse_args().quick
    load = os.getloadavg()[0]
    python = None
    try:
        python = find_interpreter()
    except PreflightError as missing:
        print(f"vLLM is not measured: {missing}")
    torch.set_num_threads(1)
    results = asyncio.run(measure(QUICK_CONCURRENT if quick else CONCURRENT, 1 if quick else 5, python))
    report(results)
    measured = {str(number): asdict(rates) for number, rates in results.items()}
    store("inference", {"load": load, "cpus": os.cpu_count(), "concurrent": measured}, quick=quick)


if __name__ == "__main__":
    main()

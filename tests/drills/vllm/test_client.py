"""Every method of the client against a real server, compared with the built-in forward."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import EngineError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.servers.server import VllmServer
from engine.models.base import LanguageModel
from tests.drills.vllm.servers import PARITY, QUICKSTART, in_flight, open_folder, request, until
from tests.unit.models.small import gap, logits_over, prompt, recomputed


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return open_folder(QUICKSTART)


async def test_check_returns_the_facts_of_the_server(client: VllmClient) -> None:
    facts = await client.check()
    assert facts.vllm.startswith("0.32")
    assert (facts.max_context, facts.vocabulary) == (512, 2048)
    assert facts.cache_tokens >= 512
    assert facts.features == {"weights", "versions"}
    assert await client.healthy()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_sampled_logprobs_match_the_builtin_forward(
    client: VllmClient, model: LanguageModel, temperature: float
) -> None:
    ids = prompt(60, 1)
    generations = await asyncio.gather(
        *(
            client.generate(request(ids, seed=s, temperature=temperature), request_id=f"t{s}")
            for s in range(4)
        )
    )
    assert len({item.ids for item in generations}) > 1
    for generation in generations:
        assert gap(model, ids, generation, temperature=temperature) <= PARITY


async def test_greedy_requests_record_logprobs_at_temperature_one_also_in_a_batch(
    client: VllmClient, model: LanguageModel
) -> None:
    """Nucleus, top-k and min-p do not change the record of a greedy request."""
    ids = prompt(40, 2)
    alone = await client.generate(
        request(ids, temperature=0, top_p=0.5, top_k=3, min_p=0.2), request_id="greedy"
    )
    assert gap(model, ids, alone) <= PARITY
    batched, *_ = await asyncio.gather(
        client.generate(request(ids, temperature=0), request_id="greedy-2"),
        *(client.generate(request(ids, seed=s, temperature=0.7), request_id=f"b{s}") for s in range(3)),
    )
    assert batched.ids == alone.ids
    assert gap(model, ids, batched) <= PARITY


async def test_seeded_samples_do_not_depend_on_concurrent_prompts(client: VllmClient) -> None:
    """Together the prompts are longer than a forward pass."""
    prompts = [prompt(400, 50 + i) for i in range(24)]

    async def sample(i: int, attempt: str) -> tuple[int, ...]:
        long_request = request(prompts[i], seed=2**63 + i, max_tokens=8)
        return (await client.generate(long_request, request_id=f"long-{attempt}-{i}")).ids

    together = await asyncio.gather(*(sample(i, "together") for i in range(24)))
    assert [await sample(i, "alone") for i in (0, 11, 23)] == [together[i] for i in (0, 11, 23)]


async def test_recorded_logprobs_are_those_of_the_truncated_distribution(
    client: VllmClient, model: LanguageModel
) -> None:
    """With top_k 2 the two kept tokens share all of the probability."""
    ids = prompt(30, 3)
    generation = await client.generate(request(ids, seed=5, top_k=2, max_tokens=12), request_id="top-k")
    logits = logits_over(model, [*ids, *generation.ids])
    for i, (token, logprob) in enumerate(zip(generation.ids, generation.logprobs, strict=True)):
        kept = logits[len(ids) + i - 1].topk(2)
        assert token in kept.indices
        expected = float(torch.log_softmax(kept.values, -1)[kept.indices == token])
        assert abs(expected - logprob) <= PARITY


async def test_a_stop_token_ends_the_response_and_is_part_of_it(client: VllmClient) -> None:
    ids = prompt(50, 5)
    free = await client.generate(request(ids, seed=1, max_tokens=20), request_id="free")
    assert (len(free.ids), free.stopped) == (20, False)
    stop = free.ids[9]
    cut = await client.generate(request(ids, seed=1, stop=stop, max_tokens=20), request_id="cut")
    assert cut.ids == free.ids[: free.ids.index(stop) + 1]
    assert cut.stopped


async def test_response_ends_at_the_context_limit(client: VllmClient) -> None:
    generation = await client.generate(request(prompt(500, 6), max_tokens=100), request_id="long")
    assert (len(generation.ids), generation.stopped) == (12, False)


async def test_prompt_logprobs_match_the_builtin_forward(client: VllmClient, model: LanguageModel) -> None:
    ids = prompt(300, 7)
    for _ in range(2):  # the second finds cached prefixes and must not use them
        logprobs = await client.prompt_logprobs(ids)
        assert max(abs(a - b) for a, b in zip(logprobs, recomputed(model, ids), strict=True)) <= PARITY


async def test_prefix_cache_is_shared_by_equal_salts_until_its_reset(client: VllmClient) -> None:
    async def hits(name: str, salt: str) -> int:
        before = (await client.metrics()).prefix_hits
        await client.generate(request(prompt(200, 8), max_tokens=1), request_id=name, salt=salt)
        return (await client.metrics()).prefix_hits - before

    assert await hits("h1", "v1") == 0
    assert await hits("h2", "v1") >= 160
    assert await hits("h3", "v2") == 0
    await client.reset_prefix_cache()
    assert await hits("h4", "v1") == 0


async def test_cancelled_request_is_aborted_on_the_server(client: VllmClient) -> None:
    async def is_idle() -> bool:
        return (await client.metrics()).running == 0

    async with in_flight(client, prompt(9)) as task:
        await client.pause("keep")
        before = (await client.metrics()).generated_tokens
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await client.resume()
    await until(is_idle)
    assert (await client.metrics()).generated_tokens < before + 5_000, "48 requests had 480 tokens each to go"


async def test_paused_requests_wait_without_a_stall_error(vllm_server: VllmServer) -> None:
    client = vllm_server.client(stall_timeout_s=10)
    await client.pause("keep")
    task = asyncio.create_task(client.generate(request(prompt(9, 9)), request_id="kept"))
    await asyncio.wait([task], timeout=12)
    assert not task.done()
    await client.resume()
    assert (await task).ids
    await client.close()


async def test_an_aborting_pause_ends_requests_with_their_tokens(client: VllmClient) -> None:
    async with in_flight(client, prompt(9, 10)) as task:
        await client.pause("abort")
        with pytest.raises(EngineError) as raised:
            await task
    await client.resume()
    assert raised.value.kind == "aborted"
    assert 0 < len(raised.value.tokens.ids) < 480
    assert all(map(math.isfinite, raised.value.tokens.logprobs))


async def test_token_versions_are_those_of_the_sampling_weights(client: VllmClient) -> None:
    await client.set_version(3)
    assert await client.served_version() == 3
    async with in_flight(client, prompt(9, 11)) as task:
        await client.pause("keep")
        await client.set_version(4)
    await client.resume()
    versions = (await task).versions
    assert set(versions) == {3, 4}
    assert list(versions) == sorted(versions)


async def test_invalid_weights_are_refused_and_leave_the_model_unchanged(
    client: VllmClient, model: LanguageModel, tmp_path: Path
) -> None:
    weights = load_file(QUICKSTART / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    before = await client.checksums()
    cases = {
        "lacks": {n: t for n, t in weights.items() if n != name},
        "has not": weights | {"model.layers.9.mlp.up_proj.weight": weights[name].clone()},
        "changes the shape": weights | {name: weights[name][:-1].contiguous()},
    }
    for complaint, tensors in cases.items():
        folder = tmp_path / complaint
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(EngineError, match=complaint) as raised:
            await client.load_weights(folder, 9)
        assert raised.value.kind == "refused"
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "model.safetensors").write_bytes((QUICKSTART / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(EngineError, match="cannot be read") as raised:
        await client.load_weights(tmp_path / "cut", 9)
    assert raised.value.kind == "refused"
    assert await client.served_version() != 9
    assert await client.checksums() == before
    ids = prompt(30, 12)
    assert gap(model, ids, await client.generate(request(ids), request_id="untouched")) <= PARITY


async def test_unknown_model_and_too_long_prompt_are_refused(client: VllmClient) -> None:
    with pytest.raises(EngineError, match="nobody") as raised:
        await client.generate(request(prompt(5)), request_id="r", model="nobody")
    assert raised.value.kind == "unloaded"
    with pytest.raises(EngineError) as raised:
        await client.generate(request(prompt(600)), request_id="too-long")
    assert raised.value.kind == "refused"


async def test_every_route_but_health_needs_the_key(vllm_server: VllmServer, client: VllmClient) -> None:
    async with aiohttp.ClientSession(vllm_server.address) as session:
        async with session.get("/openapi.json") as response:
            assert response.status == 401
        headers = {"Authorization": f"Bearer {vllm_server.api_key}"}
        async with session.get("/openapi.json", headers=headers) as response:
            paths = (await response.json())["paths"]
        assert {"/collective_rpc", "/metrics", "/inference/v1/generate"} <= set(paths)
        unprotected = []
        for path, verbs in paths.items():
            for verb in verbs:
                async with session.request(verb, path.replace("{response_id}", "x")) as response:
                    unprotected += [path] if response.status != 401 else []
    assert unprotected == ["/health"]


async def test_client_refuses_a_server_of_another_model(vllm_server: VllmServer) -> None:
    other_client = VllmClient(vllm_server.address, model="other", api_key=vllm_server.api_key)
    with pytest.raises(EngineError, match="serves policy and not 'other'"):
        await other_client.check()
    await other_client.close()

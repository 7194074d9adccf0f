from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.errors import CheckpointError
from engine.models.attention import Segments
from engine.models.builtin.architectures import ARCHITECTURES, TransformerConfig
from engine.models.builtin.batch_invariance import choose_tiles
from engine.models.builtin.kv_cache import KVCache
from engine.models.builtin.transformer import Transformer
from engine.models.caches.base import Piece
from engine.models.loader import open_model, save_policy_checkpoint
from tests.unit.models.small import CONFIG, model, prompt, tokenizer


@pytest.mark.parametrize(("kv_heads", "tied", "packed"), [(1, True, True), (2, False, False)])
def test_gradients_equal_those_of_transformers(
    tmp_path: Path, kv_heads: int, tied: bool, packed: bool
) -> None:
    config = replace(CONFIG, tie_word_embeddings=tied, num_key_value_heads=kv_heads)
    ours = Transformer(config, seed=7)
    save_policy_checkpoint(tmp_path / "m", ours, tokenizer(), {})
    from transformers import Qwen3ForCausalLM

    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    ids = torch.tensor([prompt(40, 1), prompt(40, 2)])
    if packed:
        segments = Segments.whole([40, 40], torch.device("cpu"))
        logits = ours.logits(ours.packed_hidden(ids.flatten(), segments))
    else:
        logits = ours(ids, torch.tensor([40, 40]))
    torch.autograd.backward(logits.square().mean())
    torch.autograd.backward(theirs(ids).logits.square().mean())
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        wanted = expected[name].grad
        assert wanted is not None
        error = (parameter.grad - wanted).norm() / wanted.norm()
        assert error <= 1e-5, name


def test_padding_does_not_change_logits() -> None:
    net, text = model(), prompt(30)
    alone = net(torch.tensor([text]), torch.tensor([30]))[0]
    for filler in (0, 7):
        ids = torch.tensor([text + [filler] * 20, prompt(50, 1)])
        padded = net(ids, torch.tensor([30, 50]))[0]
        assert (padded[:30] - alone).abs().max() <= 1e-5
        assert padded[30:].abs().max() == 0


def test_cached_forward_in_pieces_equals_the_full_forward() -> None:
    net = model()
    texts = [prompt(50, 1), prompt(41, 2), prompt(33, 3)]
    cache = KVCache(CONFIG, 5, device=torch.device("cpu"), dtype=torch.float32)
    fed = [0, 0, 0]
    with torch.no_grad():
        for sizes in ((20, 7, 1), (1, 1, 1), (9, 12, 30), (1, 1, 1)):
            pieces = [
                Piece(row=row, start=start, ids=text[start : start + size])
                for row, (text, start, size) in enumerate(zip(texts, fed, sizes, strict=True), 1)
            ]
            logits = net.extend(pieces, cache, choose_tiles(net).tiles)
            fed = [f + s for f, s in zip(fed, sizes, strict=True)]
            for row, (text, length) in enumerate(zip(texts, fed, strict=True)):
                full = net(torch.tensor([text[:length]]), torch.tensor([length]))[0, -1]
                assert (logits[row] - full).abs().max() <= 2e-5


def test_logits_are_identical_for_all_prefill_chunks_and_batch_neighbours() -> None:
    net = Transformer(ARCHITECTURES["quickstart"], seed=2)
    choice = choose_tiles(net)
    assert choice.is_invariant
    text = prompt(300, 1)
    rng = random.Random(5)

    @torch.no_grad()
    def prefill(cuts: list[int], neighbours: int, row: int) -> torch.Tensor:
        cache = KVCache(net.config, 20, device=torch.device("cpu"), dtype=torch.float32)
        for start, end in itertools.pairwise((0, *cuts, len(text))):
            others = [(rng.randint(0, 400), prompt(rng.randint(1, 40), 50 + i)) for i in range(neighbours)]
            others.insert(row, (start, text[start:end]))
            pieces = [Piece(row=i, start=start, ids=ids) for i, (start, ids) in enumerate(others)]
            logits = net.extend(pieces, cache, choice.tiles)
        return logits[row]

    whole = prefill([], 0, 0)
    cases = [
        ([], 15),
        ([1], 6),
        ([100, 101, 102], 1),
        ([*range(290, 300)], 6),
        ([64, 192, 256], 15),
    ]
    for cuts, neighbours in cases:
        assert torch.equal(prefill(cuts, neighbours, rng.randint(0, neighbours)), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpoint_round_trip_preserves_weights_and_tokenizer(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = model(seed=5)
    folder = tmp_path / "deep" / "m"
    save_policy_checkpoint(folder, model(seed=4), tokenizer(), {"old": 1})
    save_policy_checkpoint(folder, saved, tokenizer(), {"seed": 5}, dtype=dtype)
    loaded, tokens = open_model(str(folder), home=tmp_path).builtin()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(dtype).float())
    assert tokens.encode("def f(x):") == tokenizer().encode("def f(x):")
    assert loaded.config == CONFIG
    assert sorted(p.name for p in folder.parent.iterdir()) == ["m"]


def test_run_reference_opens_the_last_checkpoint(tmp_path: Path) -> None:
    for number in (99_999, 100_000):
        folder = tmp_path / "runs" / "r1" / "checkpoints" / f"{number:05d}"
        save_policy_checkpoint(folder, model(seed=number), tokenizer(), {})
    loaded, _ = open_model("run:r1", home=tmp_path).builtin()
    last = model(seed=100_000)
    assert torch.equal(loaded.state_dict()["model.norm.weight"], last.state_dict()["model.norm.weight"])
    assert torch.equal(loaded.model.embed_tokens.weight, last.model.embed_tokens.weight)


def test_fresh_reference_has_random_weights_and_the_shipped_tokenizer(tmp_path: Path) -> None:
    tiny, tokens = open_model("fresh:tiny", home=tmp_path).builtin()
    assert tiny.config == ARCHITECTURES["tiny"]
    assert tokens.vocab_size == tiny.config.vocab_size == 2048
    full = Transformer(ARCHITECTURES["quickstart"])
    assert sum(p.numel() for p in full.parameters()) == 1_599_136


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("fresh:huge", "'huge' is neither a built-in architecture"),
        ("builtin:none", "there is no model folder .*/none"),
        ("run:nobody", "run nobody has no checkpoint yet"),
        ("/etc/passwd", "cannot read /etc/passwd/"),
    ],
)
def test_unknown_model_references_are_refused(tmp_path: Path, ref: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_model(ref, home=tmp_path)


def test_configurations_of_other_architectures_are_refused() -> None:
    with pytest.raises(CheckpointError, match="llama"):
        TransformerConfig.from_json({"model_type": "llama"})
    with pytest.raises(CheckpointError, match="sliding"):
        TransformerConfig.from_json({"model_type": "qwen3", "use_sliding_window": True})

from __future__ import annotations

import asyncio
import json
import math
import random
import shlex
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from engine.config.run import SftRun
from engine.errors import TrainyardError
from engine.inference.base import Generation, GenerationRequest, TokenPolicy
from engine.models.attention import Segments
from engine.models.base import LanguageModel, logits_of
from engine.models.builtin.transformer import Transformer
from engine.models.chat.base import Chat
from engine.models.chat.chatml import ChatML
from engine.models.loader import OpenedModel, open_model
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.tools import MemoryFileStore, run_immediately
from engine.tools.parser import parse
from engine.trainer.sft import loss as loss_module
from engine.trainer.sft import training
from engine.trainer.sft.data import (
    RESERVED_PACKAGES,
    EncodedEpisode,
    Episode,
    EpisodeMaker,
    SourceFile,
    editor,
    encode_episode,
    source_files,
)
from engine.trainer.sft.evaluation import exact_fix_rate
from engine.trainer.sft.loss import make_batch, token_losses
from engine.trainer.sft.muon import Muon, MuonWithAdam, orthogonalise
from engine.trainer.sft.stream import batches
from engine.trainer.sft.training import learning_rate_factor, train_sft
from tests.fakes.bytes_tokenizer import BytesTokenizer
from tests.unit.models.chat.chat_templates import TEMPLATES
from tests.unit.models.small import VOCAB, model, prompt, tokenizer
from tests.unit.models.tiny_families import tiny_config, write_tiny

TEXTWRAP = SourceFile("stdlib", "textwrap.py", Path(textwrap.__file__))


def episodes(count: int, *, seed: int = 0) -> list[Episode]:
    stream = EpisodeMaker(random.Random(seed)).stream([TEXTWRAP])
    return [next(stream) for _ in range(count)]


def test_every_episode_replays_through_the_real_tools() -> None:
    for episode in episodes(30):
        store = MemoryFileStore({episode.path: episode.broken.encode()})
        tool = editor(store)
        assert episode.broken != episode.mended
        for response, observation in episode.turns[:-1]:
            call = parse(response, "xml").call
            assert call is not None
            assert run_immediately(tool.run(call.arguments)).observation == observation
        last = parse(episode.turns[-1][0], "xml").call
        assert last is not None
        assert last.name == "finish"
        assert store.files[episode.path].decode() == episode.mended
        assert len(episode.turns) == len(episode.faults) + 2


def test_encoded_episode_equals_the_conversation_and_marks_sampled_tokens() -> None:
    tokens = tokenizer()
    for episode in episodes(10):
        (encoded,) = encode_episode(episode, ChatML(tokens))
        parts = [f"<|im_start|>user\n{episode.statement}<|im_end|>\n<|im_start|>assistant\n"]
        for response, observation in episode.turns:
            parts.append(f"{response}<|im_end|>")
            parts.append(f"\n<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n")
        assert tokens.decode(encoded.ids) == "".join(parts[:-1])
        sampled = [i for i, m in zip(encoded.ids, encoded.mask, strict=True) if m]
        assert tokens.decode(sampled) == "".join(f"{response}<|im_end|>" for response, _ in episode.turns)


def test_statements_vary_and_episodes_without_a_line_hint_have_one_fault() -> None:
    sample = episodes(60)
    assert {e.hint for e in sample} == {"line", "function"}
    assert any("Failing:" not in e.statement for e in sample)
    assert any(" more" in e.statement for e in sample)
    assert {len(e.faults) for e in sample} >= {1, 2}
    assert all(len(e.faults) == 1 for e in sample if e.hint == "function")


def test_splits_share_no_file_and_exclude_reserved_packages_and_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (*RESERVED_PACKAGES, "plain", "plain/tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").touch()
    stdlib = sysconfig.get_path("stdlib")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: stdlib if name == "stdlib" else str(tmp_path))
    train, heldout = source_files("train", excluded=["json"]), source_files("heldout", excluded=["json"])
    assert not {f.name for f in train} & {f.name for f in heldout}
    assert len(train) > 10 * len(heldout) > 0
    assert "plain/module.py" in {file.name for file in (*train, *heldout)}
    for file in (*train, *heldout):
        parts = file.name.removesuffix(".py").split("/")
        assert not set(parts) & {*RESERVED_PACKAGES, "json", "tests", "test"}


def separate_losses(net: LanguageModel, batch: list[EncodedEpisode]) -> torch.Tensor:
    """Return the cross-entropies of all tokens, computing each conversation alone from full logits."""
    losses = []
    for episode in batch:
        ids = torch.tensor(episode.ids)
        hidden = net.packed_hidden(ids[:-1], Segments.whole([len(ids) - 1], ids.device))
        losses.append(functional.cross_entropy(logits_of(hidden, net.head), ids[1:], reduction="none"))
    return torch.cat(losses)


@pytest.mark.parametrize("family", [None, "gemma3_text"])
def test_batching_changes_no_loss_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, family: str | None
) -> None:
    monkeypatch.setattr(loss_module, "is_bfloat16_fast", lambda: False)
    net: LanguageModel = model()
    if family is not None:
        net = PretrainedModel(build_causal(tiny_config(family, vocab_size=VOCAB), dtype=torch.float32))
    episodes = [EncodedEpisode(prompt(n, n), [int(i % 3 == 0) for i in range(n)], 0) for n in (20, 90, 2, 33)]
    batch = make_batch(episodes, torch.device("cpu"))
    assert batch.lengths == (19, 89, 1, 32)
    assert batch.targets.tolist() == [token for episode in episodes for token in episode.ids[1:]]
    assert batch.sampled.tolist() == [bool(x) for episode in episodes for x in episode.mask[1:]]
    packed, expected = token_losses(net, batch), separate_losses(net, episodes)
    torch.testing.assert_close(packed, expected, rtol=0, atol=1e-5)
    weights = torch.where(batch.sampled, 1.0, 0.3)
    ours, theirs = (
        torch.autograd.grad((losses * weights).sum(), list(net.parameters())) for losses in (packed, expected)
    )
    for gradient, reference in zip(ours, theirs, strict=True):
        assert (gradient - reference).norm() <= 1e-5 * reference.norm() + 1e-7


def test_muon_optimizes_layer_matrices_and_adam_the_other_parameters() -> None:
    net = PretrainedModel(build_causal(tiny_config("qwen3_moe"), dtype=torch.float32))
    optimizer = MuonWithAdam(net, muon_rate=0.02, adam_rate=2e-3)
    names = {parameter: name for name, parameter in net.named_parameters()}
    muon, adam = (
        {names[p] for group in opt.param_groups for p in group["params"]} for opt in optimizer.optimizers
    )
    assert muon | adam == set(names.values())
    assert {"model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.gate.weight"} <= muon
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= adam
    assert "model.layers.0.input_layernorm.weight" in adam


class InProcessBatches:
    """Replacement for the batch stream that builds batches in this process."""

    def __init__(self, config: SftRun, chat_folder: Path, *, max_tokens: int) -> None:
        self._batches = batches(config, chat_folder, max_tokens)

    def __enter__(self) -> InProcessBatches:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def next(self) -> list[EncodedEpisode]:
        return next(self._batches)


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit episodes to one training and one held-out file; listing all files takes seconds."""
    heldout = SourceFile("stdlib", "shlex.py", Path(shlex.__file__))
    monkeypatch.setattr("engine.trainer.sft.stream.source_files", lambda *_, **__: [TEXTWRAP])
    monkeypatch.setattr("engine.trainer.sft.training.source_files", lambda *_, **__: [heldout])


@pytest.mark.usefixtures("one_file")
def test_a_context_too_short_for_every_episode_is_an_error(tmp_path: Path) -> None:
    source = write_tiny(
        tmp_path / "llama", "llama", chat_template=TEMPLATES["llama"], max_position_embeddings=128
    )
    config = SftRun.model_validate({"name": "t", "kind": "sft", "sft": {"threads": 1}})
    with pytest.raises(TrainyardError, match="every episode is too long: .* allows 128"):
        next(batches(config, source, max_tokens=128))


def test_learning_rate_warms_up_stays_and_falls_to_four_percent() -> None:
    assert learning_rate_factor(0.0, 0) == pytest.approx(1 / 60)
    assert learning_rate_factor(0.3, 500) == 1
    assert learning_rate_factor(0.675, 500) == pytest.approx(0.52)
    assert learning_rate_factor(1.0, 500) == pytest.approx(0.04)


def test_reported_time_includes_the_last_step_and_excludes_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def accumulate(*_: object) -> tuple[float, float]:
        now[0] += 20.0
        return 1.0, 1.0

    def pause() -> bool:
        now[0] += 1000.0
        return False

    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(training, "MuonWithAdam", lambda *_, **__: SimpleNamespace(step=lambda _factor: None))
    monkeypatch.setattr(training, "_accumulate", accumulate)
    config = SftRun.model_validate({"name": "t", "kind": "sft", "sft": {"minutes": 1}})
    net, tally = model(), training._Tally()
    reports = training._train(net, config, list, tally, pause)
    assert [elapsed for elapsed, _ in reports] == [20.0, 40.0, 60.0, 60.0]


def test_muon_orthogonalises_and_refuses_vectors() -> None:
    matrices = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.4
    assert values.max() < 1.4
    tall = orthogonalise(matrices.transpose(1, 2))
    assert tall.shape == (3, 40, 24)
    with pytest.raises(ValueError, match="matrices"):
        Muon([torch.nn.Parameter(torch.zeros(3))])


def answer_loss(net: LanguageModel, batch: list[EncodedEpisode]) -> float:
    """Return the mean cross-entropy of sampled tokens, independent of training's own metrics."""
    joined = make_batch(batch, torch.device("cpu"))
    with torch.no_grad():
        return float(token_losses(net, joined)[joined.sampled].mean())


@pytest.mark.usefixtures("one_file")
def test_thirty_steps_lower_the_loss_and_leave_a_loadable_checkpoint(tmp_path: Path) -> None:
    config = SftRun.model_validate(
        {"name": "t", "kind": "sft", "sft": {"minutes": 5, "sequences_per_step": 4, "threads": 1}}
    )
    messages: list[str] = []
    polled = iter(range(10_000))
    net = Transformer(open_model("fresh:tiny", home=tmp_path).builtin()[0].config, seed=1)
    _, tokens = open_model("fresh:tiny", home=tmp_path).builtin()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    unseen = [part for episode in episodes(8) for part in encode_episode(episode, ChatML(tokens))]
    untrained = answer_loss(net, unseen)
    metrics = train_sft(
        config,
        out=tmp_path / "out",
        start=OpenedModel(model=net, tokenizer=tokens, folder=None, provenance={}),
        progress=lambda message, done, total: messages.append(message),
        should_stop=lambda: next(polled) >= 30,
    )
    assert metrics["steps"] == 30
    assert untrained == pytest.approx(math.log(tokens.vocab_size), abs=0.1)
    trained = answer_loss(net, unseen)
    assert trained < untrained - 0.3, (untrained, trained)
    assert "answer loss" in messages[-1]
    loaded, _ = open_model(str(tmp_path / "out"), home=tmp_path).builtin()
    assert not torch.equal(loaded.model.embed_tokens.weight, before["model.embed_tokens.weight"])
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["metrics"]["episodes"] == 120
    assert set(RESERVED_PACKAGES) <= set(provenance["excluded_packages"])


@pytest.mark.usefixtures("one_file")
def test_a_published_model_learns_in_its_own_chat_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the format of episodes, the published weight names and the copied files."""
    monkeypatch.setattr("engine.trainer.sft.training.BatchStream", InProcessBatches)
    family = "gpt_oss"
    source = write_tiny(
        tmp_path / family, family, chat_template=TEMPLATES[family], max_position_embeddings=8192
    )
    settings = {
        "minutes": 5, "sequences_per_step": 2, "threads": 1, "max_tokens": 4096, "evaluation_episodes": 2,
        "adam_learning_rate": 0.03,
        "start": str(source),
    }  # fmt: skip
    agent = {"max_context": 4096, "max_response": 16}
    config = SftRun.model_validate({"name": "t", "kind": "sft", "sft": settings, "agent": agent})
    before = open_model(str(source), home=tmp_path)
    chat = before.chat()
    unseen = [part for episode in episodes(2) for part in encode_episode(episode, chat)]
    polled = iter(range(10_000))
    metrics = train_sft(
        config,
        out=tmp_path / "out",
        start=open_model(str(source), home=tmp_path, max_context=4096),
        should_stop=lambda: next(polled) == 6,
    )
    assert (metrics["steps"], metrics["heldout_episodes"]) == (6, 2)
    after = open_model(str(tmp_path / "out"), home=tmp_path)
    assert after.model.family == family
    assert answer_loss(after.model, unseen) < answer_loss(before.model, unseen) - 0.3
    assert after.chat().stop_ids == before.chat().stop_ids
    assert [part for e in episodes(2) for part in encode_episode(e, after.chat())] == unseen
    assert after.tokenizer.chat_template == TEMPLATES[family]
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert published.num_parameters() == sum(p.numel() for p in before.model.parameters())


class Answering(TokenPolicy):
    """Policy that replays the responses of even episodes and submits at once in odd ones."""

    name = "answering"
    version = 0

    def __init__(self, replayed: list[Episode]) -> None:
        self.chat: Chat = ChatML(BytesTokenizer())
        self.max_context: int | None = None
        self._turns: dict[str, Iterator[tuple[str, str]]] = {
            e.statement: iter(e.turns if i % 2 == 0 else e.turns[-1:]) for i, e in enumerate(replayed)
        }

    async def generate(self, request: GenerationRequest) -> Generation:
        await asyncio.sleep(0)
        response, _ = next(self._turns[request.context.row.task.problem_statement])
        ids: list[int] = []
        for piece, marker in (("<think>", 258), ("</think>", 259)):
            head, _, response = response.partition(piece)
            ids += [*head.encode(), marker]
        ids += [*response.encode(), BytesTokenizer.im_end]
        return Generation(ids=tuple(ids), logprobs=(0.0,) * len(ids), versions=(0,) * len(ids))

    async def close(self) -> None:
        pass


async def test_exact_fix_rate_counts_exact_fixes_only() -> None:
    heldout = episodes(10, seed=9)
    policy = Answering(heldout)
    rates = await exact_fix_rate(policy, heldout, temperature=1.0, max_context=100_000, max_response=10_000)
    assert rates["exact_fix"] == 0.5
    assert rates["finished"] == 1.0
    assert rates["malformed"] == 0.0

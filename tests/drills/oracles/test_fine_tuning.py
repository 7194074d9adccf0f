"""Loss curve of one epoch against TRL's SFTTrainer. Needs ``requirements/oracles.txt``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config.learning.fine_tuning import ConversationConfig, FineTuningConfig
from engine.models.loader import open_model
from engine.models.published.tiny import write_tiny_model
from engine.tokens import TokenRecord
from engine.trainer.batch import IMITATION
from engine.trainer.schedule import learning_rate
from engine.trainer.sft.recorded import ConversationRenderer
from engine.trainer.trainer import Trainer
from tests.unit.trainer.builders.sft_builders import trajectory

pytest.importorskip("trl", reason="TRL is not installed: pip install -r requirements/oracles.txt")

BATCH = 4
CONFIG = FineTuningConfig(
    learning_rate=5e-3, epochs=1, batch_size=BATCH, threads=1, warmup_share=0.25, device="cpu"
)


def train_with_trl(folder: Path, records: list[TokenRecord]) -> list[dict[str, float]]:
    """Train with padded batches, assistant tokens and a cosine schedule; return TRL's log of each step."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoTokenizer, Qwen3ForCausalLM
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    rows = {
        "input_ids": [record.ids.tolist() for record in records],
        "assistant_masks": [record.mask.astype(int).tolist() for record in records],
    }
    steps = len(records) // BATCH
    arguments = SFTConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=BATCH, num_train_epochs=1,
        learning_rate=CONFIG.learning_rate, lr_scheduler_type="cosine", warmup_steps=round(0.25 * steps),
        logging_steps=1, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        max_length=None, save_strategy="no", weight_decay=0.0, max_grad_norm=1.0,
        optim="adamw_torch", disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=Qwen3ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        args=arguments,
        train_dataset=Dataset.from_dict(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )
    trainer._get_train_sampler = SequentialSampler
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


def train_with_trainyard(folder: Path, records: list[TokenRecord]) -> list[dict[str, float]]:
    steps = len(records) // BATCH
    config = CONFIG.trainer(steps)
    opened = open_model(str(folder / "model"), home=folder)
    trainer = Trainer(opened.model, algorithm=IMITATION, config=config, max_context=64, seed=0)
    metrics = [
        trainer.imitate(
            records[step * BATCH : (step + 1) * BATCH],
            # transformers' warm-up begins at 0, ours at the first share of the peak
            rate=learning_rate(config, step)
            if step >= config.warmup_iterations
            else config.learning_rate * step / config.warmup_iterations,
        )
        for step in range(steps)
    ]
    trainer.close()
    return metrics


@pytest.mark.filterwarnings("ignore")
def test_loss_curve_of_an_epoch_matches_trls_sft_trainer(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_tiny_model("Qwen/Qwen3-0.6B", tmp_path / "model", home=tmp_path)
    chat = open_model(str(tmp_path / "model"), home=tmp_path).chat()
    renderer = ConversationRenderer(chat, ConversationConfig(prompt="compact_v1"))
    records = [renderer.render(trajectory(number)) for number in range(32)]
    theirs = train_with_trl(tmp_path, records)
    ours = train_with_trainyard(tmp_path, records)
    assert len(theirs) == len(ours) == 8
    assert [row["loss/value"] for row in ours] == pytest.approx([row["loss"] for row in theirs], abs=1e-4)
    assert [row["grad/norm"] for row in ours] == pytest.approx([row["grad_norm"] for row in theirs], rel=1e-3)
    assert ours[-1]["loss/value"] < ours[0]["loss/value"] - 0.5

"""DeepSWE's recipe for published models: GRPO++ on R2E-Gym, scaled to the hardware.

DeepSWE's settings (rLLM's script and the blog): groups of 8, 50 steps, 4,096 + 32,768 tokens of context,
90 s a command, 20 minutes a rollout, 5 minutes of tests, temperature 1, a constant learning rate, clip 0.2
and 0.28, no KL and no entropy term, optimizer steps of 8 groups. Before the first run:

    trainyard run launch import-dataset
    trainyard dataset import --format swe-bench --name r2e-gym-subset --split heldout --append SOURCE

where SOURCE has SWE-bench Verified, on which DeepSWE was validated. DeepSWE trained all weights at a learning
rate of 1e-6; adapters take ten times that. R2E-Gym's own code evaluated it (recipe ``evaluate``), with a
prompt that differs from training. The sampler runs on the (first) GPU beside the trainer:
``policy.max_batch`` is the number of longest conversations that fit there.
"""

from __future__ import annotations

from engine.config.launcher import LauncherConfig
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import EvaluationConfig
from engine.config.policies import TransformerPolicyConfig, VllmConfig
from engine.config.recipes.quickstart import DATASET as QUICKSTART
from engine.config.rollout import AgentConfig, DatasetConfig, GradingConfig, RolloutConfig
from engine.config.run import EvaluateRun, RolloutRun, TrainRun
from engine.config.sandbox import SandboxConfig
from engine.types import TerminationReason

DATASET = "r2e-gym-subset"
_TOKEN_WARNING = 4768
_ALGORITHM = AlgorithmConfig(preset="grpo_pp", filtered_baseline="keep_zero")
"""GRPO++ as in DeepSWE's code: a rollout ended by a limit counts as 0 in its group's baseline."""
_LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _agent(max_context: int, max_response: int) -> AgentConfig:
    """Return rLLM's agent in a context of this length, tokens."""
    return AgentConfig(
        prompt="deepswe_rllm_v1",
        max_steps=50,
        max_context=max_context,
        max_response=max_response,
        token_warning=_TOKEN_WARNING,
        command_timeout_s=90.0,
        rollout_timeout_s=1200.0,
    )


def qwen3_small() -> TrainRun:
    """Train Qwen3-0.6B, all weights, on one GPU of 24 GB: the quickstart's tasks in local sandboxes."""
    return TrainRun(
        name="qwen3-0.6b",
        dataset=DatasetConfig(name=QUICKSTART),
        agent=_agent(12_288, 2048),
        grading=GradingConfig(timeout_s=30.0),
        policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-0.6B", max_batch=4),
        rollout=RolloutConfig(group_size=8, max_concurrent=16),
        algorithm=_ALGORITHM,
        trainer=TrainerConfig(
            iterations=100,
            tasks_per_iteration=8,
            minibatches=2,
            learning_rate=2e-6,
            precision="bf16",
            activation_checkpointing=True,
            optimizer="adamw_8bit",
            tokens_per_microbatch=12_288,
            checkpoint_every=10,
        ),
        evaluation=EvaluationConfig(samples=64, train_samples=0, every=10),
    )


def qwen3_lora() -> TrainRun:
    """Train LoRA adapters of Qwen3-4B with GRPO++ on R2E-Gym, on one GPU of 24 GB."""
    return TrainRun(
        name="qwen3-4b LoRA",
        dataset=DatasetConfig(name=DATASET),
        sandbox=SandboxConfig(backend="docker", memory_mb=4096, processes=256, disk_mb=4096),
        agent=_agent(12_288, 4096),
        policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-4B", max_batch=3),
        rollout=RolloutConfig(group_size=8, max_concurrent=16),
        algorithm=_ALGORITHM,
        trainer=TrainerConfig(
            iterations=200,
            tasks_per_iteration=8,
            minibatches=2,
            learning_rate=1e-5,
            precision="bf16",
            activation_checkpointing=True,
            lora_rank=32,
            lora_alpha=64.0,
            lora_targets=_LORA_TARGETS,
            tokens_per_microbatch=12_288,
            checkpoint_every=10,
        ),
        evaluation=EvaluationConfig(samples=128, train_samples=0, every=10),
    )


def qwen3_coder() -> TrainRun:
    """Train LoRA adapters of Qwen3-Coder-30B-A3B with DeepSWE's settings, on eight GPUs of 141 GB."""
    return TrainRun(
        name="qwen3-coder-30b LoRA",
        dataset=DatasetConfig(name=DATASET),
        sandbox=SandboxConfig(
            backend="kubernetes", memory_mb=4096, processes=256, disk_mb=4096, max_live=512, max_starting=64
        ),
        agent=_agent(4096 + 32_768, 16_384),
        grading=GradingConfig(evaluation_timeout_s=1800.0, max_parallel=64),
        policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-Coder-30B-A3B-Instruct", max_batch=6),
        rollout=RolloutConfig(group_size=8, max_concurrent=512),
        algorithm=_ALGORITHM,
        trainer=TrainerConfig(
            iterations=200,
            tasks_per_iteration=64,
            minibatches=8,
            learning_rate=1e-5,
            precision="bf16",
            activation_checkpointing=True,
            lora_rank=32,
            lora_alpha=64.0,
            lora_targets=_LORA_TARGETS[:4],
            data_parallel=4,
            context_parallel=2,
            tokens_per_microbatch=36_864,
            rank_timeout_s=3600.0,
            checkpoint_every=10,
        ),
        evaluation=EvaluationConfig(
            samples=500,
            train_samples=0,
            every=10,
            temperature=1.0,
            max_steps=100,
            max_context=65_536,
            rollout_timeout_s=2400.0,
        ),
    )


def qwen3_32b() -> TrainRun:
    """Train Qwen3-32B, all weights, as in DeepSWE's blog: 64 groups of 8, 32K, on 64 GPUs of 80 GB.

    The blog: 64 × 8 rollouts, 20 minutes a rollout, 5 minutes of tests (30 in evaluations), 200 iterations.
    Its script, where the blog says nothing: 4,096 + 32,768 tokens, 50 steps, learning rate, clip, optimizer
    steps of 8 groups, evaluation of the validation set every 10 iterations at temperature 0, tensor and
    context parallelism of 8. A turn of 16,384 tokens is R2E-Gym's limit. Ours: sizes of sandboxes, concurrent
    gradings, and half of the GPUs for training and half for sampling; DeepSWE's did both in turn. The run is
    a job of a Ray cluster with eight GPUs a node; ranks and servers spread over the nodes.
    """
    return TrainRun(
        name="deepswe-32b",
        launcher=LauncherConfig(backend="ray"),
        dataset=DatasetConfig(name=DATASET),
        sandbox=SandboxConfig(
            backend="kubernetes", memory_mb=4096, processes=256, disk_mb=4096, max_live=640, max_starting=64
        ),
        agent=_agent(4096 + 32_768, 16_384),
        grading=GradingConfig(evaluation_timeout_s=1800.0, max_parallel=128),
        policy=TransformerPolicyConfig(
            checkpoint="Qwen/Qwen3-32B",
            engine="vllm",
            vllm=VllmConfig(launcher="ray", replicas=4, tensor_parallel=8),
            max_batch=128,
        ),
        rollout=RolloutConfig(group_size=8, max_concurrent=512),
        algorithm=_ALGORITHM,
        trainer=TrainerConfig(
            iterations=200,
            tasks_per_iteration=64,
            minibatches=8,
            learning_rate=1e-6,
            precision="bf16",
            activation_checkpointing=True,
            data_parallel=4,
            context_parallel=8,
            launcher="ray",
            tokens_per_microbatch=36_864,
            rank_timeout_s=3600.0,
            checkpoint_every=10,
        ),
        evaluation=EvaluationConfig(samples=500, train_samples=0, every=10, temperature=0.0),
    )


def qwen3_32b_script() -> TrainRun:
    """Train Qwen3-32B as DeepSWE's published script does: 8 groups of 8, 90 minutes a rollout.

    Differences from the blog follow rLLM's ``examples/swe/train_deepswe_32b.sh``: 8 × 8 rollouts and one
    optimizer step of all of them, so that the clip never takes effect; 5,400 s a rollout; a loss divided by
    the 32,768 tokens of the response; rollouts that ended by the environment's timeout are trained on.
    """
    blog = qwen3_32b()
    return blog.model_copy(
        update={
            "name": "deepswe-32b script",
            "agent": blog.agent.model_copy(update={"rollout_timeout_s": 5400.0}),
            "rollout": RolloutConfig(group_size=8, max_concurrent=64),
            "algorithm": AlgorithmConfig(
                preset="grpo_pp",
                filtered_baseline="keep_zero",
                normalisation_length=32_768,
                filtered_reasons=(
                    TerminationReason.MAX_CONTEXT,
                    TerminationReason.MAX_RESPONSE,
                    TerminationReason.MAX_STEPS,
                    TerminationReason.ROLLOUT_TIMEOUT,
                ),
            ),
            "trainer": blog.trainer.model_copy(update={"tasks_per_iteration": 8, "minibatches": 1}),
        }
    )


_DOCKER = SandboxConfig(
    backend="docker", memory_mb=4096, processes=256, disk_mb=4096, max_live=64, max_starting=16
)


def collect() -> RolloutRun:
    """Collect rollouts of a model on R2E-Gym as R2E-Gym does: its prompt, 50 steps, 64K tokens."""
    return RolloutRun(
        name="collection",
        dataset=DatasetConfig(name=DATASET),
        sandbox=_DOCKER,
        agent=AgentConfig(
            prompt="deepswe_r2e_v1",
            max_steps=50,
            max_context=65_536,
            max_response=16_384,
            rollout_timeout_s=2400.0,
        ),
        grading=GradingConfig(max_parallel=8),
        policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-Coder-30B-A3B-Instruct", max_batch=4),
        rollout=RolloutConfig(group_size=8, max_concurrent=64),
    )


def evaluate() -> EvaluateRun:
    """Evaluate a model as DeepSWE was: R2E-Gym's prompt, 100 steps, 64K tokens, 16 rollouts a task.

    Published (the blog, section 4): R2E-Gym's code, 65,536 tokens, 100 steps, the mean of 16 runs, the
    official 30 minutes of tests. R2E-Gym's code of July 2025 (``Agent.run``): its evaluation prompt, which
    has no token warning, 90 s a command, 50,000 s a rollout; later 16,384 tokens a turn. Ours: temperature 1,
    since 16 greedy runs would be alike, and the sizes of sandboxes.
    """
    return EvaluateRun(
        name="evaluation",
        dataset=DatasetConfig(name=DATASET, split="heldout"),
        sandbox=_DOCKER,
        agent=collect().agent.model_copy(update={"max_steps": 100, "rollout_timeout_s": 50_000.0}),
        grading=GradingConfig(max_parallel=8, timeout_s=1800.0),
        policy=collect().policy,
        rollout=RolloutConfig(group_size=16, max_concurrent=64),
    )

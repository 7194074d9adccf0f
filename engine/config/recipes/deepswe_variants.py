"""Variants of DeepSWE's recipe: another size, no thinking, another model.

None was published with its settings. Settings that a docstring below does not name are those of
``deepswe-32b``, with the sources given there; using them here is our choice, as is the number of GPUs.
"""

from __future__ import annotations

from engine.config.policies import TransformerPolicyConfig, VllmConfig
from engine.config.recipes.deepswe import qwen3_32b
from engine.config.run import TrainRun


def qwen3_14b_filter() -> TrainRun:
    """Train Qwen3-14B with compact filtering, as in the blog's Figure 6, on 16 GPUs of 80 GB.

    Figure 6 of DeepSWE's blog (section 2.3) compares training with compact filtering to training without:
    this recipe is the first arm, and ``algorithm.filtered_reasons=[]`` the second. Published: the model, and
    the filtered reasons (context, steps, timeout). Ours: everything else.
    """
    base = qwen3_32b()
    return base.model_copy(
        update={
            "name": "deepswe-14b filter",
            "policy": TransformerPolicyConfig(
                checkpoint="Qwen/Qwen3-14B",
                engine="vllm",
                vllm=VllmConfig(launcher="ray", replicas=4, tensor_parallel=2),
                max_batch=128,
            ),
            "trainer": base.trainer.model_copy(update={"data_parallel": 2, "context_parallel": 4}),
        }
    )


def qwen3_32b_nonthinking() -> TrainRun:
    """Train Qwen3-32B without thinking, which the blog tried with limited improvement, on 64 GPUs of 80 GB.

    Published (DeepSWE's blog, section 6): the model and the mode, Qwen3's non-thinking one. Ours: everything
    else.
    """
    base = qwen3_32b()
    return base.model_copy(
        update={
            "name": "deepswe-32b non-thinking",
            "agent": base.agent.model_copy(update={"thinking": "off"}),
        }
    )


def qwen3_coder_30b() -> TrainRun:
    """Train Qwen3-Coder-30B-A3B, all weights, with DeepSWE's settings, on 32 GPUs of 80 GB.

    No run of DeepSWE's recipe with this model was published: everything is ours. The model has no thinking
    mode (its model card), so a turn has at most 8,192 tokens. ``qwen3-coder-30b-8gpu`` trains its
    adapters.
    """
    base = qwen3_32b()
    return base.model_copy(
        update={
            "name": "deepswe-qwen3-coder-30b",
            "agent": base.agent.model_copy(update={"max_response": 8192}),
            "policy": TransformerPolicyConfig(
                checkpoint="Qwen/Qwen3-Coder-30B-A3B-Instruct",
                engine="vllm",
                vllm=VllmConfig(launcher="ray", replicas=4, tensor_parallel=4),
                max_batch=128,
            ),
            "trainer": base.trainer.model_copy(update={"data_parallel": 4, "context_parallel": 4}),
        }
    )

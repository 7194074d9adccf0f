"""vLLM's own offline throughput: a child of ``bench.inference`` in vLLM's environment, without our packages.

Reads one JSON line per job from standard input, ``{"prompts": [[ids]], "max_tokens": n, "seed": s}``, and
answers each with ``{"seconds": s, "tokens": n}``. The first line answers nothing: the engine is ready.
"""

import json
import os
import sys
import time


def main() -> None:
    """Serve jobs until standard input ends."""
    model, max_context, max_batch, cache_gib, dtype = sys.argv[1:]
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = cache_gib
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints to standard output
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]

    engine = LLM(
        model=model,
        dtype=dtype,
        max_model_len=int(max_context),
        max_num_seqs=int(max_batch),
        enforce_eager=True,
        block_size=32,  # as our servers
        enable_chunked_prefill=False,
        max_num_batched_tokens=2048,
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        if job.get("forget"):
            engine.reset_prefix_cache()
        params = [
            SamplingParams(
                max_tokens=job["max_tokens"],
                ignore_eos=True,
                logprobs=0,
                seed=job["seed"] + i,
                detokenize=False,
            )
            for i in range(len(job["prompts"]))
        ]
        began = time.perf_counter()
        found = engine.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(one.outputs[0].token_ids) for one in found)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers)


if __name__ == "__main__":
    main()

"""vLLM's own offline throughput: a child of ``bench.inference`` in vLLM's environment, without our packages.

Takes the command line of the compared server and parses it like the server, so both engines have the same
settings. Reads one JSON line per job from standard input, ``{"prompts": [[ids]], "seeds": [s], "max_tokens":
n, "forget": bool}``, and answers each with ``{"seconds": s, "responses": [[ids]]}``. The first line of output
reports that the engine is ready.
"""

import json
import os
import sys
import time


def main() -> None:
    """Serve jobs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints to standard output, which carries the answers
    from vllm import LLM, EngineArgs, SamplingParams  # type: ignore[import-not-found, unused-ignore]
    from vllm.entrypoints.launchers.cli_args import (  # type: ignore[import-not-found, unused-ignore]
        make_arg_parser,
    )
    from vllm.utils.argparse_utils import (  # type: ignore[import-not-found, unused-ignore]
        FlexibleArgumentParser,
    )

    settings = EngineArgs.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:]))
    settings.disable_log_stats = True  # as offline engines do by default
    llm = LLM.from_engine_args(settings)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        if job["forget"]:
            llm.reset_prefix_cache()
        params = [
            SamplingParams(
                max_tokens=job["max_tokens"], ignore_eos=True, logprobs=0, seed=seed, detokenize=False
            )
            for seed in job["seeds"]
        ]
        began = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        responses = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps({"seconds": seconds, "responses": responses}), file=answers)


if __name__ == "__main__":
    main()

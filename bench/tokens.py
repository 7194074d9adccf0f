"""Size of an iteration's tokens in spool and database: ``python -m bench.tokens [--quick]``.

512 trajectories of 40,000 tokens are sent through the real spool and the real ingest into an embedded
PostgreSQL; a few of them also in the format of earlier versions (lists in the event, five columns in the
database), scaled up.
The bar is 150 MB in spool and database together.

The ids are those of a byte-pair vocabulary of 100,000, trained here on the Python files of this machine:
a prompt, then turns of new text and of files, some of which are read again. A third of the tokens is
sampled, or the share ``--sampled``. Two thirds of their log-probabilities are spread evenly over the
magnitudes 1e-7 to 0.03, the others exponential, all with random mantissas: no model's are less
compressible. ``--trajectories`` takes the texts of an R2E-Gym file instead, whose thoughts and actions
are the sampled tokens. ``noise`` is the worst case: every id and log-probability random.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import store
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink
from engine.events.token_block import TokenBlock, decode, encode
from engine.events.types import RunStarted, TrajectoryFinished, TrajectoryStarted
from engine.processes.ports import free_port
from engine.tokens import TOKEN_COLUMNS, TokenRecord
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis

TRAJECTORIES, TOKENS, OLD = 512, 40_000, 16
DISTINCT = 64
"""Number of trajectories with distinct ids; the others repeat them with other log-probabilities."""
VOCABULARY, CORPUS_CHARS = 100_000, 25_000_000
Turns = list[tuple[list[int], bool]]
"""Token ids and whether they were sampled."""


def corpus() -> list[str]:
    """Return Python files of this machine, in random order."""
    paths = sorted(p for key in ("stdlib", "purelib") for p in Path(sysconfig.get_path(key)).rglob("*.py"))
    random.Random(0).shuffle(paths)
    texts: list[str] = []
    size = 0
    for path in paths:
        text = path.read_text("utf-8", errors="ignore")
        texts.append(text)
        size += len(text)
        if size > CORPUS_CHARS:
            break
    return texts


def train(texts: list[str]) -> Any:
    """Train a byte-level BPE tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def conversations(texts: list[str], tokenizer: Any, sampled: float) -> Iterator[Turns]:
    """Yield turns made of the corpus: sampled tokens are new text or repeat the last observation's start."""
    rng = random.Random(1)
    while True:
        files = [tokenizer.encode(rng.choice(texts)).ids for _ in range(24)]
        files = [ids for ids in files if len(ids) > 200]
        turns: Turns = [(tokenizer.encode(rng.choice(texts)[:8000]).ids, False)]
        while sum(len(ids) for ids, _ in turns) < TOKENS:
            read = rng.choice(files)
            at = rng.randrange(len(read) - 100)
            seen = read[at : at + rng.randint(100, 1600)]
            new = tokenizer.encode(rng.choice(texts)).ids
            reply = [*new[: round(len(seen) * sampled / (1 - sampled))], *seen[:20]]
            turns += [(reply, True), (seen, False)]
        yield turns


def stored_conversations(path: Path, tokenizer: Any) -> Iterator[Turns]:
    """Yield the conversations of an R2E-Gym file repeatedly."""
    stored: list[Turns] = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        turns: Turns = [(tokenizer.encode(str(row.get("problem_statement", ""))).ids, False)]
        for step in row["trajectory_steps"]:
            turns.append((tokenizer.encode(step["thought"] + str(step["action"])).ids, True))
            turns.append((tokenizer.encode(str(step["observation"])).ids, False))
        stored.append(turns)
    return cycle(stored)


def record_of(turns: Turns, rng: np.random.Generator) -> TokenRecord:
    """Return the first ``TOKENS`` tokens of a conversation, repeated where it is shorter, as a record."""
    turns = list(chain.from_iterable([turns] * (1 + TOKENS // sum(len(ids) for ids, _ in turns))))
    lengths = [len(ids) for ids, _ in turns]
    ids = np.array(list(chain.from_iterable(ids for ids, _ in turns)))[:TOKENS]
    mask = np.repeat([sampled for _, sampled in turns], lengths)[:TOKENS]
    steps = np.repeat(np.cumsum([sampled for _, sampled in turns]) - 1, lengths)[:TOKENS]
    versions = np.where(mask, 7, -1)
    return TokenRecord(ids=ids, mask=mask, logprobs=logprobs(mask, rng), versions=versions, steps=steps)


def logprobs(mask: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return log-probabilities of the sampled tokens, 0.0 elsewhere."""
    sure = -(10 ** rng.uniform(-7, -1.5, len(mask)))
    values = np.where(rng.random(len(mask)) < 2 / 3, sure, -rng.exponential(0.8, len(mask)))
    return np.where(mask, values, 0.0).astype(np.float32)


def noise(sampled: float, rng: np.random.Generator) -> TokenRecord:
    """Return a record of random tokens in turns of 200."""
    mask = np.repeat(rng.random(TOKENS // 200) < sampled, 200)
    mask[:200] = False
    return TokenRecord(ids=rng.integers(0, 152_000, TOKENS), mask=mask, logprobs=logprobs(mask, rng))


def write_spool(folder: Path, records: Iterator[TokenRecord], count: int) -> tuple[float, float]:
    """Write a run with these trajectories; return the seconds and the CPU seconds of writing them."""
    sink = SpoolSink(folder, epoch=1)
    sink.emit(RunStarted, host="bench", pid=1, total_iterations=1)
    wall = cpu = 0.0
    for index, record in enumerate(islice(records, count)):
        ref = {"iteration": 0, "phase": "train", "task_id": f"task-{index // 8}", "index": index % 8}
        sink.emit(TrajectoryStarted, ref=ref)
        started, started_cpu = time.perf_counter(), time.process_time()
        sink.emit(
            TrajectoryFinished, ref=ref, termination="submitted", verdict="passed", reward=1.0, num_steps=0,
            tokens=TokenBlock.of(record),
        )  # fmt: skip
        wall += time.perf_counter() - started
        cpu += time.process_time() - started_cpu
    sink.close()
    return wall, cpu


def ingest(path: Path) -> tuple[int, float]:
    """Store a spool like the server; return the growth of its tables in bytes, and the seconds."""
    from django.db import connection

    from webapp.datasets.models.datasets import Dataset
    from webapp.ingestion.services.ingest import ingest_spool
    from webapp.runs.services import attempts, runs

    def size() -> int:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
            cursor.execute(
                "SELECT pg_total_relation_size('webapp_event') + pg_total_relation_size('webapp_tokenblob')"
            )
            return int(cursor.fetchone()[0])

    Dataset.objects.get_or_create(name="quickstart")
    run = runs.create(recipe="quickstart")
    runs.start(run=run)
    attempts.claim_launch(run_id=run.pk)
    before, started = size(), time.perf_counter()
    ingest_spool(run_id=run.pk, path=path)
    seconds = time.perf_counter() - started
    return size() - before, seconds


def old_bytes(records: list[TokenRecord]) -> tuple[int, int]:
    """Return the sizes of records in spool and database in the format of earlier versions, bytes."""
    from django.db import connection

    spool = 0
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE old_event (payload jsonb)")
        cursor.execute("CREATE TABLE old_tokens (a bytea, b bytea, c bytea, d bytea, e bytea)")
        for record in records:
            columns = {name: getattr(record, name) for name in TOKEN_COLUMNS} | {"mask": record.mask * 1}
            lists = {name: column.tolist() for name, column in columns.items()}
            line = json.dumps({"tokens": lists}, separators=(",", ":"))
            spool += len(line) + 1
            cursor.execute("INSERT INTO old_event VALUES (%s)", [line])
            cursor.execute(
                "INSERT INTO old_tokens VALUES (%s, %s, %s, %s, %s)",
                [getattr(record, name).tobytes() for name in TOKEN_COLUMNS],
            )
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT pg_total_relation_size('old_event') + pg_total_relation_size('old_tokens')")
        return spool, int(cursor.fetchone()[0])


def measure(name: str, records: list[TokenRecord], count: int, home: Path) -> dict[str, float | int]:
    """Send ``count`` trajectories of these records from spool to database."""
    folder = home / name
    folder.mkdir()
    wall, cpu = write_spool(folder, cycle(records), count)
    spool = (folder / SPOOL_NAME).stat().st_size
    database, ingest_seconds = ingest(folder / SPOOL_NAME)
    scale = TRAJECTORIES / count / 1e6
    blocks = [encode(record) for record in records[:OLD]]
    started = time.perf_counter()
    for block in blocks:
        decode(block)
    decode_ms = 1000 * (time.perf_counter() - started) / len(blocks)
    return {
        "sampled_share": round(float(np.mean([record.mask.mean() for record in records])), 3),
        "bytes_per_token": round(sum(map(len, blocks)) / sum(map(len, records[:OLD])), 3),
        "spool_mb": round(spool * scale, 1),
        "database_mb": round(database * scale, 1),
        "both_mb": round((spool + database) * scale, 1),
        "encode_and_write_ms": round(1000 * wall / count, 1),
        "encode_and_write_cpu_ms": round(1000 * cpu / count, 1),
        "decode_ms": round(decode_ms, 1),
        "ingest_ms": round(1000 * ingest_seconds / count, 1),
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="32 trajectories instead of 512")
    parser.add_argument("--sampled", type=float, default=1 / 3, help="share of sampled tokens")
    parser.add_argument("--trajectories", type=Path, help="trajectories.jsonl of R2E-Gym")
    options = parser.parse_args()
    count = 32 if options.quick else TRAJECTORIES
    rng = np.random.default_rng(0)
    texts = corpus()
    tokenizer = train(texts)
    stream = conversations(texts, tokenizer, options.sampled)
    if options.trajectories is not None:
        stream = stored_conversations(options.trajectories, tokenizer)
    records = [record_of(turns, rng) for turns in islice(stream, min(count, DISTINCT))]
    results: dict[str, Any] = {"trajectories": count, "tokens": TOKENS, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        home = Path(name)
        (home / "static").mkdir()
        postgres = EmbeddedPostgres(home / "postgres", port=free_port(), password="bench")
        redis = EmbeddedRedis(home / "redis", port=free_port(), password="bench")
        os.environ |= {"TRAINYARD_HOME": name, "DATABASE_URL": postgres.url, "REDIS_URL": redis.url}
        os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.settings"
        postgres.start()
        redis.start()
        try:
            import django
            from django.core.management import call_command

            django.setup()
            call_command("migrate", verbosity=0)
            spool, database = (round(n * TRAJECTORIES / OLD / 1e6, 1) for n in old_bytes(records[:OLD]))
            both = round(spool + database, 1)
            results["earlier"] = {"spool_mb": spool, "database_mb": database, "both_mb": both}
            results["text"] = measure("text", records, count, home)
            noisy = [noise(0.4, rng) for _ in range(OLD)]
            results["noise"] = measure("noise", noisy, min(count, 64), home)
        finally:
            redis.stop()
            postgres.stop()
    results["load_average"] = round(os.getloadavg()[0], 1)
    print(json.dumps(results, indent=2))
    store("tokens", results, quick=options.quick or options.trajectories is not None)


if __name__ == "__main__":
    main()

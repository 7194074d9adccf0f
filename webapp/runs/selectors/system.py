"""Reads of a run's use of its machine over time, in buckets, with its sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.db import connection

MOST_POINTS = 600
"""Largest number of buckets."""
MEANS = ("cpu_engine", "cpu_children", "cpu_machine")
"""Rates (``engine.events.system.SystemSampled``), averaged over a bucket."""
MAXIMA = ("memory_engine", "memory_children", "memory_machine", "processes", "folder")
"""Amounts of which a bucket has the largest value."""
_GPU_REPORTS = 8
"""Mean number of reports in a bucket from which GPUs are read."""
_BUCKETS = """
WITH bounds AS (
    SELECT min(time) AS since, extract(epoch FROM max(time) - min(time))::float8 AS seconds
    FROM webapp_event WHERE run_id = %(run)s AND type = 'system_sampled'
), sampled AS (
    SELECT seq, time, payload,
        least(floor(extract(epoch FROM time - since)::float8 * %(points)s / nullif(seconds, 0)),
            %(points)s - 1) AS bucket
    FROM webapp_event, bounds WHERE run_id = %(run)s AND type = 'system_sampled'
)
"""
_SAMPLES = """
, bucketed AS (
    SELECT max(seq) AS seq, count(*) AS reports, extract(epoch FROM max(time))::float8 AS time, {values},
        min((payload->>'disk_free')::float8) AS disk_free
    FROM sampled GROUP BY bucket
)
SELECT b.*, (p.payload->>'live')::float8, (p.payload->>'waiting')::float8
FROM bucketed b LEFT JOIN LATERAL (
    SELECT payload FROM webapp_event
    WHERE run_id = %(run)s AND type = 'pool_status' AND seq <= b.seq ORDER BY seq DESC LIMIT 1
) p ON true ORDER BY b.time
"""
_GPUS = """
SELECT (gpu->>'index')::int, extract(epoch FROM max(time))::float8, avg((gpu->>'use')::float8),
    max((gpu->>'memory')::float8), max((gpu->>'memory_total')::float8)
FROM (SELECT *, row_number() OVER (ORDER BY seq DESC) AS position FROM sampled) numbered,
    jsonb_array_elements(payload->'gpus') gpu
WHERE (position - 1) %% %(stride)s = 0 GROUP BY 1, bucket ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class GpuPoint:
    """Use of one GPU in one bucket; memory in bytes."""

    index: int
    time: float
    use: float
    memory: float
    memory_total: float


@dataclass(slots=True)
class SystemHistory:
    """Use of the machine by time; every column is as long as ``times``."""

    times: list[float] = field(default_factory=list)
    """End of each bucket, Unix seconds."""
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    """``MEANS``, ``MAXIMA``, ``disk_free`` (the least), and the run's sandboxes ``live`` and ``waiting`` when
    the bucket ends."""
    gpus: list[GpuPoint] = field(default_factory=list)
    cores: int = 0
    memory_total: int = 0
    """Memory of the machine, bytes."""


def history(run_id: int, *, points: int = MOST_POINTS) -> SystemHistory:
    """Return a run's use of its machine over all attempts, in at most ``points`` buckets; three queries."""
    parameters = {"run": run_id, "points": max(1, min(points, MOST_POINTS))}
    names = (*MEANS, *MAXIMA, "disk_free", "live", "waiting")
    values = [f"avg((payload->>'{name}')::float8) AS {name}" for name in MEANS]
    values += [f"max((payload->>'{name}')::float8) AS {name}" for name in MAXIMA]
    found = SystemHistory(columns={name: [] for name in names})
    with connection.cursor() as cursor:
        cursor.execute(_BUCKETS + _SAMPLES.format(values=", ".join(values)), parameters)
        reports = 0
        for _, count, time, *numbers in cursor:
            reports += count
            found.times.append(time)
            for name, number in zip(names, numbers, strict=True):
                found.columns[name].append(number)
        if not found.times:
            return found
        stride = -(-reports // (_GPU_REPORTS * len(found.times)))
        cursor.execute(_BUCKETS + _GPUS, parameters | {"stride": stride})
        found.gpus = [GpuPoint(*row) for row in cursor]
        cursor.execute(
            "SELECT (payload->>'cores')::int, (payload->>'memory_total')::bigint FROM webapp_event"
            " WHERE run_id = %(run)s AND type = 'system_sampled' ORDER BY seq DESC LIMIT 1",
            parameters,
        )
        found.cores, found.memory_total = cursor.fetchone()
    return found

"""Event spool: whole events, continuation over attempts, and one process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.errors import FencedError, PreflightError, TrainyardError
from engine.events.delivery.spool import SpoolSink, read_lines
from engine.events.types import EVENT_ADAPTER, Alert, RunPaused, RunProgress


def progress(sink: SpoolSink, message: str = "x") -> int:
    return sink.emit(RunProgress, message=message, done=1, total=2)


def sequence(run_dir: Path) -> list[tuple[int, int]]:
    lines = read_lines(run_dir / "events.jsonl")
    return [(event.epoch, event.seq) for event in (EVENT_ADAPTER.validate_json(line.data) for line in lines)]


def test_events_are_whole_lines_with_increasing_seq(tmp_path: Path) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    assert [progress(sink, "line\nbreak"), progress(sink), sink.emit(RunPaused)] == [1, 2, 3]
    sink.close()
    assert sequence(tmp_path) == [(1, 1), (1, 2), (1, 3)]
    first = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert first["message"] == "line\nbreak"
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b"{", b'{"seq":3,"epoch":1}', b"\0" * 5000, b"x" * 200_000])
def test_a_torn_tail_is_cut_and_seq_continues(tmp_path: Path, torn: bytes) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    progress(sink)
    progress(sink, "y" * 100_000)
    sink.close()
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(torn)
    assert len(list(read_lines(tmp_path / "events.jsonl"))) == 2
    sink = SpoolSink(tmp_path, epoch=2)
    assert sink.last_seq == 2
    assert progress(sink) == 3
    sink.close()
    assert sequence(tmp_path) == [(1, 1), (1, 2), (2, 3)]


def test_spool_with_only_a_torn_line_starts_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"seq":1')
    sink = SpoolSink(tmp_path, epoch=1)
    assert progress(sink) == 1
    sink.close()
    assert sequence(tmp_path) == [(1, 1)]


def test_foreign_last_line_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"hello\n")
    with pytest.raises(TrainyardError, match="not an event"):
        SpoolSink(tmp_path, epoch=1)
    (tmp_path / "events.jsonl").write_bytes(b"")
    SpoolSink(tmp_path, epoch=1, lock_timeout_s=0).close()


def test_a_refused_spool_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"hello\n")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TrainyardError, match="not an event"):
        SpoolSink(tmp_path, epoch=1)
    assert os.listdir("/proc/self/fd") == before


def test_older_attempt_cannot_write_after_a_newer_one(tmp_path: Path) -> None:
    sink = SpoolSink(tmp_path, epoch=3)
    progress(sink)
    sink.close()
    with pytest.raises(FencedError, match="attempt 3"):
        SpoolSink(tmp_path, epoch=2)


def test_fencing_stops_every_writer(tmp_path: Path) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    progress(sink)
    sink.fence("attempt 2 exists")
    with pytest.raises(FencedError, match="attempt 2"):
        progress(sink)
    sink.close()
    assert sequence(tmp_path) == [(1, 1)]


def test_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from engine.events.delivery.spool import SpoolSink\n"
        + textwrap.dedent(
            f"""
        sink = SpoolSink(Path({str(tmp_path)!r}), epoch=1)
        print("locked", flush=True); sys.stdin.read()
        """
        )
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(PreflightError, match=f"pid {holder.pid}"):
            SpoolSink(tmp_path, epoch=2, lock_timeout_s=0)
    finally:
        holder.kill()
        holder.communicate()
    SpoolSink(tmp_path, epoch=2, lock_timeout_s=5).close()


def test_threads_never_interleave_events(tmp_path: Path) -> None:
    sink = SpoolSink(tmp_path, epoch=1)

    def write(name: str) -> None:
        for number in range(200):
            sink.emit(Alert, severity="info", code=f"{name}-{number}", message="z" * 3000)

    threads = [threading.Thread(target=write, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert sequence(tmp_path) == [(1, seq) for seq in range(1, 1601)]


def test_a_full_disk_is_a_clear_error_and_leaves_whole_events(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import resource
        from pathlib import Path
        from engine.events.delivery.spool import SpoolSink
        from engine.events.types import RunProgress
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        sink = SpoolSink(Path({str(tmp_path)!r}), epoch=1)
        try:
            while True:
                sink.emit(RunProgress, message="x" * 7000, done=0, total=1)
        except OSError as error:
            print(sink.last_seq, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        sink.emit(RunProgress, message="space again", done=0, total=1)
        sink.close()
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    last = int(done.stdout.split()[0])
    assert last > 1
    assert "free some disk space" in done.stdout
    assert sequence(tmp_path) == [(1, seq) for seq in range(1, last + 2)]


def test_only_synced_bytes_are_offered_for_shipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    assert sink.wait_durable(0, 0) == 0
    sink.emit(RunPaused)
    synced = os.path.getsize(sink.path)
    assert sink.wait_durable(0, 0) == synced
    entered, gate = threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow(fd: int) -> None:
        entered.set()
        assert gate.wait(240)
        sync(fd)

    monkeypatch.setattr("engine.events.delivery.spool.os.fdatasync", slow)
    progress(sink)
    assert entered.wait(240)
    written = os.path.getsize(sink.path)
    assert written > synced
    assert sink.wait_durable(synced, 0) == synced
    gate.set()
    assert sink.wait_durable(synced, 240) == written
    sink.close()


def test_reading_continues_from_the_end_of_any_line(tmp_path: Path) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    for _ in range(5):
        progress(sink)
    sink.close()
    lines = list(read_lines(tmp_path / "events.jsonl"))
    again = list(read_lines(tmp_path / "events.jsonl", lines[1].end, lines[3].end))
    assert again == lines[2:4]
    assert list(read_lines(tmp_path / "missing.jsonl")) == []


def test_slow_event_does_not_delay_other_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, gate = threading.Event(), threading.Event()

    def slow(line: bytes, _redactor: object) -> bytes:
        if b"large" in line:
            entered.set()
            assert gate.wait(240)
        return line

    monkeypatch.setattr("engine.events.delivery.spool.redact_line", slow)
    sink = SpoolSink(tmp_path, epoch=1)
    large = threading.Thread(target=lambda: sink.emit(RunProgress, message="large", done=0, total=1))
    large.start()
    assert entered.wait(240)
    assert sink.emit(RunProgress, message="small", done=0, total=1) == 1
    gate.set()
    large.join()
    sink.close()
    lines = [json.loads(line.data) for line in read_lines(sink.path)]
    assert [(line["seq"], line["message"]) for line in lines] == [(1, "small"), (2, "large")]
    assert lines[0]["time"] <= lines[1]["time"]


def test_invalid_event_is_not_written_and_uses_no_seq(tmp_path: Path) -> None:
    sink = SpoolSink(tmp_path, epoch=1)
    with pytest.raises(ValidationError):
        sink.emit(RunProgress, message="x", done="many", total=2)
    assert progress(sink) == 1
    sink.close()

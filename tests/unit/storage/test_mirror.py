"""Mirrors of run folders in a local folder in place of an object store."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.config.launcher import StorageConfig
from engine.events.delivery.shipper import Shipper
from engine.events.delivery.spool import SpoolSink
from engine.events.types import Alert
from engine.storage import mirror as mirror_module
from engine.storage.__main__ import main
from engine.storage.attempt import start_attempt
from engine.storage.folder import restore
from engine.storage.manifest import Manifest, claim, newest_claim, newest_manifest
from engine.storage.mirror import Mirror
from engine.storage.store import Store, StoreError
from tests.fakes.ingest_server import ingest_server


class FailingStore(Store):
    """Store that refuses writes while ``fails`` is set."""

    fails = False

    def write(self, name: str, content: bytes) -> None:
        if self.fails:
            raise StoreError("the store is away")
        super().write(name, content)


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(f"file://{tmp_path}/store", "7")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@contextmanager
def mirrored(
    run_dir: Path, store: Store, *, epoch: int = 1, base: Manifest | None = None
) -> Iterator[tuple[SpoolSink, Mirror, list[str]]]:
    fenced: list[str] = []
    sink = SpoolSink(run_dir, epoch=epoch)
    mirror = Mirror(store, sink, base, interval_s=0.01, on_fenced=fenced.append)
    try:
        yield sink, mirror, fenced
    finally:
        mirror.close()
        sink.close()


def emit(sink: SpoolSink, count: int = 1) -> None:
    for _ in range(count):
        sink.emit(Alert, severity="info", code="test", message="m" * 50)
    sink.sync()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


def save_checkpoint(run_dir: Path, name: str) -> Path:
    """Write a complete checkpoint and return its folder."""
    folder = run_dir / "checkpoints" / name
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / ".metadata").write_text(name)
    (folder / "manifest.json").write_text("{}")
    return folder


def stored_manifest(store: Store) -> Manifest:
    manifest = newest_manifest(store)
    assert manifest is not None
    return manifest


def test_a_lost_run_folder_is_restored_byte_by_byte(
    store: FailingStore, run_dir: Path, tmp_path: Path
) -> None:
    with mirrored(run_dir, store) as (sink, mirror, _):
        (run_dir / "selection.json").write_text("[1]")
        (run_dir / "checkpoints" / ".saving-00002").mkdir(parents=True)
        for number in range(60):
            emit(sink)
            if number == 20:
                save_checkpoint(run_dir, "00001")
            until(lambda: mirror.wait_durable(0, 0.1) == sink.path.stat().st_size)
    assert main(["spool", store.url, str(tmp_path / "spool")]) == 0
    assert (tmp_path / "spool").read_bytes() == (run_dir / "events.jsonl").read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    manifest = stored_manifest(store)
    assert restore(store, manifest, other)
    assert (other / "events.jsonl").read_bytes() == (run_dir / "events.jsonl").read_bytes()
    files = sorted(path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file())
    assert files == [
        "checkpoints/00001/manifest.json",
        "checkpoints/00001/shards/.metadata",
        "engine.lock",
        "events.jsonl",
        "selection.json",
    ]
    assert len(manifest.spool) < 10, "segments are joined"
    assert set(store.names("spool") + store.names("files")) == manifest.objects, "nothing else is left"
    assert not restore(store, manifest, other), "it is as new"


def test_checkpoint_is_mirrored_with_all_prior_events_until_its_removal(
    store: FailingStore, run_dir: Path
) -> None:
    with mirrored(run_dir, store) as (sink, _, _):
        emit(sink, 5)
        folder = save_checkpoint(run_dir, "00001")
        until(lambda: (run_dir / "checkpoints").exists() and bool(store.names("attempts")))
        until(lambda: "checkpoints/00001/manifest.json" in stored_manifest(store).files)
        assert stored_manifest(store).last_seq == 5
        shutil.rmtree(folder)
        until(lambda: not stored_manifest(store).files)
        until(lambda: store.names("files") == [])


def test_copies_of_files_that_changed_meanwhile_are_removed(
    store: FailingStore, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = store.upload
    changed: list[str] = []

    def uploaded(path: Path, name: str) -> None:
        upload(path, name)
        if path.name == "manifest.json" and not changed:
            changed.append(name)
            path.write_text('{"a": 1}')

    monkeypatch.setattr(store, "upload", uploaded)
    with mirrored(run_dir, store) as (sink, _, _):
        emit(sink, 5)
        save_checkpoint(run_dir, "00001")
        until(lambda: bool(changed))
    assert set(store.names("spool") + store.names("files")) == stored_manifest(store).objects


def test_removal_of_objects_that_are_gone_removes_the_others(store: FailingStore) -> None:
    for name in ("files/a", "files/c"):
        store.write(name, b"x")
    store.remove(["files/a", "files/b", "files/c"])
    assert store.names("files") == []


def test_the_server_never_has_an_event_that_the_store_lacks(store: FailingStore, run_dir: Path) -> None:
    with ingest_server() as server, mirrored(run_dir, store) as (sink, mirror, _):
        url = f"{server.url}/api/v1/runs/7/events"
        shipper = Shipper(sink, url=url, token="secret.1", on_fenced=sink.fence, durable=mirror.wait_durable)
        emit(sink)
        until(lambda: server.acked == 1)
        store.fails = True
        emit(sink, 3)
        assert mirror.wait_durable(0, 0.5) < sink.path.stat().st_size
        assert server.acked == 1
        store.fails = False
        until(lambda: server.acked == 4)
        assert stored_manifest(store).last_seq == 4
        shipper.close()


def test_unavailable_store_is_reported_and_does_not_block_the_run(
    store: FailingStore, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "PATIENCE_S", 0.2)
    with mirrored(run_dir, store) as (sink, mirror, _):
        store.fails = True
        emit(sink)
        until(lambda: mirror.wait_durable(0, 0.1) > 0)
        until(lambda: b"the store is away. The run continues" in sink.path.read_bytes())
        store.fails = False
        until(lambda: b"works again and is up to date" in sink.path.read_bytes())
    assert stored_manifest(store).size == (run_dir / "events.jsonl").stat().st_size


def test_an_older_local_folder_is_replaced_and_a_newer_one_kept(
    store: FailingStore, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mirrored(run_dir, store) as (sink, _, _):
        emit(sink, 2)
    stale = tmp_path / "stale"
    shutil.copytree(run_dir, stale)
    settings = StorageConfig(url=store.url.removesuffix("/7"), interval_s=0.01)
    attempt = start_attempt(settings, run_dir, run_id="7", epoch=2, acked_seq=2)
    with mirrored(run_dir, store, epoch=2, base=attempt.manifest) as (sink, _, _):
        emit(sink, 2)
        save_checkpoint(run_dir, "00002")
    save_checkpoint(stale, "00009")
    attempt = start_attempt(settings, stale, run_id="7", epoch=3, acked_seq=4)
    assert (stale / "events.jsonl").read_bytes() == (run_dir / "events.jsonl").read_bytes()
    assert [path.name for path in (stale / "checkpoints").iterdir() if list(path.iterdir())] == ["00002"]
    monkeypatch.setattr(mirror_module, "CLOSE_S", 0.0)  # its spool is closed before its last copy
    with mirrored(stale, store, epoch=3) as (sink, _, _):
        emit(sink)
        store.fails = True
        emit(sink)
        sink.close()
        newer = (stale / "events.jsonl").read_bytes()
        store.fails = False
        start_attempt(settings, stale, run_id="7", epoch=4, acked_seq=4)
        assert (stale / "events.jsonl").read_bytes() == newer


def test_a_changed_segment_is_refused_at_restoration(
    store: FailingStore, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mirrored(run_dir, store) as (sink, _, _):
        emit(sink, 3)
    segment = stored_manifest(store).spool[0]
    content = store.read(segment.object)
    store.write(segment.object, content.replace(b"m" * 50, b"n" * 50))  # of the same length
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(StoreError, match=rf"{segment.object} .* was changed after it was written"):
        restore(store, stored_manifest(store), other)
    assert main(["spool", store.url, str(tmp_path / "spool")]) == 1
    assert "SHA-256" in capsys.readouterr().err
    assert not (other / "events.jsonl").exists()
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(("name", "newest"), [("claims", newest_claim), ("attempts", newest_manifest)])
def test_an_object_that_is_not_named_after_an_attempt_is_reported(
    store: FailingStore, name: str, newest: Callable[[Store], object]
) -> None:
    store.write(f"{name}/notes.txt", b"")
    with pytest.raises(StoreError, match=f"contains {name}/notes.txt, .* remove it"):
        newest(store)


def test_replaced_attempt_ends_without_deleting_objects(store: FailingStore, run_dir: Path) -> None:
    with mirrored(run_dir, store) as (sink, _, fenced):
        emit(sink)
        until(lambda: bool(store.names("attempts")))
        claim(store, 2)
        manifest = stored_manifest(store)
        emit(sink, 5)
        until(lambda: bool(fenced))
        assert "attempt 2 of this run exists" in fenced[0]
    assert manifest.objects <= set(store.names("spool"))


def test_events_continue_after_events_known_only_to_the_server(run_dir: Path) -> None:
    """The store was unavailable, events were shipped without it, then the node was lost."""
    with ingest_server() as server:
        url = f"{server.url}/api/v1/runs/7/events"

        def attempt(epoch: int, after_seq: int, count: int) -> None:
            sink = SpoolSink(run_dir, epoch=epoch, after_seq=after_seq)
            shipper = Shipper(sink, url=url, token=f"secret.{epoch}", on_fenced=sink.fence)
            emit(sink, count)
            assert shipper.drain(240), shipper.failure
            shipper.close()
            sink.close()

        attempt(1, 0, 3)
        early = (run_dir / "events.jsonl").read_bytes()
        attempt(1, 0, 4)
        (run_dir / "events.jsonl").write_bytes(early)
        (run_dir / "events.acked").unlink()
        server.epoch = 2
        attempt(2, server.acked, 2)
        assert [event["seq"] for event in server.events] == list(range(1, 10))
        assert [event["epoch"] for event in server.events] == [1] * 7 + [2] * 2


def test_storage_check_reports_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"file://{tmp_path}/store"]) == 0
    assert list((tmp_path / "store").iterdir()) == []
    (tmp_path / "file").touch()
    assert main(["check", f"file://{tmp_path}/file/store"]) == 1
    assert main(["check", "nosuch://bucket"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("cannot write probe-")
    assert errors[1].startswith("cannot open the store nosuch://bucket: ValueError")

"""What is on disk is to the byte what was written, or it is refused by name."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.checkpoint import cells
from transferqueue.checkpoint.cells import CellsReader, CellsWriter, ChunkSums
from transferqueue.checkpoint.files import read_saved_records, write_records
from transferqueue.checkpoint.folder import (
    CheckpointWriter,
    begin_life,
    check_token,
    read_manifest,
)
from transferqueue.checkpoint.manifest import Manifest, SavedFile, SavedShard
from transferqueue.checkpoint.placement import Stretch
from transferqueue.errors import (
    CheckpointBusy,
    CheckpointDamaged,
    CheckpointFormat,
    CheckpointMissing,
    CheckpointUnreachable,
)
from transferqueue.journal.records import Record

if TYPE_CHECKING:
    from pathlib import Path


def manifest_of(writer: CheckpointWriter) -> Manifest:
    """A checkpoint whose files are there, of one shard."""
    plane = write_records(os.path.join(writer.folder, "coordinator"), [Record(kind="head")])
    rows = write_records(os.path.join(writer.folder, "shard-0.rows"), [])
    with open(os.path.join(writer.folder, "shard-0.cells"), "wb") as file:
        file.write(b"cells")
    return Manifest(
        folder=os.path.basename(writer.folder),
        service_id="service",
        life=3,
        created_unix_s=12.5,
        coordinator=plane,
        shards=(
            SavedShard(
                slot=0,
                rows=rows,
                cells=SavedFile(name="shard-0.cells", nbytes=5, crc32=None),
                num_rows=1,
                extent_bytes=64,
                stretches=(Stretch(first_uid=1, nbytes=5),),
            ),
        ),
    )


def published(path: Path) -> Manifest:
    writer = CheckpointWriter(str(path))
    try:
        manifest = manifest_of(writer)
        writer.publish(manifest)
    finally:
        writer.close()
    return manifest


def test_a_manifest_comes_back_and_a_flipped_bit_in_it_does_not() -> None:
    shard = SavedShard(
        slot=4,
        rows=SavedFile(name="r", nbytes=1, crc32=7),
        cells=SavedFile(name="c", nbytes=9, crc32=None),
        num_rows=2,
        extent_bytes=64,
        stretches=(Stretch(first_uid=1 << 62, nbytes=9),),
    )
    manifest = Manifest(
        folder="cut-1",
        service_id="s",
        life=0,
        created_unix_s=1.0,
        coordinator=SavedFile(name="coordinator", nbytes=3, crc32=1),
        shards=(shard,),
    )
    text = manifest.encode()
    assert Manifest.decode(text, "here") == manifest
    for at in range(0, len(text), 7):
        flipped = bytearray(text)
        flipped[at] ^= 1
        if flipped[at] in b" !":  # a blank between values, which means nothing
            continue
        with pytest.raises((CheckpointDamaged, CheckpointFormat), match="here"):
            Manifest.decode(bytes(flipped), "here")


def test_a_manifest_of_another_format_is_refused_as_such() -> None:
    text = b'{"format": 99, "check": 0}'
    with pytest.raises(CheckpointFormat, match="format 99"):
        Manifest.decode(text, "here")


def test_a_finished_checkpoint_replaces_the_last_one_at_once(tmp_path: Path) -> None:
    first = published(tmp_path / "c")
    assert read_manifest(str(tmp_path / "c")) == first
    second = published(tmp_path / "c")
    assert read_manifest(str(tmp_path / "c")) == second
    assert sorted(os.listdir(tmp_path / "c")) == sorted([second.folder, "lock", "manifest"])


def test_an_interrupted_one_leaves_the_last_and_is_cleared_away_by_the_next(
    tmp_path: Path,
) -> None:
    first = published(tmp_path)
    interrupted = CheckpointWriter(str(tmp_path))
    manifest_of(interrupted)
    os.close(interrupted._lock_fd)  # its process was killed: nothing else happens
    assert read_manifest(str(tmp_path)) == first
    assert os.path.isdir(interrupted.folder)
    second = published(tmp_path)
    assert not os.path.exists(interrupted.folder)
    assert read_manifest(str(tmp_path)) == second


def test_one_that_is_closed_without_an_end_leaves_nothing(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path / "c"))
    manifest_of(writer)
    writer.close()
    writer.close()
    assert os.listdir(tmp_path / "c") == ["lock"]
    with pytest.raises(CheckpointMissing):
        read_manifest(str(tmp_path / "c"))


@pytest.mark.parametrize("name", ["write", "fsync", "rename"])
def test_a_full_disk_at_any_step_of_the_end_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = published(tmp_path)
    writer = CheckpointWriter(str(tmp_path))
    manifest = manifest_of(writer)

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, name, full)
    with pytest.raises(OSError, match="no space"):
        writer.publish(manifest)
    monkeypatch.undo()
    writer.close()
    assert read_manifest(str(tmp_path)) == first
    assert published(tmp_path).folder != first.folder


def test_two_at_a_time_in_one_folder_are_refused(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path))
    with pytest.raises(CheckpointBusy, match="another service"):
        CheckpointWriter(str(tmp_path))
    writer.close()
    CheckpointWriter(str(tmp_path)).close()


def test_a_folder_of_the_same_name_on_another_host_is_told_apart(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path))
    check_token(writer.folder, writer.token, "here")
    with pytest.raises(CheckpointUnreachable, match="host elsewhere does not see"):
        check_token(writer.folder, "of another folder", "elsewhere")
    with pytest.raises(CheckpointUnreachable, match=r"host elsewhere .*No such file"):
        check_token(f"{tmp_path}/nowhere", writer.token, "elsewhere")
    writer.close()


@pytest.mark.parametrize("name", ["coordinator", "shard-0.rows", "shard-0.cells"])
@pytest.mark.parametrize("how", ["missing", "cut short", "longer"])
def test_a_file_that_is_missing_or_of_another_length_is_named(
    tmp_path: Path, name: str, how: str
) -> None:
    manifest = published(tmp_path)
    path = tmp_path / manifest.folder / name
    if how == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] if how == "cut short" else content + b"x")
    with pytest.raises(CheckpointDamaged, match=name):
        read_manifest(str(tmp_path))


def test_a_flipped_bit_in_records_is_found(tmp_path: Path) -> None:
    saved = write_records(str(tmp_path / "f"), [Record(kind="a", body={"n": 1})])
    assert [r.kind for r in read_saved_records(str(tmp_path), saved, "here")] == ["a"]
    content = bytearray((tmp_path / "f").read_bytes())
    for at in range(len(content)):
        content[at] ^= 1
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(CheckpointDamaged, match="f:"):
            read_saved_records(str(tmp_path), saved, "here")
        content[at] ^= 1


def test_lives_are_never_the_same_in_one_folder_or_on_one_host(tmp_path: Path) -> None:
    one, other, host, far = (str(tmp_path / name) for name in ("one", "other", "host", "far"))
    for path in (one, other, host, far):
        os.mkdir(path)
    first = begin_life(one, 0, host_folder=host)
    assert begin_life(other, 0, host_folder=host) == first + 1
    assert begin_life(one, 0, host_folder=far) == first + 1  # another host, which reads the folder
    assert begin_life(one, 0, host_folder=host) == first + 2
    assert begin_life(one, first + 100, host_folder=host) == first + 101


def test_a_folder_that_cannot_be_written_is_restored_from_all_the_same(tmp_path: Path) -> None:
    one = begin_life(str(tmp_path / "none"), 0, host_folder=str(tmp_path))
    assert begin_life(str(tmp_path / "none"), 0, host_folder=str(tmp_path)) == one + 1
    assert begin_life(str(tmp_path / "none"), 0, host_folder=str(tmp_path / "none")) > 0


# -- cells ------------------------------------------------------------------------------------


def write_cells(path: Path, blocks: list[bytes]) -> CellsWriter:
    other = SavedFile(name="other", nbytes=0, crc32=None)
    writer = CellsWriter(str(path), wake=lambda: None, last=lambda sums: other)
    for number, block in enumerate(blocks):
        writer.add([block], number)
    writer.finish()
    writer.join()
    return writer


def reader_of(path: Path, writer: CellsWriter) -> CellsReader:
    sums = writer.sums
    return CellsReader(str(path), name=path.name, where="here", sums=sums.all(), nbytes=sums.nbytes)


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "CHUNK_BYTES", 16)


@pytest.mark.usefixtures("_small_chunks")
def test_any_part_of_the_cells_comes_back(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 100, dtype=np.uint8).tobytes()
    path = tmp_path / "cells"
    writer = write_cells(path, [content[:30], content[30:31], b"", content[31:]])
    assert writer.error is None
    assert path.read_bytes() == content
    reader = reader_of(path, writer)
    for start in range(0, 100, 9):
        for stop in range(start, 100, 7):
            got = bytearray()
            reader.read(start, stop - start, got.extend)
            assert got == content[start:stop]
    with pytest.raises(CheckpointDamaged, match="has no byte"):
        reader.read(90, 30, lambda view: None)
    reader.close()


@pytest.mark.usefixtures("_small_chunks")
def test_a_flipped_bit_in_the_cells_is_found_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cells"
    writer = write_cells(path, [bytes(100)])
    altered = bytearray(100)
    altered[50] = 1
    path.write_bytes(altered)
    reader = reader_of(path, writer)
    reader.read(0, 48, lambda view: None)
    with pytest.raises(CheckpointDamaged, match="cells: the bytes from 48 on"):
        reader.read(60, 4, lambda view: None)
    reader.close()


def test_sums_do_not_depend_on_how_the_bytes_came(tmp_path: Path) -> None:
    one, other = ChunkSums(), ChunkSums()
    content = memoryview(bytes(range(256)) * 50_000)
    one.add(content)
    for start in range(0, content.nbytes, 999_983):
        other.add(content[start : start + 999_983])
    assert one.nbytes == other.nbytes == content.nbytes
    assert one.all().tolist() == other.all().tolist()
    assert len(one.all()) == -(-content.nbytes // cells.CHUNK_BYTES)


@pytest.mark.parametrize("num_good", [0, 1, 2])
def test_a_full_disk_is_the_writers_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_good: int
) -> None:
    left = [num_good]

    def write(fd: int, view: memoryview) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(fd, view)

    real = os.write
    monkeypatch.setattr("transferqueue.checkpoint.files.os.write", write)
    writer = write_cells(tmp_path / "cells", [b"a", b"b", b"c"])
    assert isinstance(writer.error, OSError)
    assert writer.other is None


def test_a_cancelled_writer_lets_go_of_what_it_was_given(tmp_path: Path) -> None:
    writer = CellsWriter(
        str(tmp_path / "cells"),
        wake=lambda: None,
        last=lambda sums: SavedFile(name="", nbytes=0, crc32=None),
    )
    writer.add([b"x" * 100], 0)
    writer.cancel()
    writer.cancel()
    writer.join()
    assert writer.has_ended
    assert writer.other is None


def test_a_copy_of_a_checkpoint_is_one_too(tmp_path: Path) -> None:
    manifest = published(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert read_manifest(str(tmp_path / "b")) == manifest

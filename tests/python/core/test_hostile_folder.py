"""A memory folder may come from anybody. What lies in it is read within bounds; nothing outside of it is touched."""

import contextlib
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import everlong._core as core
from everlong.errors import CapacityError, CorruptMemoryError, EverlongError, MemoryIOError
from support.small_memory import LAYERS, PAGE, append, manifest, opened, saved


def use(folder: Path, read_only: bool) -> None:
    """Do what a user does; a refusal of a type of everlong's is an answer, too."""
    with contextlib.suppress(EverlongError), opened(folder, read_only) as memory:
        memory.blocks.infos()
        memory.upkeep.verify(False)
        memory.search.find(token_ids=np.array([1, 2], np.int32), kinds=["lexical"])
        with contextlib.suppress(EverlongError):
            memory.upkeep.export_file(str(folder) + f".{read_only}.export")
        with contextlib.suppress(EverlongError):
            memory.upkeep.fork(str(folder) + f".{read_only}.fork")
        if not read_only:
            append(memory, 10 * PAGE)
            memory.put_file("note", b"new")
            memory.upkeep.flush()
            memory.index.save()
            memory.blocks.forget([1])
            memory.upkeep.compact()


NAMES = [
    "LOCK",
    "manifest.json",
    "catalog.sqlite",
    "catalog.sqlite-wal",
    "catalog.sqlite-shm",
    "catalog.sqlite-journal",
    "segments/000001.kvseg",
    "segments/000002.kvseg",
    "segments/000007.kvseg",
    "files/note",
    "files/note.tmp",
    "index/lexical",
    "manifest.json.tmp",
    "segments",
    "files",
    "index",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hard", [False, True], ids=["symbolic", "hard"])
def test_a_link_leads_nowhere(tmp_path: Path, name: str, hard: bool) -> None:
    """Whatever a folder has in the place of a file of ours, the file behind it stays and is shown to nobody."""
    folder = saved(tmp_path / "memory")
    secret = b"-----BEGIN PRIVATE KEY----- " * 50
    victim = tmp_path / "victim"
    place = folder / name
    if name in ("segments", "files", "index"):
        if hard:
            pytest.skip("no folder has a hard link")
        victim.mkdir()
        (victim / "000001.kvseg").write_bytes(secret)
        (victim / "note").write_bytes(secret)
        (victim / "lexical").write_bytes(secret)
        for inside in place.iterdir():
            inside.unlink()
        place.rmdir()
    else:
        victim.write_bytes(secret)
        place.unlink(missing_ok=True)
    os.link(victim, place) if hard else place.symlink_to(victim)
    before = {path: path.read_bytes() for path in [victim, *tmp_path.glob("victim/*")] if path.is_file()}
    use(folder, True)
    if not hard:  # a reader shows a file of several names: whoever could link it could read it
        for shown in [*tmp_path.glob("*.export"), *tmp_path.glob("*.fork/**/*")]:
            assert not shown.is_file() or b"PRIVATE KEY" not in shown.read_bytes()
    use(folder, False)
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in tmp_path.glob("victim/*")) == sorted(p.name for p in before if p != victim)


@pytest.mark.parametrize("name", ["LOCK", "files/note", "segments/000001.kvseg", "index/lexical", "manifest.json"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "memory")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    asking = threading.Thread(target=use, args=(folder, False), daemon=True)
    asking.start()
    asking.join(30)
    assert not asking.is_alive()


def hot_journal(catalog: Path, victim: Path) -> None:
    """Lay a rollback journal beside the catalog that SQLite plays back, and that names a file to delete."""
    head = catalog.read_bytes()[:100]
    page = struct.unpack(">H", head[16:18])[0] or 65536
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    header = magic + struct.pack(">IIIII", 0, 0, catalog.stat().st_size // page, 512, page)
    tail = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    Path(f"{catalog}-journal").write_bytes(header.ljust(512, b"\0") + tail)


def test_a_journal_of_somebody_elses_is_not_played_back(tmp_path: Path) -> None:
    folder = saved(tmp_path / "memory")
    victim = tmp_path / "precious"
    for read_only in (True, False):
        victim.write_text("precious")
        hot_journal(folder / "catalog.sqlite", victim)
        with opened(folder, read_only) as memory:
            assert [block.id for block in memory.blocks.infos()] == [1, 2]
        assert victim.read_text() == "precious"


SCHEMAS = {
    "a generated column": "create table more (x, y generated always as (printf('%.*c', 9000000, 'x')) virtual)",
    "a check": "create table more (x integer check (x < abs(-5)))",
    "a view": "create view more as select * from blocks",
    "a trigger": "create trigger more after insert on blocks begin delete from tags; end",
    "an index on an expression": "create index more on blocks (abs(stream))",
    "a column": "alter table tags add column more text default 'x'",
}


@pytest.mark.parametrize("sql", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_a_foreign_schema_is_refused(tmp_path: Path, sql: str) -> None:
    folder = saved(tmp_path / "memory")
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        catalog.execute(sql)
        catalog.commit()
    for read_only in (True, False):
        with pytest.raises(CorruptMemoryError, match="schema"):
            core.Memory.open(str(folder), read_only, 0)


CRC = [0] * 256
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    CRC[_byte] = _value


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def row_crc(*values: float | str | bytes) -> int:
    """Return the checksum that a row carries, so that only its numbers are wrong."""
    out = b""
    for value in values:
        if isinstance(value, float):
            out += struct.pack("<d", value)
        elif isinstance(value, int):
            out += struct.pack("<q", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += struct.pack("<q", len(data)) + data
    return crc32c(out)


BLOCK = (
    "id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, token_crc, source, role"
)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("span_end", 1 << 50),
        ("span_end", -1),
        ("span_end", -(1 << 63)),
        ("span_begin", (1 << 63) - 1),
        ("span_begin", -(1 << 62)),
        ("sink_tokens", 1 << 40),
        ("sink_tokens", -1),
        ("pages", 1 << 33),
        ("payload_bytes", -5),
        ("stream", -1),
        ("created_at", float("inf")),
    ],
)
def test_a_block_that_cannot_be_is_corrupt(tmp_path: Path, column: str, value: float) -> None:
    folder = saved(tmp_path / "memory", layers=0)
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        row = list(catalog.execute(f"select {BLOCK} from blocks where id = 1").fetchone())
        row[BLOCK.split(", ").index(column)] = value
        numbers = [*row[:6], float(row[6]), *row[7:10], row[10], 0, *([row[11]] if row[11] else [])]
        catalog.execute(f"update blocks set {column} = ?, crc = ? where id = 1", (value, row_crc(*numbers)))
        catalog.commit()
    for read_only in (True, False):
        with pytest.raises(CorruptMemoryError):
            core.Memory.open(str(folder), read_only, 0)


@pytest.mark.parametrize("level", [-1, -(1 << 20), 1 << 20, (1 << 32) + 1])
def test_a_topic_of_no_level_leaves_forgetting_as_it_was(tmp_path: Path, level: int) -> None:
    folder = saved(tmp_path / "memory", layers=0)
    with opened(folder) as memory:
        memory.set_attribute("graph", "encoder e\n8 2")
    vector, linear = struct.pack("<8f", *[1.0] * 8), struct.pack("<8d", *[1.0] * 8)
    truncated = (level + (1 << 31)) % (1 << 32) - (1 << 31)
    for crc_level in {level, truncated}:
        crc = row_crc(1 << 36, 2, crc_level, 1, 8.0, 1.0, 1.0, vector, linear)
        with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
            row = (1 << 36, 2, level, 1, 8.0, 1.0, 1.0, crc, vector, linear)
            catalog.execute("insert or replace into nodes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            catalog.commit()
        with opened(folder) as memory:
            memory.blocks.forget([memory.blocks.infos()[0].id])
            memory.blocks.infos()


def test_a_ring_of_edges_is_left(tmp_path: Path) -> None:
    folder = saved(tmp_path / "memory", blocks=3, layers=0)
    with opened(folder) as memory:
        memory.set_attribute("graph", "time")
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        for block in (1, 2, 3):
            crc = row_crc(block, 1, 0, 0, 0.0, 1.0, 1.0, b"", b"")
            row = (block, 1, 0, 0, 0.0, 1.0, 1.0, crc, b"", b"")
            catalog.execute("insert or replace into nodes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        for start, end in ((1, 2), (2, 3), (3, 2), (1, 1)):
            row = (start, end, 1, 1.0, 1.0, row_crc(start, end, 1, 1.0, 1.0))
            catalog.execute("insert or replace into edges values (?, ?, ?, ?, ?, ?)", row)
        catalog.commit()
    done = threading.Event()

    def forget() -> None:
        with opened(folder) as memory:
            memory.blocks.forget([2, 3])
        done.set()

    threading.Thread(target=forget, daemon=True).start()
    assert done.wait(30)


def page_row(folder: Path, change: Callable[[list[int]], None]) -> None:
    """Change segment, offset and bytes of a part of the first page, in its row alone."""
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        columns = "block, kind, page, segment, record_offset, record_bytes, part_bytes, part_crcs"
        row = list(catalog.execute(f"select {columns} from pages where block = 1").fetchone())
        change(row)
        crc = row_crc(*row)
        numbers = "segment = ?, record_offset = ?, record_bytes = ?, part_bytes = ?, crc = ?"
        catalog.execute(f"update pages set {numbers} where block = 1", (*row[3:7], crc))
        catalog.commit()


@pytest.mark.parametrize("size", [1 << 33, 1 << 40, (1 << 62) + 4096, -4096])
def test_a_size_is_believed_no_further_than_the_file(tmp_path: Path, size: int) -> None:
    """The process has room for a small part of what the row says."""
    folder = saved(tmp_path / "memory")

    def change(row: list[int]) -> None:
        row[6] = size
        row[5] = 4096 + (size + 4095) // 4096 * 4096

    page_row(folder, change)
    with contextlib.suppress(CorruptMemoryError), opened(folder, True) as memory:
        damage = [found.what for found in memory.upkeep.verify(False).damage]
        assert damage
        with pytest.raises(CorruptMemoryError):
            memory.blocks.read_pages(memory.blocks.pages()[:1], np.empty(memory.page_bytes(PAGE), np.uint8))


def test_a_record_of_a_later_kind_stays(tmp_path: Path) -> None:
    """It is neither damage nor repaired away."""
    folder = saved(tmp_path / "memory", layers=0)
    payload = b"something of a later release" * 10
    head = bytearray(4096)
    head[:8] = b"EVLKVREC"
    struct.pack_into("<IIQIIII", head, 8, 1, 9, 1, 0, PAGE, 1, 4096)
    struct.pack_into("<Q", head, 40, len(payload))
    struct.pack_into("<I", head, 52, crc32c(payload))
    struct.pack_into("<I", head, 48, crc32c(bytes(head)))
    segment = folder / "segments" / "000001.kvseg"
    offset = (segment.stat().st_size if segment.exists() else 0) + 4095 & ~4095
    with segment.open("ab") as file:
        file.write(b"\0" * (offset - segment.stat().st_size) + bytes(head) + payload.ljust(4096, b"\0"))
    crcs = struct.pack("<I", crc32c(payload))
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        row = (1, 9, 0, 1, offset, 8192, len(payload), crcs)
        catalog.execute("insert into pages values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, row_crc(*row)))
        catalog.commit()
    with opened(folder) as memory:
        assert memory.upkeep.verify(False).damage == []
        memory.upkeep.verify(True)
        memory.upkeep.compact()
        assert memory.upkeep.verify(False).damage == []
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        assert catalog.execute("select count(*) from pages where kind = 9").fetchone() == (1,)


@pytest.mark.parametrize("kind", ["lexical"])
def test_an_index_of_another_memory_is_rebuilt(tmp_path: Path, kind: str) -> None:
    """Both memories have blocks of the same numbers, places and times; only their words differ."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for number, folder in enumerate(folders):
        with contextlib.closing(core.Memory.create(str(folder), manifest(0), 0)) as memory:
            append(memory, 0, np.arange(PAGE, dtype=np.int32) + 5000 * number, layers=0)
            memory.upkeep.flush()
            memory.index.save()
    (folders[1] / "index" / kind).write_bytes((folders[0] / "index" / kind).read_bytes())
    with opened(folders[1]) as memory:
        found = [
            len(memory.search.find(token_ids=np.array(ids, np.int32), kinds=[kind]).groups)
            for ids in ([5001, 5002], [1, 2])
        ]
        assert found == [1, 0]
        assert len(memory.index.take_messages()) == 1
        memory.blocks.forget([1])


def test_an_index_that_is_cut_is_rebuilt(tmp_path: Path) -> None:
    folder = saved(tmp_path / "memory", layers=0)
    whole = (folder / "index" / "lexical").read_bytes()
    for size in (0, 3, 40, len(whole) // 2, len(whole) - 1):
        (folder / "index" / "lexical").write_bytes(whole[:size])
        with opened(folder, True) as memory:
            assert len(memory.search.find(token_ids=np.array([1, 2], np.int32), kinds=["lexical"]).groups) == 1


@pytest.mark.parametrize("name", ["files/note", "index/lexical", "catalog.sqlite", "segments/000001.kvseg", "LOCK"])
def test_a_file_of_holes_takes_neither_ram_nor_disk(tmp_path: Path, name: str) -> None:
    """An archive of some kilobytes can hold a file whose size is a terabyte."""
    folder = saved(tmp_path / "memory")
    os.truncate(folder / name, 1 << 40)
    for read_only in (True, False):
        use(folder, read_only)
        with contextlib.suppress(EverlongError), opened(folder, read_only) as memory:
            memory.file("note")
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file()) < 1 << 26


def test_an_own_file_of_holes_is_corrupt(tmp_path: Path) -> None:
    folder = saved(tmp_path / "memory")
    os.truncate(folder / "files" / "note", 1 << 40)
    with opened(folder, True) as memory, pytest.raises(CorruptMemoryError, match="holes"):
        memory.file("note")


@pytest.mark.parametrize("read_only", [True, False])
def test_the_log_of_an_empty_catalog_stays(tmp_path: Path, read_only: bool) -> None:
    folder = saved(tmp_path / "memory")
    os.truncate(folder / "catalog.sqlite", 0)
    log = folder / "catalog.sqlite-wal"
    log.write_bytes(b"all that is left" * 100)
    with pytest.raises(CorruptMemoryError, match="empty"):
        core.Memory.open(str(folder), read_only, 0)
    assert log.read_bytes() == b"all that is left" * 100


def test_a_reader_forks_a_memory_that_lost_its_empty_folder(tmp_path: Path) -> None:
    """An archive of files alone leaves out the segments of a memory of text alone."""
    folder = saved(tmp_path / "memory", layers=0)
    for segment in (folder / "segments").iterdir():
        segment.unlink()
    (folder / "segments").rmdir()
    with opened(folder, True) as memory:
        memory.upkeep.fork(str(tmp_path / "fork"))
    with opened(tmp_path / "fork") as fork:
        assert [block.id for block in fork.blocks.infos()] == [1, 2]
        assert fork.upkeep.verify(False).damage == []


def test_an_id_is_never_given_twice(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    folder = saved(tmp_path / "memory", blocks=1)
    memory = core.Memory.open(str(folder), False, 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = (folder / "segments" / "000001.kvseg").stat().st_size + 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        lost = [append(memory, PAGE), append(memory, 2 * PAGE)]
        with pytest.raises(MemoryIOError):
            memory.upkeep.flush()
    except MemoryIOError:
        lost = [2]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    memory.close()
    with opened(folder) as memory:
        assert append(memory, PAGE) > max(lost)


def test_a_folder_that_moved_gets_no_byte(tmp_path: Path) -> None:
    folder = saved(tmp_path / "memory", blocks=1)
    memory = core.Memory.open(str(folder), False, 0)
    folder.rename(tmp_path / "elsewhere")
    saved(folder, blocks=1)
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(MemoryIOError, match="removed"):
        append(memory, PAGE)
    with contextlib.suppress(EverlongError):
        memory.index.save()
    memory.close()
    assert {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()} == before


def test_a_segment_of_the_last_number_ends_appends_and_no_more(tmp_path: Path) -> None:
    folder = saved(tmp_path / "memory")
    (folder / "segments" / "2147483647.kvseg").write_bytes(b"x")
    os.link(folder / "segments" / "2147483647.kvseg", tmp_path / "another name")  # so that it is not appended to
    with opened(folder) as memory:
        with pytest.raises(CapacityError, match="number"):
            append_and_flush(memory)
        assert [block.id for block in memory.blocks.infos()] == [1, 2]


def append_and_flush(memory: core.Memory) -> None:
    append(memory, 2 * PAGE)
    memory.upkeep.flush()


def test_more_pages_than_there_are_may_be_asked_for() -> None:
    memory = core.Memory.create(None, manifest(0), 1 << 28)
    append(memory, 0, layers=0)
    memory.index.set_page_vectors("e", 4)
    memory.index.add_page_vectors(1, np.array([0, 0], np.int32), np.eye(4, dtype=np.float32)[:2])
    asked = {"token_ids": np.array([1], np.int32), "page_query": np.ones(4, np.float32), "kinds": ["embedding"]}
    for k in (1, 2, 1 << 30, 2**31 - 1):
        assert len(memory.search.rankings(k, **asked)[0].scores) == 1
        assert len(memory.search.find(**asked, max_groups=k).groups) == 1


def test_a_gardener_takes_threads() -> None:
    gardener = core.Gardener(16, levels=2, radius=0.5)
    failures: list[BaseException] = []

    def work(base: int) -> None:
        rng = np.random.default_rng(base)
        try:
            for round_ in range(40):
                ids = np.arange(base + round_ * 50, base + round_ * 50 + 50, dtype=np.int64)
                gardener.add(ids, rng.standard_normal((50, 16)).astype(np.float32))
                gardener.centres()
                gardener.centre_of(int(ids[0]))
                gardener.forget(int(ids[1]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1 + 1_000_000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(len(centre.members) for centre in gardener.centres() if centre.level == 0) == 4 * 40 * 49


def test_reads_that_nobody_waits_for_are_given_up(tmp_path: Path) -> None:
    """Dropping them leaves the buffer to its owner, and costs no more than what is under way."""
    folder = saved(tmp_path / "memory", blocks=40)
    with opened(folder, True) as memory:
        pages = memory.blocks.pages()
        out = np.empty(memory.page_bytes(PAGE) * len(pages), np.uint8)
        for _ in range(50):
            reads = memory.blocks.start_read_pages(pages, 0, LAYERS, out)
            del reads
        out[:] = 7
        time.sleep(0.05)
        assert (out == 7).all()  # no thread writes on
        memory.blocks.start_read_pages(pages, 0, LAYERS, out).wait()
        assert (out == 0).all()


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    """A memory in RAM says how much it holds before it takes more."""
    memory = core.Memory.create(None, manifest(), 1 << 16)

    def fill() -> None:
        for block in range(100):
            append(memory, block * PAGE)
            memory.upkeep.flush()

    with pytest.raises(CapacityError):
        fill()

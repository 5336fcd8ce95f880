"""What a service keeps: names, keys, accepted uploads, answers, and what is left of them on disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Key, Keys, add_key, hash_of, load_keys
from everlong.service_data.memory_registry import NO_MEMORY_STATE, MemoryState
from everlong.service_data.names import file_name, memory_name
from everlong.service_data.records import Records
from everlong.service_data.spool import ReadingJob, Spool, TextMetadata
from everlong.service_data.stored_responses import StoredResponses
from support.processes import PROCESSES


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "/etc", "a\0", "a\n", ".service", "a" * 65, "ä", " a", None, 3]
)
def test_what_is_no_name_of_a_memory_is_refused(name: Any) -> None:
    with pytest.raises(ApiError):
        memory_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "a" * 201, "\ud800", "a\u202eb"])
def test_what_is_no_name_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(ApiError):
        file_name(name)


@given(st.text(st.characters(categories=("Cf", "Zs")), max_size=8), st.sampled_from(["", ".", ".."]))
def test_a_name_that_nobody_sees_is_none(unseen: str, dots: str) -> None:
    for name in (unseen + dots, dots + unseen):
        with pytest.raises(ApiError):
            file_name(name)


@given(st.text(max_size=80))
def test_a_name_that_passes_is_one_component(name: str) -> None:
    for check in (memory_name, file_name):
        try:
            passed = check(name)
        except ApiError:
            continue
        assert Path("/root", passed).parent == Path("/root")
        assert passed not in (".", "..")


def test_a_file_of_keys_has_hashes_alone_and_finds_each(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ada, ben = add_key(file, "ada", memories=["garden"]), add_key(file, "ben", write=False)
    assert ada not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    keys = load_keys(file)
    assert keys.bearer(f"Bearer {ada}").name == "ada"
    found = keys.bearer(f"bearer {ben}")
    assert (found.name, found.write, found.memories) == ("ben", False, ("*",))
    for wrong in (
        None,
        "",
        ada,
        f"Basic {ada}",
        f"Bearer {ada}x",
        f"Bearer {ada[:-1]}",
        "Bearer ",
        f"Bearer {hash_of(ada)}",
    ):
        with pytest.raises(ApiError) as refused:
            keys.bearer(wrong)
        assert refused.value.status == 401
    with pytest.raises(ValueError, match="ada"):
        add_key(file, "ada")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"name": "../a", "hash": "0" * 64},
        {"name": "a", "hash": "0" * 63},
        {"name": "a", "hash": "plain"},
        {"name": "a", "hash": "0" * 64, "memories": ["a/b"]},
        {"name": "a", "hash": "0" * 64, "write": "yes"},
        {"name": "a", "hash": "0" * 64, "max_bytes": 0},
        {"name": "a", "hash": "0" * 64, "secret": "x"},
    ],
)
def test_a_wrong_file_of_keys_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [row]}))
    with pytest.raises(ValueError, match=r"keys\.json"):
        load_keys(file)


def test_tokens_of_a_minute_are_counted_for_each_key() -> None:
    keys = Keys((Key("a", tokens_per_minute=10), Key("b", tokens_per_minute=10), Key("c")))
    for key in keys.all:
        keys.count(key, 10)
    with pytest.raises(ApiError) as refused:
        keys.require_tokens(keys.all[0])
    assert refused.value.status == 429
    assert 1 <= int(refused.value.headers["Retry-After"]) <= 60
    keys.require_tokens(keys.all[2])


def test_responses_are_kept_for_their_key_and_for_one_state_of_their_memory(tmp_path: Path) -> None:
    state = MemoryState("first", 3)
    kept = StoredResponses(tmp_path / "kept", Records(tmp_path / "r"), lambda memory: state)
    turns = [{"role": "user", "content": "a"}]
    assert kept.keep("one", "ada", "garden", state, {"id": "one"}, turns)
    assert kept.keep("alone", "ada", "", NO_MEMORY_STATE, {"id": "alone"}, turns)
    again = StoredResponses(tmp_path / "kept", Records(tmp_path / "r"), lambda memory: state)
    found = again.one("one", "ada")
    assert found is not None
    assert (found.memory, found.state, found.messages) == ("garden", state, turns)
    assert again.one("one", "ben") is None
    assert not again.delete("one", "ben")
    assert not kept.keep(
        "late", "ada", "garden", MemoryState("first", 2), {}, turns
    )  # something was forgotten meanwhile
    for other in (
        MemoryState("first", 4),
        MemoryState("second", 3),
        MemoryState("first", 3, 7),
        None,
    ):  # forgotten, made again, replaced
        kept.keep("two", "ada", "garden", state, {"id": "two"}, turns)
        before, state = state, other  # type: ignore[assignment]
        assert kept.one("two", "ada") is None
        state = before
        assert kept.one("two", "ada") is None  # it is gone for good
    assert kept.one("one", "ada") == found
    again.forget("garden", MemoryState("first", 4))  # who says so looked too early
    assert kept.one("one", "ada") == found
    state = MemoryState("first", 4)
    again.forget("garden", state)
    state = MemoryState("first", 3)
    assert kept.one("one", "ada") is None
    alone = kept.one("alone", "ada")
    assert alone is not None
    assert (alone.memory, alone.state, alone.body) == ("", None, {"id": "alone"})
    assert kept.delete("alone", "ada")


def test_what_was_deleted_is_in_no_byte_of_the_records(tmp_path: Path) -> None:
    state = MemoryState("first", 0)
    records = Records(tmp_path / "r")
    kept = StoredResponses(tmp_path / "kept", records, lambda memory: state)
    spool = Spool(tmp_path / "spool", records, lambda memory: "first")
    orders = []
    for number in range(300):  # so many that pages are split, and rows move between them
        kept.keep(f"id{number}", "ada", "garden", state, {"text": "amaranth"}, [])
        orders.append(accepted(spool, f"{number} amaranth.txt", "garden", b"amaranth", source=f"amaranth {number}"))
        spool.note(orders[number // 2].id, reason="amaranth " * (number % 40))
    state = MemoryState("first", 1)
    kept.forget("garden", state)
    for order in orders:
        spool.remove(order.id)
    records.overwrite()
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"amaranth" not in file.read_bytes(), file


def spool_in(folder: Path, ids: dict[str, str]) -> Spool:
    folder.mkdir(exist_ok=True)
    return Spool(folder / "spool", Records(folder / "records"), lambda memory: ids[memory])


def accepted(spool: Spool, name: str, memory: str, text: bytes, **named: Any) -> ReadingJob:
    id, file = spool.begin(name, "ada")
    file.write(text)
    return spool.accept(id, file, memory, "ada", TextMetadata(**named))


def test_what_was_accepted_is_found_again_and_what_was_not_is_removed(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, {"garden": "1"})
    orders = [accepted(spool, name, "garden", name.encode(), tags=("x",)) for name in ("b.txt", "a.txt")]
    id, cut_short = spool.begin("c.txt")
    cut_short.close()
    again = spool_in(tmp_path, {"garden": "1"})
    assert again.waiting_jobs() == orders
    assert [again.file(order).read_text() for order in orders] == ["b.txt", "a.txt"]
    assert not (tmp_path / "spool" / id).exists()
    assert accepted(again, "d.txt", "garden", b"").number > orders[-1].number


@given(st.text(max_size=40) | st.sampled_from(["order.json", "..", "/etc/passwd", "service.sqlite3", "lock", ""]))
def test_no_name_of_a_caller_names_a_file(name: str) -> None:
    """Names come from `file_name`; the spool takes any text all the same."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    with tempfile.TemporaryDirectory() as folder:
        spool = spool_in(Path(folder), {"garden": "1"})
        orders = [accepted(spool, name, "garden", b"one", source=name), accepted(spool, name, "garden", b"two")]
        assert [spool.file(order).read_bytes() for order in orders] == [b"one", b"two"]
        files = {file for file in Path(folder).rglob("*") if file.is_file() and not file.name.startswith("records")}
        assert files == {Path(folder) / "spool" / order.id for order in orders}
        assert all(re.fullmatch("[0-9a-f]{32}", order.id) for order in orders)
        assert [order.file for order in spool.waiting_jobs()] == [name, name]


def test_a_text_is_bound_to_the_memory_that_it_was_sent_to(tmp_path: Path) -> None:
    ids = {"garden": "first"}
    spool = spool_in(tmp_path, ids)
    accepted(spool, "a.txt", "garden", b"a")
    id, file = spool.begin("b.txt", "ada")  # it is being sent while the memory is removed, and made again
    ids["garden"] = "second"
    with pytest.raises(ApiError) as refused:
        spool.accept(id, file, "garden", "ada", TextMetadata(), "first")
    assert refused.value.status == 404
    assert spool.jobs("second", "garden") == []
    assert [order.file for order in spool.jobs("first", "garden")] == ["a.txt"]


def test_texts_go_with_their_memory_and_count_as_their_keys_until_then(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, {"garden": "1", "other": "2"})
    one, two = accepted(spool, "a", "garden", b"12345"), accepted(spool, "b", "other", b"123")
    id, _ = spool.begin("c", "ada", expected=100)
    names = 2 * len("a[]")  # of a text they count, too
    assert (spool.bytes_of("ada"), spool.bytes_of("ben")) == (108 + names, 0)
    spool.note(two.id, state="done")
    spool._records.remove_memory(spool._records.memory("garden", one.memory_id))
    spool.clean()
    assert {file.name for file in (tmp_path / "spool").iterdir()} == {id}
    assert spool.bytes_of("ada") == 100
    spool.remove(id)
    assert spool.bytes_of("ada") == 0


def test_of_what_is_over_the_newest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong.service_data.spool._TOLD", 3)
    spool = spool_in(tmp_path, {"garden": "1", "other": "2"})
    aside = accepted(spool, "aside", "garden", b"a")
    spool.note(aside.id, state="failed", reason="set aside")
    elsewhere = accepted(spool, "elsewhere", "other", b"a")
    spool.note(elsewhere.id, state="done")
    for number in range(12):
        order = accepted(spool, str(number), "garden", b"a")
        spool.note(order.id, **({"state": "done"} if number % 2 else {"state": "failed", "bytes": 0}))
    waits = accepted(spool, "waits", "garden", b"a")
    assert [one.file for one in spool.jobs("1", "garden")] == ["aside", "9", "10", "11", "waits"]
    assert [one.file for one in spool.jobs("2", "other")] == ["elsewhere"]
    assert spool.set_aside("ada") == 1
    assert {file.name for file in (tmp_path / "spool").iterdir()} == {aside.id, waits.id}


def test_records_of_another_release_are_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "r")) as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(ValueError, match="another release"):
        Records(tmp_path / "r")


def _add_some(file: Path, number: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        secrets = list(pool.map(lambda n: add_key(file, f"k{number}-{n}"), range(8)))
    file.with_name(f"printed {number}").write_text("\n".join(secrets))


@pytest.mark.slow
def test_every_key_that_was_printed_is_in_the_file(tmp_path: Path) -> None:
    file, link = tmp_path / "keys.json", tmp_path / "link.json"
    link.symlink_to(file)
    processes = [PROCESSES.Process(target=_add_some, args=(link if n % 2 else file, n)) for n in range(4)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    assert [one.exitcode for one in processes] == [0] * 4
    keys = load_keys(file)
    names = {f"k{number}-{n}" for number in range(4) for n in range(8)}
    assert sorted(key.name for key in keys.all) == sorted(names)
    printed = [secret for n in range(4) for secret in (tmp_path / f"printed {n}").read_text().splitlines()]
    assert {keys.bearer(f"Bearer {secret}").name for secret in printed} == names
    assert file.stat().st_mode & 0o077 == 0
    assert link.is_symlink()


def test_a_file_of_keys_keeps_its_owner_and_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add_key(file, "ada")
    owner = (65534, 65533) if os.geteuid() == 0 else (os.geteuid(), os.getegid())  # only root gives files away
    os.chown(file, *owner)
    file.chmod(0o640)
    add_key(file, "ben")
    assert [key.name for key in load_keys(file).all] == ["ada", "ben"]
    for one in (file, tmp_path / "keys.json.lock"):
        about = one.stat()
        assert (about.st_uid, about.st_gid, about.st_mode & 0o777) == (*owner, 0o640)


def test_a_link_in_a_circle_is_no_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.symlink_to(file)
    with pytest.raises(OSError, match=r"keys\.json"):
        add_key(file, "ada")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"keys": {"a": 1}}', '{"keys": [3]}', "\ud800"])
def test_a_damaged_file_of_keys_stays_as_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    before = file.read_bytes()
    for call in (lambda: load_keys(file), lambda: add_key(file, "ada")):
        with pytest.raises(ValueError, match=r"keys\.json"):
            call()
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "Screenshot at 2.02.11\u202fPM.txt",
        "M\u00e4rz\u00a02024.txt",
        "\u8cc7\u6599\u3000.txt",
        "\u0646\u0627\u0645\u0647\u200c\u0647\u0627.txt",
        "\U0001f468\u200d\U0001f469.txt",
        "\u200fa.txt",
        "\U0001fadc.txt",  # an emoji that older releases of Python do not know
        "100%.txt",
        "a#b?c.txt",
    ],
)
def test_names_that_systems_make_pass(name: str) -> None:
    assert file_name(name) == name
    assert file_name(unicodedata.normalize("NFD", name)) == unicodedata.normalize("NFD", name)


@given(st.characters())
def test_no_name_of_a_file_breaks_a_line_or_turns_text(letter: str) -> None:
    controls = unicodedata.category(letter) in ("Cc", "Cs")
    turns = unicodedata.bidirectional(letter) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    refused = controls or turns or len(f"a{letter}b".splitlines()) > 1 or letter in "/\\"
    if refused:
        with pytest.raises(ApiError):
            file_name(f"a{letter}b")
    else:
        assert file_name(f"a{letter}b") == f"a{letter}b"

"""Forgotten and compacted: no byte of the folder has the words, their tokens, keys and values, names or digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

import everlong
from everlong.errors import EverlongError
from everlong.frame.checkpoint import load_checkpoint
from everlong.memory import Block, Memory
from support import SMALL, byte_tokenizer, random_text, tiny_model, tiny_text_model

FRAME = {"kept_tokens": 64, "kept_share": 8, "anchor_tokens": 8, "anchors": 4, "tombstones": 4}
LEXICAL = {"index": ("lexical",)}
CONFIGS = {
    "plain": SMALL.changed(search=LEXICAL),
    "zones": SMALL.changed(frame=FRAME, search=LEXICAL),
    "int4": SMALL.changed(frame=FRAME, archive={"codec": "int4"}, search=LEXICAL),
    "e4m3 and vectors": SMALL.changed(archive={"codec": "e4m3"}, search={"index": ("lexical", "mean_pool", "hnsw")}),
    "topics and tags": SMALL.changed(archive={"graph": True, "tagger": "keyphrases"}, search=LEXICAL),
}
SECRET = "Marlene has porphyria. " * 3 + "The diagnosis of Marlene is porphyria, and porphyria stays. " * 8
WORDS = ("porphyria", "Marlene", "diagnosis", "patient-file")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def payload_of(memory: Memory, block: Block) -> np.ndarray[Any, np.dtype[np.uint8]]:
    pages = memory.core.blocks.pages_of(0, *block.span)
    payload = np.empty(sum(memory.core.page_bytes(page.end - page.begin) for page in pages), np.uint8)
    memory.core.blocks.read_pages(pages, payload)
    return payload


def needles_of(memory: Memory, source: str) -> dict[str, bytes]:
    """Return what would tell of a source: its tokens, however they are encoded, and its keys and values.

    Without those that other blocks have, too: keys and values of the first layer are the same wherever a token stands.
    """
    core = memory.core
    needles: dict[str, bytes] = {}
    for block in memory.blocks(source):
        begin, end = block.span
        ids = core.blocks.token_ids(0, begin, end)[8:24]
        if len(ids) == 16:
            for kind in (np.int32, np.int64, np.uint16, np.uint8):
                needles[f"{block.id} as {kind.__name__}"] = ids.astype(kind).tobytes()
        pages = core.blocks.pages_of(0, begin, end)
        payload = payload_of(memory, block)
        for at in range(0, len(payload) - 64, max(64, len(payload) // 16)):
            if len(set(payload[at : at + 64].tolist())) > 8:  # not a run of zeros
                needles[f"payload of {block.id} at {at}"] = payload[at : at + 64].tobytes()
        for layer in range(core.manifest().layers):
            keys = core.blocks.read_keys(pages[0], layer)
            for token in range(0, keys.shape[1], 8):
                needles[f"key {layer}, {token} of {block.id}"] = keys[0, token].astype(np.float32).tobytes()
    others = b"".join(payload_of(memory, block).tobytes() for block in memory.blocks() if block.source != source)
    return {name: needle for name, needle in needles.items() if needle not in others}


def found_in(files: Mapping[str, bytes], needles: Mapping[str, bytes]) -> dict[str, list[str]]:
    found = {name: [file for file, has in files.items() if needle in has] for name, needle in needles.items()}
    return {name: where for name, where in found.items() if where}


def require_zones_without(memory: Memory, gone: list[tuple[int, int]]) -> None:
    """Require that what a frame left stands for no token of these spans, and has keys for nothing else."""
    fields = json.loads(memory.core.manifest().attributes["frame"])
    zone, kept = fields["anchor_zone"], fields.get("kept", {"blocks": [], "until": 0})
    spans = [*zone["anchors"], *(stone[:2] for stone in zone["tombstones"]), *(row[:2] for row in kept["blocks"])]
    assert not [span for span in spans if any(span[0] < end and begin < span[1] for begin, end in gone)]
    file = memory.core.file("frame.safetensors")
    tensors = safetensors.torch.load(file) if file else {}
    slots = {
        "anchor_v": sum(end - begin for begin, end in zone["anchors"]),
        "tombstone_v": len(zone["tombstones"]),
        "kept_v": sum(token < kept["until"] for row in kept["blocks"] for token in row[3]),
    }
    assert {name: tensors[name].shape[2] if name in tensors else 0 for name in slots} == slots


def read_all(mm: everlong.MemoryModel, folder: Path) -> None:
    folder.mkdir()
    (folder / "patient-file.txt").write_text(SECRET)
    (folder / "river.txt").write_text(random_text(500, seed=1))
    mm.read(random_text(300, seed=2), "before")
    mm.sync(folder)
    mm.read(random_text(700, seed=3), "behind")
    mm.searcher.settle()
    mm.recall("Marlene has porphyria")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "closed") for name in CONFIGS),
        *((name, how) for name in ("zones", "topics and tags") for how in ("open", "read by another")),
    ],
)
def test_no_byte_is_left(name: str, how: str, tmp_path: Path) -> None:
    """Whether the memory is open without a model, in the MemoryModel that read it, or in one beside the forgetting."""
    model, tokenizer, folder = tiny_model(), byte_tokenizer(), tmp_path / "m"
    source = "patient-file.txt"
    needles = {word: word.encode() for word in WORDS}
    needles["digest"] = hashlib.sha256(SECRET.encode()).hexdigest().encode()

    def forget(memory: Memory) -> list[tuple[int, int]]:
        blocks = memory.blocks(source)
        needles.update(needles_of(memory, source))
        before = found_in(files_of(folder), needles)
        assert before.keys() >= {"digest", "patient-file"}
        assert any("payload" in one for one in before)
        assert any("int32" in one for one in before)
        assert memory.forget(source=source) == len(blocks) > 0
        memory.compact()
        return [block.span for block in blocks]

    if how == "open":
        with everlong.MemoryModel(model, tokenizer, folder, CONFIGS[name]) as mm:
            read_all(mm, tmp_path / "folder")
            gone = forget(mm.memory)
            assert found_in(files_of(folder), needles) == {}
    else:
        with everlong.MemoryModel(model, tokenizer, folder, CONFIGS[name]) as mm:
            read_all(mm, tmp_path / "folder")
        if how == "closed":
            with Memory.open(folder) as memory:
                gone = forget(memory)
        else:
            with (
                Memory.open(folder, read_only=True) as reading,
                everlong.MemoryModel(model, tokenizer, reading, CONFIGS[name]) as mm,
            ):
                mm.generate("Marlene has porphyria", 2)
                with Memory.open(folder) as memory:
                    gone = forget(memory)
                mm.generate("Marlene has porphyria", 2)
    assert found_in(files_of(folder), needles) == {}
    with Memory.open(folder) as memory:
        require_zones_without(memory, gone)
        memory.export(tmp_path / "export")
        memory.fork(tmp_path / "fork").close()
    assert found_in({"export": (tmp_path / "export").read_bytes(), **files_of(tmp_path / "fork")}, needles) == {}
    with everlong.MemoryModel(model, tokenizer, folder, CONFIGS[name]) as mm:
        assert all(one.source != source for one in mm.recall("Marlene has porphyria"))
    assert found_in(files_of(folder), needles) == {}


def test_an_export_right_after_a_forgetting_has_none_of_it(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["zones"]) as mm:
        read_all(mm, tmp_path / "folder")
        needles = {word: word.encode() for word in WORDS} | needles_of(mm.memory, "patient-file.txt")
        mm.memory.forget(source="patient-file.txt")
        mm.memory.export(tmp_path / "export")
    assert found_in({"export": (tmp_path / "export").read_bytes()}, needles) == {}


def test_what_a_file_was_before_it_changed_is_told_by_nothing(tmp_path: Path) -> None:
    """Blocks that stay of a file that changed behind them still had the digest of what it was."""
    folder = tmp_path / "folder"
    folder.mkdir()
    kept, file = random_text(300, seed=5), folder / "file.txt"
    file.write_text(kept + SECRET)
    digest = hashlib.sha256(file.read_bytes()).hexdigest().encode()
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["plain"]) as mm:
        mm.sync(folder)
        first = mm.memory.blocks("file.txt")[0].id
        assert found_in(files_of(tmp_path / "m"), {"digest": digest})
        file.write_text(kept + random_text(200, seed=6))
        mm.sync(folder)
        assert mm.memory.blocks("file.txt")[0].id == first
        mm.memory.compact()
        assert found_in(files_of(tmp_path / "m"), {"digest": digest, "word": b"porphyria"}) == {}
        assert mm.sync(folder).kept == 1  # it knows the file still
        file.write_text(kept + SECRET)  # and reads what comes back
        assert mm.sync(folder).changed == ("file.txt",)
        assert any("porphyria" in mm.text(block.id) for block in mm.memory.blocks("file.txt"))


def test_a_file_that_no_state_belongs_to_any_more_is_emptied(tmp_path: Path) -> None:
    """As of a frame whose zones are off now: its last keys and values belong to nothing."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["zones"]) as mm:
        read_all(mm, tmp_path / "folder")
        assert mm.memory.core.file("frame.safetensors")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["plain"]) as mm:
        mm.read(random_text(200, seed=8), "more")
        assert not mm.memory.core.file("frame.safetensors")


def test_what_nobody_can_read_goes_as_a_whole(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["zones"]) as mm:
        read_all(mm, tmp_path / "folder")
    with Memory.open(tmp_path / "m") as memory:
        fields = json.loads(memory.core.manifest().attributes["frame"])
        fields["kept"]["blocks"][0] = fields["kept"]["blocks"][0][:3]
        memory.core.set_attribute("frame", json.dumps(fields))
        memory.forget(source="patient-file.txt")
        memory.compact()
        assert not memory.core.file("frame.safetensors")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["zones"]) as mm:
        assert mm.recall("river")


def test_a_compaction_that_fails_leaves_it_forgotten_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["zones"]) as mm:
        read_all(mm, tmp_path / "folder")
    with Memory.open(tmp_path / "m") as memory:
        needles = {word: word.encode() for word in WORDS} | needles_of(memory, "patient-file.txt")
        with monkeypatch.context() as patched:

            def refuse(*arguments: Any) -> None:
                raise EverlongError("the disk refuses")

            patched.setattr("everlong.memory.frame_file.drop_forgotten", refuse)
            assert memory.forget(source="patient-file.txt") > 0
            with pytest.raises(EverlongError, match="refuses"):
                memory.compact()
        assert memory.blocks("patient-file.txt") == []
        gone = memory.forgotten_generation
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["zones"]) as mm:
        assert all(one.source != "patient-file.txt" for one in mm.recall("Marlene has porphyria"))
        assert mm.memory.forgotten_generation == gone
        mm.memory.compact()
    assert found_in(files_of(tmp_path / "m"), needles) == {}


def test_the_number_of_forgettings_rises_for_everybody(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["plain"]) as mm:
        for source in "abc":
            mm.read(random_text(200, seed=ord(source)), source)
        assert mm.memory.forgotten_generation == 0
    with Memory.open(tmp_path / "m", read_only=True) as reading:
        with Memory.open(tmp_path / "m") as memory:
            memory.forget([])
            memory.flush()
            assert reading.forgotten_generation == 0
            memory.forget(source="a")
            assert (memory.forgotten_generation, reading.forgotten_generation) == (1, 1)
            memory.compact()
            memory.forget(source="b")
        assert reading.forgotten_generation == 2
        assert reading.blocks("a") == []
    with Memory.open(tmp_path / "m") as memory:
        assert memory.forgotten_generation == 2
        with memory.fork(tmp_path / "fork") as fork:
            assert fork.forgotten_generation == 2
            fork.forget(source="c")
        assert memory.forgotten_generation == 2


@pytest.mark.parametrize("who", ["writer", "reader", "reader of a forgetting that was killed", "text alone"])
def test_a_fork_and_an_export_before_compact_have_none_of_it(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are other folders and files: nobody would compact them for it."""
    config, model, folder = CONFIGS["zones"], tiny_model(), tmp_path / "m"
    if who == "text alone":
        config, model = SMALL.changed(answer={"recall_mode": "text"}, search=LEXICAL), tiny_text_model()
    needles = {word: word.encode() for word in WORDS}
    needles["digest"] = hashlib.sha256(SECRET.encode()).hexdigest().encode()
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config) as mm:
        read_all(mm, tmp_path / "folder")
        if who != "text alone":
            needles |= dict(list(needles_of(mm.memory, "patient-file.txt").items())[::8])
        gone = [block.span for block in mm.memory.blocks("patient-file.txt")]
    zones = files_of(folder).get("files/frame.safetensors")
    with Memory.open(folder) as memory:
        if who == "reader of a forgetting that was killed":
            assert zones is not None
            needles["zones"] = zones[-2000:]

            def kill(self: Memory) -> None:
                raise KeyboardInterrupt

            monkeypatch.setattr(Memory, "_drop_from_frame", kill)
            with pytest.raises(KeyboardInterrupt):
                memory.forget(source="patient-file.txt")
            monkeypatch.undo()
        else:
            memory.forget(source="patient-file.txt")
    assert found_in(files_of(folder), needles)
    with Memory.open(folder, read_only=who.startswith("reader")) as memory:
        memory.export(tmp_path / "export")
        with memory.fork(tmp_path / "fork") as fork:
            assert fork.blocks() == memory.blocks()
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".everlong")] == []
    assert found_in({"export": (tmp_path / "export").read_bytes(), **files_of(tmp_path / "fork")}, needles) == {}
    with Memory.import_file(tmp_path / "export", tmp_path / "import") as memory:
        assert not any(
            begin < block.span[1] and block.span[0] < end for block in memory.blocks() for begin, end in gone
        )
    with pytest.raises(EverlongError), Memory.open(folder, read_only=True) as memory:
        memory.export(tmp_path / "export")  # it is there


def test_a_fork_of_a_compacted_memory_is_not_compacted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["plain"]) as mm:
        read_all(mm, tmp_path / "folder")
        mm.memory.forget(source="patient-file.txt")
        mm.memory.compact()
        with monkeypatch.context() as patched:
            patched.setattr(Memory, "compact", lambda self: pytest.fail("nothing of it is left"))
            mm.memory.fork(tmp_path / "fork").close()
        mm.memory.export(tmp_path / "export")
    with Memory.import_file(tmp_path / "export", tmp_path / "import") as memory:
        assert memory.forgotten_generation == 0
        needles = needles_of(memory, "river.txt")
        memory.forget(source="river.txt")  # as many as were counted before the export
        memory.fork(tmp_path / "of the import").close()
    assert found_in(files_of(tmp_path / "of the import"), needles) == {}


def test_a_fork_that_cannot_be_compacted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIGS["plain"]) as mm:
        read_all(mm, tmp_path / "folder")
        mm.memory.forget(source="patient-file.txt")

        def refuse(self: Memory) -> int:
            raise EverlongError("the disk refuses")

        with monkeypatch.context() as patched:
            patched.setattr(Memory, "compact", refuse)
            fork = mm.memory.fork(tmp_path / "fork")
        assert "the disk refuses" in caplog.text
        assert fork.blocks("patient-file.txt") == []
        fork.compact()
        fork.close()
    assert found_in(files_of(tmp_path / "fork"), {word: word.encode() for word in WORDS}) == {}


def test_what_a_frame_left_is_counted_anew_in_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgetting there may reach the number that the origin's frame noted, and be cut short right then."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", CONFIGS["zones"]) as mm:
        mm.read(random_text(200, seed=7), "first")
        mm.memory.forget(source="first")
        read_all(mm, tmp_path / "folder")
    with Memory.open(tmp_path / "m") as memory:
        memory.export(tmp_path / "export")
    with Memory.import_file(tmp_path / "export", tmp_path / "import") as memory:
        gone = [block.span for block in memory.blocks("patient-file.txt")]
        monkeypatch.setattr(Memory, "_drop_from_frame", lambda self: None)
        memory.forget(source="patient-file.txt")
    with Memory.open(tmp_path / "import", read_only=True) as memory:
        last = load_checkpoint(memory.core)
    assert last.anchor_zone is not None
    assert last.kept is not None
    stood = [*last.anchor_zone.anchors, *(stone[:2] for stone in last.anchor_zone.tombstones)]
    stood += [row[:2] for row in last.kept.blocks]
    assert stood
    assert not [span for span in stood if any(span[0] < end and begin < span[1] for begin, end in gone)]

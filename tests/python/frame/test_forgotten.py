"""A frame that is open lets go of what is forgotten, whoever forgets it, before its next text or question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong import Where
from everlong.errors import MemoryNotFoundError
from everlong.memory import Memory
from support import SMALL, byte_tokenizer, random_text, tiny_model, tiny_text_model
from support.text_alone import remembering

ZONES = {
    "rolling": SMALL,
    "anchors and tombstones": SMALL.changed(frame={"anchor_tokens": 8, "anchors": 4, "tombstones": 2}),
    "kept": SMALL.changed(frame={"kept_tokens": 64, "kept_share": 8}),
}
PARTS = ("first", "secret", "last")


def read_parts(mm: everlong.MemoryModel, *, tokens: int = 300) -> None:
    for seed, source in enumerate(PARTS):
        mm.read(random_text(tokens, seed=seed), source)


def held(mm: everlong.MemoryModel) -> set[int]:
    """The archived tokens that stand in the frame, or that something in it stands for."""
    os = mm.frame.os
    until = min(os.archived_until, os.stream_end)
    spans = [(0, min(os.sinks, until)), (os.rolling[0], min(os.rolling[1], until)), *os.anchor_zone["anchors"]]
    spans += [stone[:2] for stone in os.anchor_zone["tombstones"]]
    return {token for begin, end in spans for token in range(begin, end)} | set(os.kept_held)


def tokens_of(memory: Memory, source: str) -> set[int]:
    return {token for block in memory.blocks(source) for token in range(*block.span)}


def logits_after(mm: everlong.MemoryModel, text: str) -> Any:
    with mm.frame.branch():
        return mm.frame.extend(mm.encode(text), "prompt")


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("forgotten", PARTS)
def test_a_frame_lets_go_before_its_next_question(name: str, forgotten: str, tmp_path: Path) -> None:
    """It then stands as one that is opened now."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", ZONES[name]) as mm:
        read_parts(mm)
        gone = tokens_of(mm.memory, forgotten)
        assert held(mm) & gone or name == "rolling"
        mm.memory.forget(source=forgotten)
        mm.recall("which stone")
        assert not held(mm) & gone
        ours = logits_after(mm, "which stone")
        generation = mm.memory.forgotten_generation
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", ZONES[name]) as mm:
        assert mm.memory.forgotten_generation == generation
        assert not held(mm) & gone
        theirs = logits_after(mm, "which stone")
    assert (ours - theirs).abs().max() < 1e-4


def test_all_of_it_may_go_and_another_text_come() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, ZONES["kept"]) as mm:
        read_parts(mm)
        mm.memory.forget([block.id for block in mm.memory.blocks()])
        text = random_text(300, seed=9)
        mm.read(text, "other")
        assert mm.memory.blocks()[0].span[0] == 0
        assert "".join(mm.text(block.id) for block in mm.memory.blocks("other")) == text
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, ZONES["kept"]) as new:
            new.read(text, "other")
            assert (logits_after(mm, "so") - logits_after(new, "so")).abs().max() < 1e-4


def test_a_text_alone_lets_go() -> None:
    with remembering(tiny_text_model()) as mm:
        read_parts(mm, tokens=60)
        gone = tokens_of(mm.memory, "last")
        assert held(mm) & gone
        mm.memory.forget(source="last")
        mm.recall("which stone")
        assert not held(mm) & gone
        assert len(mm.frame.zones.resident()) == len(held(mm))


@pytest.mark.parametrize("forgotten", PARTS)
def test_a_reader_hears_of_a_writer(forgotten: str, tmp_path: Path) -> None:
    """Its frame, its index and what it last told of a search: another process could be the writer."""
    config = ZONES["kept"].changed(search={"index": ("lexical",)})
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config) as mm:
        read_parts(mm)
        question = mm.text(mm.memory.blocks(forgotten)[0].id)[20:60]
    with (
        Memory.open(tmp_path / "m", read_only=True) as reading,
        everlong.MemoryModel(model, tokenizer, reading, config) as mm,
    ):
        gone = tokens_of(reading, forgotten)
        mm.generate(question, 1, remember=False)
        with Memory.open(tmp_path / "m") as writing:
            writing.forget(source=forgotten)
            writing.compact()
        assert all(one.source != forgotten for one in mm.last_recalled)
        assert all(one.source != forgotten for one in mm.recall(question))
        assert not held(mm) & gone
        assert mm.memory.core.search.find(token_ids=mm.encode(question).numpy().astype("int32"), kinds=["lexical"])
        assert mm.generate(question, 2).tokens == 2


@pytest.mark.parametrize("name", ["rolling", "kept", "text alone"])
def test_a_reader_hears_of_text_whose_places_another_has(name: str, tmp_path: Path) -> None:
    """Places that were forgotten at the end of the stream come to the next text. The reader then attends to that."""
    tokenizer = byte_tokenizer()
    config = ZONES.get(name, SMALL).changed(search={"index": ("lexical",)})
    model = tiny_model()
    if name == "text alone":
        config, model = config.changed(answer={"recall_mode": "text"}), tiny_text_model()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config) as mm:
        mm.read(random_text(300, seed=1), "first")
        mm.read(random_text(300, seed=2), "secret")
        question = mm.text(mm.memory.blocks("secret")[0].id)[20:60]
    with (
        Memory.open(tmp_path / "m", read_only=True) as reading,
        everlong.MemoryModel(model, tokenizer, reading, config) as mm,
    ):
        mm.generate(question, 1, remember=False)
        named = mm.last_recalled
        assert any(one.source == "secret" for one in named)
        told = tokens_of(reading, "secret")
        with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config) as writer:
            writer.memory.forget(source="secret")
            writer.memory.compact()
            writer.read(random_text(600, seed=3), "other")
            assert told <= tokens_of(writer.memory, "other")
        assert all(one.source != "secret" for one in mm.last_recalled)
        mm.recall("which stone")
        ours = logits_after(mm, "which stone")
        with pytest.raises(MemoryNotFoundError):
            mm.generate("which stone", 1, remember=False, recall=[one for one in named if one.source == "secret"])
    with (
        Memory.open(tmp_path / "m", read_only=True) as reading,
        everlong.MemoryModel(model, tokenizer, reading, config) as mm,
    ):
        assert (logits_after(mm, "which stone") - ours).abs().max() < 1e-4


def test_a_filter_shows_nothing_of_a_reader_at_the_places_of_later_text(tmp_path: Path) -> None:
    """A reader's own turns stand where a writer's text comes. They are not of that text."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", SMALL) as mm:
        mm.read(random_text(300, seed=1), "first")
    with (
        Memory.open(tmp_path / "m", read_only=True) as reading,
        everlong.MemoryModel(model, tokenizer, reading, SMALL) as mm,
    ):
        mm.generate("which stone", 40)
        begin = reading.blocks()[-1].span[1]
        end = mm.frame.os.stream_end
        assert end > begin
        with everlong.MemoryModel(model, tokenizer, tmp_path / "m", SMALL) as writer:
            writer.read(random_text(300, seed=3), "other")
        with mm.frame.branch():
            mm.frame.clear_recalled()
            mm.frame.narrow(Where(source="other"))
            assert mm.frame.stream.visible is not None
            assert mm.frame.stream.visible.runs(0, end) == []


def test_what_no_frame_holds_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL) as mm:
        read_parts(mm, tokens=400)
        before = mm.frame.os.rolling
        monkeypatch.setattr(mm.frame.zones, "begin_anew", lambda: pytest.fail("the frame held none of it"))
        mm.memory.forget([mm.memory.blocks("secret")[0].id])
        mm.recall("which stone")
        assert mm.frame.os.rolling == before


def test_a_state_that_has_seen_it_is_made_anew(tmp_path: Path) -> None:
    """Of linear attention, which has something of all that it read."""
    model, tokenizer = tiny_model("qwen3_next", "partial"), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", SMALL) as mm:
        read_parts(mm)
        mm.memory.forget(source="secret")
        mm.recall("which stone")
        begin = mm.frame.zones.own_from
        assert begin is not None
        assert begin >= mm.frame.os.rolling[0]
        ours = logits_after(mm, "which stone")
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", SMALL) as mm:
        assert (logits_after(mm, "which stone") - ours).abs().max() < 1e-3

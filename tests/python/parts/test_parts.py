"""The protocol of parts: how hooks are composed, what a part is refused, and that each folder of parts may be gone."""

from __future__ import annotations

import ast
import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import everlong
import everlong._core as _core
from everlong import part_list
from everlong.config import settings
from everlong.frame.part import (
    AnswerProgress,
    Hidden,
    LoadContext,
    Needs,
    Offer,
    PartFindings,
    PartSettings,
    Question,
    Rows,
    Span,
)
from everlong.frame.parts import Parts
from everlong.parts.towers.runtime import query_vectors
from everlong.parts.writer import Writer
from everlong.text.prompt import Prompt
from support import SMALL, TESTS, TINY_MEMORY, byte_tokenizer, random_text, tiny_model, tiny_text_model
from support.memories import answering_of

PACKAGE = Path(everlong.__file__).parent
CONFIG = SMALL.changed(search={"index": ("lexical",)}, answer={"quotes": 0}, parts=())
TEXT = random_text(1500)
HIDDEN = {1: torch.zeros(3, 4)}

Told = list[tuple[str, str]]


class Tells:
    """Has every hook that all parts have a say in, and tells in which order they are called."""

    def __init__(self, name: str, told: Told, layers: Sequence[int] = ()) -> None:
        self.name, self.needs = name, Needs(hidden_layers=layers)
        self._told = told

    def write_block(
        self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden
    ) -> Mapping[str, npt.NDArray[Any]]:
        assert len(ids) == span[1] - span[0]
        assert all(len(rows) == len(ids) for rows in hidden.values())
        self._told.append((self.name, "block"))
        own = np.full(2, len(self.name), dtype=np.int32)
        return {f"own.{self.name}": own, "shared": own}

    def prefetch(self, progress: AnswerProgress) -> None:
        self._told.append((self.name, "ahead"))

    def should_recall(self, prompt: Prompt, read: Callable[[], torch.Tensor]) -> bool:
        self._told.append((self.name, "wants"))
        return True

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        self._told.append((self.name, "asked"))
        return PartFindings()

    def on_recalled(self, pages: Sequence[_core.PageRef]) -> None:
        self._told.append((self.name, "came back"))

    def settle(self) -> None:
        self._told.append((self.name, "settle"))

    def close(self) -> None:
        self._told.append((self.name, "close"))


def open_model(folder: Path | None, *parts: Any, config: everlong.MemoryConfig = CONFIG) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config.changed(parts=parts), pack=None)


# --- composed in order


def test_all_are_asked_in_the_order_given() -> None:
    told: Told = []
    with open_model(None, Tells("one", told), Tells("four", told)) as mm:
        mm.read(TEXT)
        blocks = mm.memory.blocks()
        assert told == [("one", "block"), ("four", "block")] * len(blocks)
        for block in blocks:
            tensors = mm.memory.core.blocks.tensors(block.id)
            assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
                "own.one": [3, 3],
                "own.four": [4, 4],
                "shared": [4, 4],  # of one name the last one's stays
            }
        told.clear()
        assert mm.generate(TEXT[300:330], max_new_tokens=1, remember=False).recalled
        hooks = ["ahead", "wants", "asked", "came back", "ahead"]  # of the question, then of the token that was said
        assert told == [(name, hook) for hook in hooks for name in ("one", "four")]
        told.clear()
        mm.searcher.settle()
        assert told == [("one", "settle"), ("four", "settle")]
        told.clear()
    assert [hook for _, hook in told if hook == "close"] == ["close"] * 2
    assert told[-2:] == [("one", "close"), ("four", "close")]


def test_nothing_comes_back_unless_all_want_it() -> None:
    class No:
        def should_recall(self, prompt: Prompt, read: Callable[[], torch.Tensor]) -> bool:
            logits = read()
            assert logits.shape == (257,)
            return False

    told: Told = []
    with open_model(None, Tells("one", told), No(), Tells("four", told)) as mm:
        mm.read(TEXT)
        told.clear()
        assert mm.generate(TEXT[300:330], max_new_tokens=1, remember=False).recalled == ()
        assert ("four", "wants") not in told  # nobody is asked what cannot change it


def test_the_last_one_is_obeyed_where_only_one_can_be() -> None:
    def leaves(*which: Any) -> Any:
        return SimpleNamespace(id="", needs=Needs(evicted=frozenset(which)), write_evicted=leave)

    def leave(span: Span, kv: Rows) -> Rows:
        return kv

    both, kept = leaves("kept", "tombstone"), leaves("kept")
    told: Told = []

    @contextmanager
    def attached(name: str) -> Iterator[None]:
        told.append((name, "attached"))
        yield

    ends, other_ends = (
        SimpleNamespace(boundary_probabilities=lambda ids, hidden, begins: None, threshold=at, lookahead=round(10 * at))
        for at in (0.1, 0.2)
    )
    first = SimpleNamespace(score_tokens="first", adapt=lambda frame: attached("first"), details="first")
    second = SimpleNamespace(score_tokens="second", adapt=lambda frame: attached("second"), details="second")
    named = {"both": both, "ends": ends, "first": first, "kept": kept, "second": second, "other": other_ends}
    parts = Parts(named)
    assert parts.kept_writer is kept
    assert parts.tombstone_writer is both
    assert parts.token_scorer is second
    assert parts.details == "second"
    assert parts.tombstone_scorer is None
    with parts.adapted(None):
        assert told == [("second", "attached")]
    config = parts.configure(CONFIG.os_config())
    assert (config.topic_threshold, config.topic_lookahead) == (pytest.approx(0.2), 2)
    assert not config.recall_tombstone
    turned = Parts(dict(reversed(named.items())))
    assert (turned.kept_writer, turned.tombstone_writer) == (both, both)
    assert (turned.token_scorer, turned.segmenter) == (first, ends)
    with Parts().adapted(None):
        assert len(told) == 1


def test_of_a_part_that_lacks_states_nothing_is_stored() -> None:
    told: Told = []
    parts = Parts({"one": Tells("one", told, (1, 2)), "four": Tells("four", told, (1,))})
    assert parts.layers_until_archived() == {1, 2}
    assert set(parts.tensors((0, 3), torch.zeros(3), HIDDEN)) == {"own.four", "shared"}
    assert told == [("four", "block")]


def test_what_a_chunk_is_told_of_is_heard_once_and_in_order() -> None:
    """By the last part alone; blocks end where it says, and states are the layers' that it named."""

    class Ends:
        threshold, lookahead = 0.5, 1

        def __init__(self, name: str) -> None:
            self.name, self.needs = name, Needs(hidden_layers=(2,))
            self.heard: list[tuple[int, bool]] = []

        def boundary_probabilities(self, ids: torch.Tensor, hidden: Hidden, *, begins: bool) -> npt.NDArray[np.float32]:
            assert {layer: len(rows) for layer, rows in hidden.items()} == {2: len(ids)}
            self.heard.append((len(ids), begins))
            return (ids == bar).numpy().astype(np.float32)

    (bar,) = byte_tokenizer()("|")["input_ids"]
    passed_over, obeyed = Ends("one"), Ends("other")
    config = CONFIG.changed(archive={"least_tokens": 4}, frame={"chunk_tokens": 50})
    with open_model(None, passed_over, obeyed, config=config) as mm:
        for text in ("a" * 40 + "|" + "b" * 69, "c" * 20 + "|" + "d" * 39):
            mm.read(text)
        assert not passed_over.heard
        assert obeyed.heard == [(50, True), (50, False), (10, False), (50, True), (10, False)]
        assert [block.span for block in mm.memory.blocks()] == [(0, 40), (40, 110), (110, 130), (130, 170)]


def test_a_token_that_was_generated_asks_for_what_a_tombstone_stands_for() -> None:
    """Of states and of the shares of heads that it names; without heads it is told of no share."""

    class Asks:
        threshold, recalls_span = 0.5, True

        def __init__(self, heads: Sequence[tuple[int, int]]) -> None:
            self.needs, self.heard = Needs(hidden_layers=(1, 3), heads=heads), []
            self.steps: list[int] = []

        def score_tombstones(self, step: int, hidden: Hidden, attention: torch.Tensor) -> Sequence[float]:
            assert {layer: len(rows) for layer, rows in hidden.items()} == {1: 1, 3: 1}
            assert attention.shape == (len(self.needs.heads), 4)
            self.steps.append(step)
            return [0.0, 1.0, 0.0, 0.0]

    config = CONFIG.changed(frame={"tombstones": 4}, answer={"policy": "off", "recall_mode": "kv"})
    for heads in ((), ((0, 1), (2, 3))):
        asks = Asks(heads)
        with open_model(None, asks, config=config) as mm:
            mm.read(TEXT)
            begin, end, _ = mm.frame.os.anchor_zone["tombstones"][1]
            before = mm.stream_tokens
            answer = mm.generate("so", max_new_tokens=3, remember=False)
            (recall, *_) = (event for event in mm.trace() if event["what"] == "recall")
            assert (recall["trigger"], recall["begin"], recall["end"]) == ("tombstone", begin, end)
            assert {one.found_by for one in answer.recalled} == {("tombstone",)}
            assert asks.steps[0] == before + len("so")


# --- what a part stores, finds and attaches


def test_a_part_that_fails_at_a_block_has_that_block_refused_and_the_frame_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fails:
        fails = True

        def write_block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Any:
            if self.fails:
                raise RuntimeError("not this one")
            return {}

    one = Fails()
    with open_model(None, one) as mm:
        mm.frame.extend(mm.encode(TEXT[:100]), "read")
        with pytest.raises(RuntimeError, match="not this one"):
            mm.frame.end_of_text()
        assert "archiving tokens 0 to 100 failed" in caplog.text
        assert not mm.frame.steps.broken
        assert mm.frame.archive.blocks == len(mm.memory.blocks()) == 0
        one.fails = False
        mm.read(TEXT[100:])
        assert mm.memory.blocks()[0].span[0] == 100
        assert mm.generate(TEXT[300:330], max_new_tokens=1).recalled


def test_older_blocks_get_what_a_part_stores_in_the_background(tmp_path: Path) -> None:
    class Late(Tells):
        def missing_blocks(self, core: _core.Memory) -> Sequence[int]:
            return [block.id for block in core.blocks.infos() if "shared" not in core.blocks.tensor_shapes(block.id)]

        def write_block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Any:
            filled.append((block, span))
            return super().write_block(block, span, ids, hidden)

    filled: list[tuple[int | None, tuple[int, int]]] = []
    with open_model(tmp_path / "m") as mm:
        mm.read(TEXT[:700])
        blocks = [(block.id, block.span) for block in mm.memory.blocks()]
    with open_model(tmp_path / "m", Late("late", [], (1, 2))) as mm:
        mm.searcher.settle()
        assert filled == blocks
        assert all("shared" in mm.memory.core.blocks.tensors(block) for block, _ in blocks)
        mm.read(TEXT[700:])
        assert {block for block, _ in filled[len(blocks) :]} == {None}  # it is about to get its id
        assert all("shared" in mm.memory.core.blocks.tensors(block.id) for block in mm.memory.blocks())


@dataclasses.dataclass(frozen=True)
class Points(PartSettings, group="points"):
    """Offers a page whatever is asked."""

    at: int = 0
    score: float = -0.5
    by: str = "points"

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset({"at", "score"})

    def load(self, opening: LoadContext) -> Any:
        return Pointing(self, opening.core)


settings._GROUPS.pop("points")  # no hint of another test is to name it


class Pointing:
    def __init__(self, settings: Points, core: _core.Memory) -> None:
        self.settings, self._core = settings, core

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        assert hidden == {}
        (page,) = self._core.blocks.pages_of(0, self.settings.at, self.settings.at + 1)
        return PartFindings(offers=[Offer(self.settings.score, page, (self.settings.by,))])


def test_what_is_offered_comes_back_among_what_was_found_by_its_score() -> None:
    config = CONFIG.changed(search={"neighbours": 0})
    text = f"{TEXT[:800]}0123456789{TEXT[800:]}"
    with open_model(None, Points(at=130), config=config) as mm:
        mm.read(text, source="book")
        for score, confidence in ((1e3, 1.0), (-1.0, np.exp(-1.0))):
            mm.config = mm.config.with_part(Points(at=130, score=score))
            recalled = mm.recall("0123456789")
            (own,) = (one for one in recalled if one.found_by == ("points",))
            assert own is recalled[0] or score < 0
            assert [one.score for one in recalled] == sorted((one.score for one in recalled), reverse=True)
            assert (own.source, own.score, own.confidence) == ("book", score, confidence)
            assert own.span == (128, 192)
            assert own.text == text[128:192]
            assert {one.found_by for one in recalled} == {("points",), ("lexical",)}
        mm.config = mm.config.with_part(Points(at=810))  # what is found anyway comes once
        assert [one.found_by for one in mm.recall("0123456789")] == [("lexical",)]
        mm.config = mm.config.with_part(Points(at=mm.stream_tokens - 1))  # nor what is in the frame
        with mm.frame.branch():
            groups = mm.searcher.find(answering_of(mm).prompt("0123456789", False, None)).offers
        assert [tuple(group.found_by) for group in groups] == [("lexical",)]
        mm.config = mm.config.with_part(Points(at=130))
        assert not mm.recall("0123456789", where=everlong.Where(source="elsewhere"))
        with pytest.raises(ValueError, match=r"points\.by: fixed when a MemoryModel is made"):
            mm.config = mm.config.with_part(Points(by="others"))


def test_what_is_attached_is_at_work_behind_what_came_back_and_nowhere_else() -> None:
    """And what is remembered was computed without it."""

    class Attached:
        count = 0

        def adapt(self, frame: Any) -> AbstractContextManager[None]:
            assert frame.os.recalled_tokens > 0
            return self._at_work()

        @contextmanager
        def _at_work(self) -> Iterator[None]:
            self.count += 1
            yield

    one, told = Attached(), []
    with open_model(None, one) as mm:
        mm.read(TEXT)
        mm.generate(TEXT[300:330], max_new_tokens=4, recall=False)
        assert one.count == 0
        mm.frame.observe(lambda block, *rest: told.append(one.count))
        mm.generate(TEXT[300:330], max_new_tokens=4)
        assert one.count > 0
        assert told == [one.count] * len(told) != []  # archived once all was computed again


def test_sentences_are_compared_with_all_of_a_question_however_long(tmp_path: Path) -> None:
    """Though a search takes its rarest tokens alone."""
    from support.parts.towers import drawn_pack

    model = tiny_model("llama", num_hidden_layers=4)
    drawn_pack(model).save(tmp_path / "pack")
    config = SMALL.changed(search={"index": ("lexical", "meaning")}, answer={"quotes": 1})
    with everlong.MemoryModel(model, byte_tokenizer(), None, config, pack=tmp_path / "pack") as mm:
        mm.read(TEXT)
        for length in (200, 300):
            prompt = answering_of(mm).prompt(random_text(length, seed=3), False, None)
            tapped = mm.searcher.tap(prompt)
            found = mm.searcher.find(prompt, tapped=tapped)
            assert found.vectors is not None
            expected = query_vectors(mm.frame.parts.get("towers").towers, tapped.states.hidden)
            assert len(expected) == length
            np.testing.assert_array_equal(found.vectors.query, expected)


def test_layers_that_there_are_not_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match=r"hidden layers are \[9\]"):
        open_model(None, Tells("one", [], (1, 9)))


def test_a_memory_of_text_alone_asks_no_part_that_looks_at_a_question_s_states() -> None:
    told: Told = []
    plain, looking = Tells("plain", told), Tells("looking", told)
    looking.needs = Needs(question_layers=(1,))
    config = TINY_MEMORY.changed(answer={"recall_mode": "text"}, parts=(plain, looking))
    with everlong.MemoryModel(tiny_text_model(), byte_tokenizer(), None, config) as mm:
        mm.read(TEXT)
        told.clear()
        assert mm.recall(TEXT[300:330])
        assert [name for name, hook in told if hook == "asked"] == ["plain"]


def test_a_public_method_that_no_protocol_has_is_refused_by_its_name() -> None:
    class Misspelt:
        def retreive(self, question: Question, hidden: Hidden) -> PartFindings:
            return PartFindings()

    class Private:
        weight = torch.nn.Linear(1, 1)  # what can be called, and is no method

        def _help(self) -> None: ...

        @property
        def helps(self) -> bool:
            return True

        def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
            return PartFindings()

    with pytest.raises(TypeError, match=r"the part Misspelt: Misspelt\.retreive is a public .* retrieve, "):
        open_model(None, Misspelt())
    with pytest.raises(TypeError, match=r"the part other: SimpleNamespace\.asked is a public method"):
        open_model(None, SimpleNamespace(name="other", asked=lambda question, hidden: PartFindings()))
    open_model(None, Private()).close()


def test_half_a_protocol_is_refused_as_nobody_would_call_it() -> None:
    class WithoutNeeds:
        def write_evicted(self, span: Any, kv: Any) -> Any:
            return kv

    class WithoutWriting:
        def missing_blocks(self, core: Any) -> list[int]:
            return []

    class Slots:
        __slots__ = ("heard",)

        def on_archived(self) -> None:
            self.heard = True

    for one, missing in ((WithoutNeeds(), "EvictionWriter"), (WithoutWriting(), "BlockBackfill")):
        with pytest.raises(TypeError, match=rf"is a public method that nobody calls: the rest of {missing} is missing"):
            open_model(None, one)
    with pytest.raises(TypeError, match=r"the part int: int\.\w+ is a public method"):
        open_model(None, 3)
    open_model(None, Slots()).close()


def test_a_part_is_closed_where_a_later_one_is_refused() -> None:
    ended = []

    class Threaded:
        def settle(self) -> None: ...

        def close(self) -> None:
            ended.append("closed")

    class Refused:
        def unknown(self) -> None: ...

    with pytest.raises(TypeError, match=r"Refused\.unknown is a public method"):
        open_model(None, Threaded(), Refused())
    assert ended == ["closed"]


@pytest.mark.parametrize("name", [name for name in part_list._OWN if part_list._OWN[name]])
def test_what_a_part_does_in_a_memory_imports_nothing_of_its_training(name: str) -> None:
    lab = re.compile(r"everlong_lab\b|everlong\.(bench|data)\b")
    seen: set[str] = set()

    def imported(module: str) -> Iterator[str]:
        """The modules of this part's folder that a module imports, and all others of everlong, by name."""
        file = PACKAGE.joinpath(*module.split(".")[1:])
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("everlong"):
                yield node.module
            elif isinstance(node, ast.Import):
                yield from (one.name for one in node.names if one.name.startswith("everlong"))

    left = [f"everlong.parts.{name}", f"everlong.parts.{name}.runtime"]
    while left:
        module = left.pop()
        seen.add(module)
        assert not lab.match(module), module
        if module.startswith("everlong.parts."):
            left += set(imported(module)) - seen


# --- its state


class Counts:
    """Knows how many tokens were in blocks."""

    name = "counts"

    def __init__(self) -> None:
        self.tokens, self.loaded = 0, 0

    def write_block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Any:
        self.tokens += len(ids)
        return {}

    def state(self) -> bytes:
        return str(self.tokens).encode()

    def load_state(self, state: bytes) -> None:
        self.tokens = int(state)
        self.loaded += 1


def test_a_state_goes_into_the_memory_s_own_files_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Counts()
    with open_model(tmp_path / "m", first) as mm:
        mm.read(TEXT[:700])
        mm.memory.fork(tmp_path / "fork").close()
        mm.read(TEXT[700:])
    assert (first.loaded, first.tokens) == (0, len(TEXT))
    file = tmp_path / "m" / "files" / "part.counts.bin"
    assert file.read_bytes().endswith(str(len(TEXT)).encode())
    again = Counts()
    with open_model(tmp_path / "m", again) as mm:
        assert (again.loaded, again.tokens) == (1, len(TEXT))
        mm.read(TEXT[:100], again=True)
    with everlong.Memory.open(tmp_path / "m") as memory:  # one that others go on with, in their own time
        for tokens in (len(TEXT) + 100, len(TEXT) + 150):
            one = Counts()
            with everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, CONFIG.changed(parts=(one,))) as mm:
                assert one.tokens == tokens
                mm.read(TEXT[:50], again=True)
    forked = Counts()
    with open_model(tmp_path / "fork", forked):
        assert 0 <= forked.tokens <= 700
    caplog.clear()
    with open_model(tmp_path / "m", SimpleNamespace(name="other", state=lambda: b"", load_state=pytest.fail)):
        pass
    assert not caplog.records


@pytest.mark.parametrize("damage", ["turned", "cut", "short", "empty"])
def test_a_damaged_state_is_passed_over_with_a_warning(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_model(tmp_path / "m", Counts()) as mm:
        mm.read(TEXT)
    file = tmp_path / "m" / "files" / "part.counts.bin"
    whole = file.read_bytes()
    file.write_bytes({"turned": whole[:-1] + b"x", "cut": whole[:-2], "short": whole[:3], "empty": b""}[damage])
    one = Counts()
    with caplog.at_level(logging.WARNING, logger="everlong"), open_model(tmp_path / "m", one) as mm:
        assert (one.loaded, one.tokens) == (0, 0)
        assert mm.generate(TEXT[300:330], max_new_tokens=1, remember=False).recalled
    assert "what the part counts knew is damaged in the memory's folder: it begins anew" in caplog.text


# --- its settings


def test_objects_and_settings_stand_beside_each_other() -> None:
    class Nameless:
        def write_block(self, *of_block: Any) -> Mapping[str, npt.NDArray[Any]]:
            return {"nameless": np.zeros(1, dtype=np.int8)}

    one, other = Nameless(), Points(at=5)
    config = everlong.MemoryConfig(parts=[one, other])
    assert config.parts == (one, other)
    assert config.to_dict()["parts"] == {"Nameless": {}, "points": {"at": 5, "score": -0.5, "by": "points"}}
    with pytest.raises(ValueError, match="Nameless, Nameless: one of them is there twice"):
        everlong.MemoryConfig(parts=(one, Nameless()))
    assert config.with_part(Points(at=6)).parts == (one, Points(at=6))
    assert config.with_part(Writer(tokens=4)).parts == (one, other, Writer(tokens=4))
    with open_model(None, one, other) as mm:
        mm.read(TEXT)
        assert all("nameless" in mm.memory.core.blocks.tensors(block.id) for block in mm.memory.blocks())
        assert mm.frame.parts.get("Nameless") is one
        assert isinstance(mm.frame.parts.get("points"), Pointing)
        mm.config = mm.config.changed(search={"groups": 1})
        assert len(mm.recall(TEXT[300:330])) == 1
        with pytest.raises(ValueError, match="parts: fixed"):
            mm.config = mm.config.changed(parts=(other,))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (everlong.MemoryConfig, {"groups": 2}, r"MemoryConfig has no setting 'groups': it is search\.groups"),
        (everlong.MemoryConfig, {"frame_tokens": 2}, r"no setting 'frame_tokens': it is frame\.tokens"),
        (everlong.SearchConfig, {"kept_tokens": 2}, r"SearchConfig has no setting 'kept_tokens': it is frame\."),
        (everlong.AnswerConfig, {"rerank": 2.0}, r"AnswerConfig has no setting 'rerank': it is writer\.rerank"),
        (everlong.FrameConfig, {"token": 2}, r"FrameConfig has no setting 'token': is it 'tokens'\?"),
        (Writer, {"ahead_every": 2}, r"Writer has no setting 'ahead_every': it is walker\.ahead_every"),
        (Points, {"nothing": 2}, "Points has no setting 'nothing': there are at, score, by"),
    ],
)
def test_unknown_settings_are_refused_with_the_place_where_they_live(kind: Any, given: Any, message: str) -> None:
    part_list.part("walker")  # where a setting of a part lives is known once the part is
    with pytest.raises(TypeError, match=message):
        kind(**given)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("groups=2", r"expected group\.name=value .* it is search\.groups"),
        ("frame_tokens=2", r"expected group\.name=value .* it is frame\.tokens"),
        ("frame.groups=2", r"frame has no setting 'groups': it is search\.groups"),
        ("writer.device_bytes=2", r"writer has no setting 'device_bytes': it is (encoder|towers)\.device_bytes"),
        ("trimmers.by=random", "there is no part 'trimmers': there are towers, "),
        ("parts=towers,trimmers", "there is no part 'trimmers': there are towers, "),
    ],
)
def test_unknown_settings_as_text_are_refused_with_the_place_where_they_live(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        everlong.MemoryConfig().with_settings([setting])


def test_a_dozen_names_at_the_top_at_most() -> None:
    assert len(dataclasses.fields(everlong.MemoryConfig)) <= 12


# --- folders that are gone

_HIDING = """
    import json, os, sys

    import torch
    import transformers

    torch.set_num_threads(1)


    class Hidden:
        def __init__(self, folder):
            self.folder = folder

        def find_spec(self, name, path=None, target=None):
            if name == self.folder or name.startswith(f"{self.folder}."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


    def found(part):
        sys.meta_path.insert(0, Hidden(f"everlong.parts.{part}"))
        import everlong
        from everlong import part_list
        from everlong.config import settings
        from support import TINY_MEMORY, byte_tokenizer, tiny_model

        names = part_list.names()
        made = [name for name in names if part_list.part(name).name == name]
        try:
            part_list.part(part)
            refused = ""
        except ValueError as error:
            refused = str(error)
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, TINY_MEMORY) as mm:
            mm.read("The mill by the river belongs to Orla Vesk. " * 60)
            answer = mm.generate("Who has the mill?", max_new_tokens=3)
        default = [one.name for one in everlong.MemoryConfig().parts]
        loaded = [name for name in sys.modules if name.startswith(f"everlong.parts.{part}")]
        return [names, made, refused, answer.tokens, len(answer.recalled), default, loaded]


    for part in json.loads(sys.argv[1]):  # each in a process of its own, which has the libraries already
        if os.fork() == 0:
            print(json.dumps([part, *found(part)]), flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What is there without the folder of a part, by its name."""
    script = tmp_path_factory.mktemp("hiding") / "hiding.py"
    script.write_text(textwrap.dedent(_HIDING))
    ran = subprocess.run(
        [sys.executable, str(script), json.dumps(part_list.names())],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [part for part, *_ in lines] == list(part_list.names()), ran.stderr
    return {part: rest for part, *rest in lines}


@pytest.mark.slow
@pytest.mark.parametrize("part", part_list.names())
def test_a_folder_that_is_gone_is_a_feature_that_is_gone_and_nothing_else(
    part: str, without: dict[str, list[Any]]
) -> None:
    names, made, refused, said, recalled, default, loaded = without[part]
    others = [name for name in part_list.names() if name != part]
    assert names == others
    assert made == [name for name in others]
    assert f"there is no part {part!r}: there are " in refused
    assert (said, recalled > 0) == (3, True)
    assert default == [name for name in ("encoder", "towers", "kv_writer", "adapter") if name != part]
    assert loaded == []


def imports_of_parts(path: Path, *, inside: bool) -> Iterator[str]:
    """Modules of everlong.parts that a file imports: all of them, or those that importing the file imports."""

    def nodes(tree: ast.AST) -> Iterator[ast.AST]:
        for node in ast.iter_child_nodes(tree):
            if not inside and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if not inside and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            yield node
            yield from nodes(node)

    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in named if name == "everlong.parts" or name.startswith("everlong.parts."))


def test_nobody_imports_a_part_but_parts_the_command_line_and_the_one_list() -> None:
    files = {path: path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert Path("part_list.py") in files.values()
    importing = {
        str(name)
        for path, name in files.items()
        if name.parts[0] not in ("parts", "cli", "part_list.py") and any(imports_of_parts(path, inside=True))
    }
    assert importing == set()


def test_no_part_needs_the_folder_of_another_to_be_imported() -> None:
    folders = {path.parent.name for path in (PACKAGE / "parts").glob("*/__init__.py")}
    assert folders == set(part_list.names())
    crossing = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in (PACKAGE / "parts").rglob("*.py")
        for name in imports_of_parts(path, inside=False)
        if len(name.split(".")) > 2 and name.split(".")[2] in folders - {path.parent.name}
    }
    assert crossing == set()

"""Memories with an encoder: every model and text alone get vectors from their text, and are searched by them."""

from __future__ import annotations

import logging
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.parts import encoder as encoder_room
from everlong.parts.encoder import model, runtime
from everlong.parts.encoder.model import TextEncoder
from everlong.retrieval.embedding import EncoderNotFoundError
from everlong.text.prompt import build_prompt
from support import SMALL, byte_tokenizer, tiny_model
from support.parts.encoder import use_tiny_encoder
from support.parts.towers import drawn_pack
from support.text_alone import TEXT_ALONE_MEMORY, tiny_text_model
from support.texts import random_words

CONFIG = SMALL.changed(search={"index": ("lexical", "encoder")})
TEXT = CONFIG.changed(answer={"recall_mode": "text"})


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> TextEncoder:
    return use_tiny_encoder(monkeypatch)[1]


def opened(folder: Any = None, config: Any = CONFIG, **how: Any) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model("llama"), byte_tokenizer(), folder, config=config, **how)


def kept_in(mm: everlong.MemoryModel, what: str = "encoder") -> dict[int, np.ndarray]:
    mm.searcher.settle()
    tensor = f"{what}.{mm.frame.parts.get('encoder').id}"
    return {block.id: mm.memory.core.blocks.tensors(block.id)[tensor] for block in mm.memory.blocks()}


def pieces_of(there: list[tuple[int, int, int]], size: int, page: int, tokens: int) -> list[list[int]]:
    """Return the word pieces (each with the characters where it begins and ends) of each group of tokens."""
    groups: list[list[int]] = []
    for place in range(0, size, page):
        for begin in range(place, min(place + page, size), tokens):
            end = min(begin + tokens, place + page, size)
            own = [at for at, first, last in there if first < end and last > begin]
            groups.append(own or groups[-1])
    return groups


def sentences_of(cut: list[tuple[int, int]], there: list[tuple[int, int, int]], size: int, page: int) -> Iterator[int]:
    """Yield the sentence of each group of 16 tokens: those that lie in its page by half or more, in turn."""
    groups = pieces_of(there, size, page, 16)
    starts = [place for place in range(0, size, page) for _ in range(place, min(place + page, size), 16)]
    for start in dict.fromkeys(starts):
        own = [group for group, place in zip(groups, starts, strict=True) if place == start]
        of_page = set(range(own[0][0], own[-1][-1] + 1))
        share = {number: len(of_page & set(range(*place))) / len(range(*place)) for number, place in enumerate(cut)}
        best = sorted(share, key=lambda number: (-share[number], number))
        kept = sorted(number for number in best[: len(own)] if share[number] >= 0.5 or number == best[0])
        for at in range(len(own)):
            yield kept[at * len(kept) // len(own)]


def expected_of(mm: everlong.MemoryModel, encoder: TextEncoder) -> dict[int, tuple[np.ndarray, ...]]:
    """Return unit vectors of each block's tokens, sentences and passages, of its text and up to 80 bytes before.

    Each is encoded behind its source's name, whose pieces count in the means of sentences and passages alone.
    """
    found = {}
    core, page = mm.memory.core, mm.config.archive.page_tokens
    for info in core.blocks.infos():
        same = info.begin > 0 and core.blocks.info(info.id - 1).source == info.source
        before = min(80, info.begin) if same else 0
        data = mm.tokenizer.decode(core.blocks.token_ids(info.stream, info.begin - before, info.end).tolist())
        assert len(data) == before + info.end - info.begin  # a character a token
        ids, begins, ends = encoder.pieces(data)
        first = next(at for at in range(len(ids)) if ends[at] > before)
        states: list[np.ndarray] = []
        cut = encoder.pieces.sentences(ids, 40)
        title = encoder.pieces(info.source)[0]
        means: list[np.ndarray] = []  # of each sentence
        for begin, end in cut:
            own = encoder.states([np.concatenate([title, ids[begin:end]])])[0].numpy()
            states += list(own[len(title) :])
            means.append(own.mean(axis=0))

        there = [(at, begins[at] - before, ends[at] - before) for at in range(first, len(ids))]
        size = info.end - info.begin
        tokens = np.stack([np.mean([states[at] for at in own], axis=0) for own in pieces_of(there, size, page, 4)])
        sentences = np.stack([means[number] for number in sentences_of(cut, there, size, page)])
        own_sentences = [(begin, end) for begin, end in cut if end > first]
        begin, end = own_sentences[0][0], own_sentences[-1][1]
        whole = encoder.states([np.concatenate([title, ids[begin:end]])])[0].numpy().mean(axis=0)
        passages = [whole if end - begin <= 224 else 0 * whole] * -(-size // page)
        vectors = encoder.written(torch.from_numpy(tokens)).numpy()
        wholes = [np.stack(one) @ encoder.heads.sentence.numpy() for one in (sentences, passages)]
        found[info.id] = tuple(map(unit, (vectors, *wholes)))
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    of: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True), 1e-12)
    return of


def cosines(kept: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the cosine of each row; 1 where both are zeros."""
    cosine: np.ndarray = (unit(kept) * expected).sum(1) + ((kept == 0).all(1) & (expected == 0).all(1))
    return cosine


def test_blocks_get_the_vectors_of_their_text(encoder: TextEncoder) -> None:
    with opened() as mm:
        mm.read(random_words(900), source="one")
        mm.read(random_words(700, seed=2), source="two")
        kept = [kept_in(mm, what) for what in ("encoder", "sentence", "passage")]
        expected = expected_of(mm, encoder)
        assert len(expected) >= 6
        for block, all_three in expected.items():
            for vectors, own in zip((of[block] for of in kept), all_three, strict=True):
                assert vectors.dtype == np.int8
                assert vectors.shape == own.shape
                assert cosines(vectors, own).min() > 0.999  # of 8 bits


def test_found_is_what_numpy_finds(encoder: TextEncoder) -> None:
    with opened() as mm:
        mm.read(random_words(3000))
        kept, kept_sentences, kept_passages = (kept_in(mm, what) for what in ("encoder", "sentence", "passage"))
        mm.config = mm.config.changed(search={"index": ("encoder",)})
        words = random_words(60, seed=5)
        inputs = mm.searcher.inputs(build_prompt(mm.tokenizer, words))
        assert inputs["kinds"] == ["encoder"]
        states = encoder.states([encoder.pieces(words)[0]])[0]
        query, mean = encoder.query_vectors(states).astype(np.float64), states.numpy().mean(axis=0)
        mean = mean @ encoder.heads.sentence.numpy()
        mean *= 2 / np.linalg.norm(mean)
        np.testing.assert_allclose(inputs["encoder_query"], query, atol=1e-5)
        np.testing.assert_allclose(inputs["sentence_query"], [mean], atol=1e-5)
        scores = {}
        for block in mm.memory.blocks():
            vectors = kept[block.id].astype(np.float64)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            sentences = kept_sentences[block.id] / np.linalg.norm(kept_sentences[block.id], axis=1, keepdims=True)
            passages = unit(kept_passages[block.id])
            row, sentence, (begin, end) = 0, 0, block.span
            for page, first in enumerate(range(begin, end, mm.config.archive.page_tokens)):
                tokens = min(first + mm.config.archive.page_tokens, end) - first
                count, of_sentences = -(-tokens // 4), -(-tokens // 16)
                scores[first] = (query @ vectors[row : row + count].T).max(1).sum()
                alike = (sentences[sentence : sentence + of_sentences] @ mean).max()
                scores[first] += alike + (passages[page] @ mean if passages[page].any() else alike)
                row, sentence = row + count, sentence + of_sentences
        ranking = mm.memory.core.search.rankings(10, **inputs)[0]
        assert (ranking.part, ranking.granularity) == ("encoder", "page")
        for page, score in zip(ranking.pages, ranking.scores, strict=True):
            assert score == pytest.approx(scores[page.begin], abs=0.01)  # the question is int8 there
        assert "encoder" in mm.recall(words)[0].found_by


def test_sentences_are_compared_with_the_question_as_a_whole(encoder: TextEncoder) -> None:
    def vector(words: str) -> np.ndarray:
        mean = encoder.states([encoder.pieces(words)[0]])[0].numpy().mean(axis=0, dtype=np.float64)
        mapped = mean @ encoder.heads.sentence.numpy()
        return np.asarray(mapped / np.linalg.norm(mapped))

    asked, texts = random_words(60, seed=5), [random_words(40), "🙂🙂", random_words(90, seed=3)]
    with opened() as mm:
        mm.read(random_words(900))
        compare = mm.searcher.find(build_prompt(mm.tokenizer, asked)).cosines
        assert compare is not None
        expected = [vector(asked) @ vector(texts[0]), 0, vector(asked) @ vector(texts[2])]
        np.testing.assert_allclose(compare(texts, ""), expected, atol=1e-5)
        np.testing.assert_array_equal(compare(["🙂"], ""), [0])
        other = random_words(50, seed=7)
        np.testing.assert_allclose(compare(texts[:1], other), [vector(other) @ vector(texts[0])], atol=1e-5)
        np.testing.assert_allclose(compare(texts, "🙂"), expected, atol=1e-5)  # of unknown words the question's stay


def test_a_memory_of_text_alone_is_searched_by_it(encoder: TextEncoder) -> None:
    config = TEXT_ALONE_MEMORY.changed(search={"index": ("lexical", "meaning", "encoder")})
    with everlong.MemoryModel(tiny_text_model(), byte_tokenizer(), None, config) as mm:
        mm.read(random_words(1500))
        assert len(kept_in(mm)) > 3
        assert "encoder" in mm.recall(random_words(60))[0].found_by
    with opened(config=TEXT) as mm:
        mm.read(random_words(1500))
        assert "encoder" in mm.recall(random_words(60))[0].found_by


def test_an_older_memory_gets_the_same_vectors_and_keeps_them(encoder: TextEncoder, tmp_path: pathlib.Path) -> None:
    folder, text = tmp_path / "memory", random_words(1500)
    with opened(folder, CONFIG.changed(search={"index": ("lexical",)})) as before:
        before.read(text)
        assert before.frame.parts.get("encoder") is None
    with opened(folder) as after:
        late = kept_in(after)
        after.memory.fork(tmp_path / "fork").close()
    with opened() as at_once:
        at_once.read(text)
        read = kept_in(at_once)
    assert [vectors.tobytes() for vectors in late.values()] == [vectors.tobytes() for vectors in read.values()]
    with opened(tmp_path / "fork") as fork:
        assert fork.memory.core.index.blocks_without_meaning("encoder") == []
        assert [vectors.tobytes() for vectors in kept_in(fork).values()] == [one.tobytes() for one in late.values()]
    with everlong.Memory.open(folder, read_only=True) as memory, opened(memory) as reading:
        assert "encoder" in reading.recall(random_words(60))[0].found_by


def test_what_was_not_encoded_when_a_process_died_is_encoded_by_the_next(
    encoder: TextEncoder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory"
    put = everlong._core.Blocks.put_tensors
    done: list[int] = []

    def dies(self: Any, block: int, tensors: Any) -> None:
        if len(done) == 2:
            raise OSError("the disk is full")
        put(self, block, tensors)
        done.append(block)

    with monkeypatch.context() as patch:
        patch.setattr(everlong._core.Blocks, "put_tensors", dies)
        with opened(folder) as mm:
            mm.read(random_words(1500))
            with pytest.raises(everlong.errors.EverlongError, match="disk is full"):
                mm.recall("anything at all")
    with opened(folder) as mm:
        assert len(kept_in(mm)) == len(mm.memory.blocks()) > 3
        assert mm.memory.core.index.blocks_without_meaning("encoder") == []


def test_a_memory_that_is_opened_for_reading_says_what_is_missing(
    encoder: TextEncoder, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "memory", CONFIG.changed(search={"index": ("lexical",)})) as without:
        without.read(random_words(60))
        blocks = len(without.memory.blocks())
    for makes in (False, True):
        with everlong.Memory.open(tmp_path / "memory", read_only=True) as memory, opened(memory) as reading:
            lacking = len(memory.core.index.blocks_without_meaning("encoder"))
            reading.recall(random_words(60))
        assert lacking == (0 if makes else blocks)
        said = f"{blocks} of {blocks} blocks have nothing of the part encoder"
        assert (said in caplog.text) != makes
        caplog.clear()
        with opened(tmp_path / "memory") as writing:
            writing.searcher.settle()


def test_a_question_waits_for_what_was_just_read_and_not_for_older_blocks(
    encoder: TextEncoder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime, "_MOST_WAITED", 0)
    folder = tmp_path / "memory"
    with opened(folder, CONFIG.changed(search={"index": ("lexical",)})) as before:
        before.read(random_words(1500))
        older = {block.id for block in before.memory.blocks()}
    monkeypatch.setattr(runtime, "_BLOCKS", 1)
    states = TextEncoder.states

    go_on = threading.Event()
    slow_from = {"rows": 0}

    def slow(self: TextEncoder, rows: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            slow_from["rows"] += 1
            if slow_from["rows"] > 1:
                lacking = set(mm.memory.core.index.blocks_without_meaning("encoder"))
                if lacking <= older:  # only older ones are left
                    go_on.wait(60)
        return states(self, rows)

    monkeypatch.setattr(TextEncoder, "states", slow)
    with opened(folder) as mm:
        mm.read(random_words(400, seed=3))
        mm.recall("anything at all")  # returns: it would wait for ever for the older ones
        lacking = set(mm.memory.core.index.blocks_without_meaning("encoder"))
        assert lacking <= older
        assert lacking
        assert f"{len(older)} of {len(older)} blocks have nothing of the part encoder yet" in caplog.text
        go_on.set()
        assert kept_in(mm).keys() >= older


def test_forgotten_text_is_not_found(encoder: TextEncoder) -> None:
    with opened(config=CONFIG.changed(search={"index": ("encoder",)})) as mm:
        mm.read(random_words(900), source="one")
        mm.read(random_words(900, seed=2), source="two")
        assert {hit.source for hit in mm.recall("anything at all")} <= {"one", "two"}
        mm.memory.forget(source="one")
        assert {hit.source for hit in mm.recall("anything at all")} == {"two"}


def test_a_question_of_unknown_characters_is_searched_by_words_alone(encoder: TextEncoder) -> None:
    with opened() as mm:
        mm.read(random_words(900))
        assert mm.frame.parts.get("encoder")._query("🙂🙂🙂🙂🙂 a") is None
        inputs = mm.searcher.inputs(build_prompt(mm.tokenizer, "🙂🙂🙂🙂🙂"))
        assert "encoder_query" not in inputs
        assert not any("encoder" in hit.found_by for hit in mm.recall("🙂🙂🙂🙂🙂 the"))


def test_without_its_package_all_works_and_what_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> pathlib.Path:
        raise EncoderNotFoundError("the encoder minilm is not installed")

    monkeypatch.setattr(model, "minilm_folder", missing)
    model.trained_encoder.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "everlong"):
            for _ in range(2):
                with opened() as mm:
                    mm.read(random_words(900))
                    assert mm.frame.parts.get("encoder") is None
                    assert mm.recall(random_words(60))[0].found_by == ("lexical",)
        assert caplog.text.count("not installed") == 1
    finally:
        model.trained_encoder.cache_clear()
    assert encoder_room.Encoder().optional


def test_towers_and_encoder_search_by_the_kinds_asked_for(encoder: TextEncoder, tmp_path: pathlib.Path) -> None:
    drawn_pack(tiny_model("llama")).save(tmp_path)
    both = SMALL.changed(search={"index": ("lexical", "meaning", "encoder")})

    def at_work(config: Any, pack: Any) -> set[str]:
        with opened(config=config, pack=pack) as mm:
            return {name for name in ("towers", "encoder") if mm.frame.parts.get(name) is not None}

    assert at_work(both, tmp_path) == {"towers", "encoder"}
    assert at_work(both.changed(search={"index": ("lexical", "meaning")}), tmp_path) == {"towers"}
    assert at_work(both, None) == {"encoder"}

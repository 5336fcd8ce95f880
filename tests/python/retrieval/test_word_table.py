"""Words that token ids spell, and the search by them: against words of the decoded text, and BM25 in numpy."""

from __future__ import annotations

import collections
import itertools
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

import everlong
import everlong._core as _core
from everlong.retrieval.word_table import rarest_words, word_table
from everlong.text.encoding import decode_text, encode
from support import SMALL, byte_tokenizer, tiny_model
from support.examples import examples

WORD = re.compile(r"[^\W_]+|[^\w\s]|_")
LETTERS = st.text(st.sampled_from("abcABCéÉßжЖ12"), min_size=1, max_size=6)
TEXTS = st.lists(st.one_of(LETTERS, st.sampled_from([" ", "\n", ", ", ".", "_", "-", "("])), max_size=30).map("".join)


def trained_tokenizer(model: Any, trainer: Any, decoder: Any, before: Any) -> Any:
    """Return a tokenizer of few pieces, so that most words have several."""
    backend = tokenizers.Tokenizer(model)
    backend.decoder, backend.pre_tokenizer = decoder, before
    backend.train_from_iterator(["the cat sat on the mat, abc ABC 12 été"] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def by_bytes() -> Any:
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<unk>"])
    before = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained_tokenizer(tokenizers.models.BPE(), trainer, tokenizers.decoders.ByteLevel(), before)


def by_spaces() -> Any:
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256)), ("▁", -3.0)]
    pieces += [(one, -2.0) for one in ("▁the", "▁ab", "c", "a", "b", "A", "B", "C", "1", "2", ",", ".", "_", "-", "(")]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    decoders = tokenizers.decoders
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


TOKENIZERS = {"bytes": by_bytes(), "spaces": by_spaces(), "byte each": byte_tokenizer()}


def table_of(tokenizer: Any) -> _core.WordTable:
    table = word_table(tokenizer)
    assert table is not None
    return table


def ids_of(tokenizer: Any, text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    ids: np.ndarray[Any, np.dtype[np.int32]] = encode(tokenizer, text).numpy().astype(np.int32)
    return ids


def words_in(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


@pytest.mark.parametrize("name", ["bytes", "spaces", "byte each"])
@examples(60)
@given(st.data())
def test_two_words_are_one_number_where_they_say_the_same(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    text = data.draw(TEXTS.filter(lambda text: "_" not in text and "ß" not in text))
    if name == "byte each":  # half a character has no capitals
        text = text.replace("É", "é").replace("Ж", "ж")
    ids = ids_of(tokenizer, text)
    found = table_of(tokenizer).words(ids)
    edges = [edge for _, first, last in found for edge in (first, last)]
    assert edges == sorted(edges)
    said = [decode_text(tokenizer, ids[first:last].tolist()).strip().casefold() for _, first, last in found]
    # A token may hold marks together, or a mark and what follows it: their letters and digits are what is compared.
    assert re.findall(r"[^\W_]+", " ".join(said)) == re.findall(r"[^\W_]+", text.casefold())
    numbers: dict[str, int] = {}
    for word, (term, *_) in zip(said, found, strict=True):
        assert numbers.setdefault(word, term) == term
        assert 0 <= term < 2**31
    assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_word_is_found_however_it_is_cut(tokenizer: Any) -> None:
    table = table_of(tokenizer)
    (alone,) = table.words(ids_of(tokenizer, "abcabc12"))
    for text in ("the abcabc12", "ABCabc12.", "\nAbcabc12, the", "(abcabc12)"):
        assert alone[0] in [term for term, *_ in table.words(ids_of(tokenizer, text))], text
    for text in ("abcabc1", "abcabc123", "xabcabc12", "abc abc12"):
        assert alone[0] not in [term for term, *_ in table.words(ids_of(tokenizer, text))], text


def test_scripts_without_spaces_are_no_long_words() -> None:
    tokenizer = TOKENIZERS["bytes"]
    terms = [term for term, *_ in table_of(tokenizer).words(ids_of(tokenizer, "中文字中文"))]
    assert len(terms) == 5
    assert terms[:2] == terms[3:]


def test_a_tokenizer_that_tells_nothing_is_searched_by_its_ids() -> None:
    class Slow:
        is_fast = False

    assert word_table(Slow()) is None


def bm25(pages: list[list[str]], groups: list[list[str]], asked: set[str]) -> tuple[list[float], list[float]]:
    """Return scores of pages and of groups: inverse document frequencies and average length are those of pages."""
    frequency = collections.Counter(word for page in pages for word in set(page))
    average = sum(map(len, pages)) / len(pages)

    def score(text: list[str], average: float) -> float:
        total, counts = 0.0, collections.Counter(text)
        for word in asked:
            if counts[word]:
                idf = max(math.log((len(pages) - frequency[word] + 0.5) / (frequency[word] + 0.5)), 1e-6)
                total += idf * counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * len(text) / average))
        return total

    return [score(page, average) for page in pages], [score(group, 3 * average) for group in groups]


def opened(folder: Any = None) -> everlong.MemoryModel:
    config = SMALL.changed(search={"index": ("words",)})
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=config)


def rankings(mm: everlong.MemoryModel, words: str) -> dict[str, dict[int, float]]:
    ids = ids_of(mm.tokenizer, words)
    found = mm.memory.core.search.rankings(100, token_ids=ids, kinds=["words"])
    return {
        one.granularity: {page.begin: score for page, score in zip(one.pages, one.scores, strict=True)} for one in found
    }


def text_of(seed: int, words: int) -> str:
    drawn = np.random.default_rng(seed).integers(0, 40, words)
    return " ".join(f"{'bcdfg'[number % 5]}{'aeiou'[number // 8]}{'lmnrst'[number % 6]}x" for number in drawn)


def test_pages_score_bm25_of_their_words(tmp_path: pathlib.Path) -> None:
    words = text_of(1, 400)
    with opened(tmp_path / "m") as mm:
        mm.read(words, "one")
        page_tokens = mm.config.archive.page_tokens
        blocks = [block.span for block in mm.memory.blocks()]
        starts = [at for begin, end in blocks for at in range(begin, end, page_tokens)]
        terms: dict[int, list[str]] = {start: [] for start in starts}
        for begin, end in blocks:  # a character is a token
            for match in re.finditer(r"\S+", words[begin:end]):
                letters = list(zip(range(*match.span()), match[0], strict=True)) if len(match[0]) > 1 else []
                for at, term in ((match.start(), match[0]), *letters):
                    terms[begin + at // page_tokens * page_tokens].append(term)
        pages = list(terms.values())
        joined = [[*itertools.chain(*pages[max(0, at - 1) : at + 2])] for at in range(len(pages))]
        asked = f"{words.split()[40].upper()} {words.split()[300]} nothing"
        known = [word for word in words_in(asked) if word != "nothing"]
        expected = dict(zip(("page", "group"), bm25(pages, joined, {*known, *"nothing"}), strict=True))
        found = rankings(mm, asked)
        for granularity, scores in found.items():
            there = {start: score for start, score in zip(starts, expected[granularity], strict=True) if score > 0}
            assert scores == pytest.approx(there, rel=1e-5)
    with opened(tmp_path / "m") as again:
        assert again.memory.core.index.take_messages() == []
        assert rankings(again, asked) == found
        again.memory.forget([again.memory.blocks()[0].id])
        left = rankings(again, asked)
        assert left["page"].keys() == {begin for begin in found["page"] if begin >= blocks[1][0]}
    with everlong.Memory.open(tmp_path / "m", read_only=True) as memory:
        assert memory.core.index.words() is None  # it knows no tokenizer
        with pytest.raises(ValueError, match="no table of words"):
            memory.core.search.rankings(1, token_ids=ids_of(byte_tokenizer(), asked), kinds=["words"])
        with opened(memory) as mm:
            assert rankings(mm, asked) == left


def test_it_is_searched_by_token_ids_where_nobody_knows_its_words() -> None:
    with opened() as mm:
        mm.read(text_of(1, 400))
        (first, *_) = mm.recall(text_of(1, 40))
        assert first.found_by == ("words",)
        mm.memory.core.index.set_words(None)
        (first, *_) = mm.recall(text_of(1, 40))
        assert first.found_by == ("lexical",)


def test_a_long_question_keeps_whole_words() -> None:
    with opened() as mm:
        mm.read("abcabc is here. " * 3 + "the cat sat. " * 200)
        ids = ids_of(mm.tokenizer, "the cat abcabc sat " * 3)
        weights = mm.memory.core.search.idf(ids)
        kept = rarest_words(mm.memory.core, ids, weights, 20)
        terms = {term for term, *_ in table_of(mm.tokenizer).words(ids[kept])}
        assert len(kept) <= 20
        assert list(kept) == sorted(kept)
        (alone,) = table_of(mm.tokenizer).words(ids_of(mm.tokenizer, "abcabc"))
        assert alone[0] in terms
        mm.memory.core.index.set_words(None)
        assert len(rarest_words(mm.memory.core, ids, weights, 20)) == 20


def test_one_word_that_is_longer_than_all_that_is_searched_by_is_searched_by_its_rarest_tokens() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL.changed(search={"index": ("words",)})) as mm:
        ids = ids_of(mm.tokenizer, "x" * 30 + "q" + "x" * 30)
        weights = np.where(ids == ids[30], 2.0, 1.0).astype(np.float32)
        kept = rarest_words(mm.memory.core, ids, weights, 20)
        assert len(kept) == 20
        assert 30 in kept


def test_pieces_that_continue_a_word_say_so() -> None:
    """WordPiece writes no spaces: a piece without ## begins a word."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({"the": 0, "cat": 1, "##s": 2, "##at": 3, "[UNK]": 4}))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.decoder = tokenizers.decoders.WordPiece()
    table = table_of(transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))
    ids = np.asarray([0, 1, 2, 0], dtype=np.int32)  # the cats the
    assert [(first, last) for _, first, last in table.words(ids)] == [(0, 1), (1, 3), (3, 4)]

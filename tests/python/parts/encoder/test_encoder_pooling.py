"""Which word pieces belong to which group of tokens, against a search character by character."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.parts.encoder.model import EncoderSettings, WordPieces
from everlong.parts.encoder.pooling import (
    SHORTEST,
    characters_of_groups,
    group_ends,
    means_of_runs,
    pieces_of_groups,
    sentences,
    stored_sentences,
)
from everlong.parts.encoder.runtime import BlockText
from everlong.text.encoding import count_decoded_characters, decode_text, encode
from support import byte_tokenizer

WORDS = st.text(alphabet="ab Zé, .\n漢字🙂ß_", max_size=80)


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return WordPieces()


class OneByOne:
    """A tokenizer that is not fast: it has no places, and is asked for the text of every run."""

    def __init__(self, inner: Any) -> None:
        self.decode = inner.decode


@given(words=WORDS, page=st.sampled_from([8, 10, 64]), group=st.sampled_from([1, 3, 4]))
def test_groups_are_cut_page_by_page(words: str, page: int, group: int) -> None:
    tokens = len(words.encode())
    ends = group_ends(tokens, page, group)
    expected = []
    for first in range(0, tokens, page):
        last = min(first + page, tokens)
        at = first
        while at < last:
            at = min(at + group, last)
            expected.append(at)
    assert ends == expected


@given(words=WORDS, before=WORDS, fast=st.booleans())
def test_a_group_pools_the_pieces_that_share_a_character_with_its_tokens(words: str, before: str, fast: bool) -> None:
    tokenizer = byte_tokenizer()
    ids = [*encode(tokenizer, before).tolist(), *encode(tokenizer, words).tolist()]
    first = len(encode(tokenizer, before))
    text = decode_text(tokenizer, ids)
    ends = group_ends(len(ids) - first, 10, 4)
    if not ends:
        return
    said = count_decoded_characters(tokenizer if fast else OneByOne(tokenizer), ids, text)
    begins, lasts = characters_of_groups(said, first, ends)
    found = _PIECES(text)
    low, high = pieces_of_groups(begins, lasts, found[1], found[2])
    # By bytes: the tokenizer has a token for each of them.
    owner = [at for at, character in enumerate(text) for _ in character.encode()]
    expected = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        characters = set(owner[first + begin : first + end])
        own = [at for at in range(len(found[0])) if characters & set(range(found[1][at], found[2][at]))]
        expected.append(own)
    some = [own for own in expected if own]
    for at, own in enumerate(expected):
        if own:
            assert list(range(low[at], high[at])) == own
        elif some:
            earlier = [one for one in expected[:at] if one]
            assert list(range(low[at], high[at])) == (earlier[-1] if earlier else some[0])
        else:
            assert low[at] == high[at]


_PIECES = WordPieces()


STOPS, CLOSERS, LONGEST = frozenset({0, 1}), frozenset({2}), 40


@given(ids=st.lists(st.integers(0, 9), max_size=300))
def test_sentences_hold_every_piece_once_and_end_at_stops(ids: list[int]) -> None:
    found = sentences(ids, STOPS, CLOSERS, LONGEST)
    assert [piece for begin, end in found for piece in range(begin, end)] == list(range(len(ids)))
    for begin, end in found[:-1]:
        assert SHORTEST <= end - begin <= LONGEST
        if end - begin < LONGEST:
            told = [piece for piece in ids[begin:end] if piece not in CLOSERS]
            assert told[-1] in STOPS
            assert ids[end] not in CLOSERS
    for begin, end in found:  # it ends at the first place where it may
        for at in range(begin + SHORTEST, end):
            stopped = at - 1
            while stopped > begin and ids[stopped] in CLOSERS:
                stopped -= 1
            assert ids[stopped] not in STOPS or ids[at] in CLOSERS


def ids_in(block: BlockText) -> list[int]:
    """Return the word pieces of a block, in order, without those that its sentences are encoded behind."""
    return [int(piece) for one in block.sentences for piece in one.ids[one.context :]]


def test_a_sentence_that_begins_before_a_block_is_read_whole(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    words = (
        "At last he came home again after so many long years. "
        "The old barber of the village would not cut hair while it was raining. She went."
    )
    ids = encode(tokenizer, words).tolist()
    before = words.index("would")
    block = BlockText.of(1, tokenizer, ids, before, 64, EncoderSettings(), pieces, "")
    told = pieces.ids_of([words[words.index("The old") :]])[0]
    assert ids_in(block) == told
    ends = np.cumsum([len(one.ids) for one in block.sentences])
    assert ends[0] == told.index(pieces.ids_of(["raining."])[0][-1]) + 1
    for end, one in zip(ends, block.sentences, strict=True):  # one number a piece: its place
        one.take(torch.arange(end - len(one.ids), end, dtype=torch.float32)[:, None])
    assert float(block.means(1)[0]) == told.index(pieces.ids_of(["would"])[0][0])
    kept = [float(mean) for mean in block.sentence_means(1)]
    centres = [end - (len(one.ids) + 1) / 2 for end, one in zip(ends, block.sentences, strict=True)]
    assert len(centres) == 2
    assert kept == [centres[0]] * 2 + [centres[1]] * (len(kept) - 2)  # "She went." begins within the third group


def test_a_blank_line_ends_a_sentence(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    first, second = (
        "a heading of ten or more words that ends without any stop at all",
        "What follows it is another sentence",
    )
    for between, parts in (("\n\n", 2), (" \n \t\n\n", 2), ("\n", 1), (" ", 1)):
        ids = encode(tokenizer, first + between + second).tolist()
        block = BlockText.of(1, tokenizer, ids, 0, 64, EncoderSettings(), pieces, "")
        assert len(block.sentences) == parts
    assert ids_in(block) == pieces.ids_of([first + " " + second])[0]


def test_a_turn_of_a_dialogue_ends_a_sentence(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    turns = [
        "Mara: the old house stood on the hill by the sea for so many years\n",
        "Jean-Luc O'Hara: nobody in the village had been there for a single hour\n",
        "and it was late in the long night when he came home again:\n",
        "Kofi: yes",
    ]
    ids = encode(tokenizer, "".join(turns)).tolist()
    block = BlockText.of(1, tokenizer, ids, 0, 64, EncoderSettings(), pieces, "")
    told = pieces.ids_of(turns)
    lengths = [len(told[0]), len(told[1]) + len(told[2]), len(told[3])]
    assert [len(one.ids) for one in block.sentences] == lengths
    shorter = encode(tokenizer, "Kofi: yes\nMara: no\nKofi: so\n" + turns[0]).tolist()
    assert len(BlockText.of(1, tokenizer, shorter, 0, 64, EncoderSettings(), pieces, "").sentences) == 2


def test_a_sentence_is_kept_in_the_page_that_has_most_of_it(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    begin = "Nobody in the house had slept for a single hour that long night. The"
    words = f"{begin} pass key of the old garden shed is four eight two one three."
    block = BlockText.of(1, tokenizer, encode(tokenizer, words).tolist(), 0, len(begin), EncoderSettings(), pieces, "")
    assert len(block.sentences) == 2
    groups = -(-len(begin) // 16)
    assert block.kept_sentences.tolist() == [0] * groups + [1] * (len(block.kept_sentences) - groups)


def test_short_sentences_that_share_a_group_are_all_kept(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    words = "a b c d e f g h i j. k l m n o p q r s t. " + "the old house stood on the hill by the sea. " * 2
    ids = encode(tokenizer, words).tolist()
    block = BlockText.of(1, tokenizer, ids, 0, len(ids), EncoderSettings(), pieces, "")
    assert len(block.sentences) == 4
    assert sorted(set(block.kept_sentences.tolist())) == [0, 1, 2, 3]


def test_sentences_stand_behind_their_source_and_who_speaks(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    talk = (
        "Mara: the old house stood on the hill by the sea for years. It fell down in the storm of that long winter.\n"
    )
    ids = encode(tokenizer, talk).tolist()
    block = BlockText.of(1, tokenizer, ids, 0, 64, EncoderSettings(), pieces, "letters/to_kofi.txt")
    contexts = [[int(piece) for piece in one.ids[: one.context]] for one in (*block.sentences, block.passage) if one]
    assert contexts == pieces.ids_of(["to kofi", "to kofi Mara", "to kofi"])
    for number, one in enumerate(block.sentences):
        one.take(torch.full((len(one.ids), 1), float(number)).index_fill(0, torch.arange(one.context), 100.0))
    assert set(block.means(1).flatten().tolist()) <= {0.0, 1.0, 0.5, 0.25, 0.75}  # none of their context
    assert block.sentence_means(1).min() > 1  # all of it


def test_a_short_text_is_a_passage(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    ids = encode(tokenizer, "The old house stood on the hill by the sea. " * 4).tolist()
    block = BlockText.of(1, tokenizer, ids, 0, 64, EncoderSettings(), pieces, "house.txt")
    assert block.passage is not None
    assert block.passage.ids.tolist() == [*pieces.ids_of(["house"])[0], *ids_in(block)]
    block.passage.take(torch.arange(len(block.passage.ids), dtype=torch.float32)[:, None])
    assert block.passage_means(1).tolist() == [[(len(block.passage.ids) - 1) / 2]] * 3
    longer = BlockText.of(1, tokenizer, ids * 6, 0, 64, EncoderSettings(), pieces, "house.txt")
    assert longer.passage is None
    assert longer.passage_means(2).tolist() == [[0, 0]] * math.ceil(6 * len(ids) / 64)


@given(data=st.data())
def test_a_page_keeps_the_sentences_that_lie_in_it_by_half(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=12))
    places = [(sum(sizes[:at]), sum(sizes[: at + 1])) for at in range(len(sizes))]
    groups = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=sum(sizes)))
    ends = np.minimum(np.cumsum(groups), sum(sizes))
    first, last = np.r_[0, ends[:-1]], ends
    first, last = first[last > first], last[last > first]
    page = np.sort(np.asarray(data.draw(st.lists(st.integers(0, 3), min_size=len(first), max_size=len(first)))))
    found = stored_sentences(places, first, last, page)
    for one in set(page.tolist()):
        own = np.flatnonzero(page == one)
        inside = range(first[own[0]], last[own[-1]])
        share = [len(set(inside) & set(range(*place))) / len(range(*place)) for place in places]
        kept = found[own].tolist()
        assert kept == sorted(kept)
        assert all(share[number] >= 0.5 or share[number] == max(share) for number in kept)
        left_out = [number for number, of in enumerate(share) if of >= 0.5 and number not in kept]
        assert not left_out or len(set(kept)) == len(own)
        assert all(share[number] <= min(share[at] for at in kept) for number in left_out)


@given(data=st.data())
def test_means_of_runs_are_numpys(data: st.DataObject) -> None:
    rows = torch.randn(data.draw(st.integers(0, 12)), 3)
    runs = data.draw(st.lists(st.tuples(st.integers(0, len(rows)), st.integers(0, 5)), max_size=8))
    first = np.asarray([begin for begin, _ in runs], dtype=np.int64)
    last = np.asarray([min(begin + count, len(rows)) for begin, count in runs], dtype=np.int64)
    found = means_of_runs(rows, first, last).numpy()
    for at, (begin, end) in enumerate(zip(first, last, strict=True)):
        expected = rows[begin:end].numpy().mean(0) if end > begin else np.zeros(3)
        np.testing.assert_allclose(found[at], expected, atol=1e-5)


def test_pieces_that_the_encoder_does_not_know_are_left_out(pieces: WordPieces) -> None:
    tokenizer = byte_tokenizer()
    ids = encode(tokenizer, "a cat 🙂🙂🙂🙂 sat").tolist()
    block = BlockText.of(1, tokenizer, ids, 0, 64, EncoderSettings(), pieces, "")
    assert pieces.unknown not in ids_in(block)
    assert len(ids_in(block)) == 3
    unknown = encode(tokenizer, "🙂🙂🙂🙂").tolist()
    nothing = BlockText.of(1, tokenizer, unknown, 0, 64, EncoderSettings(), pieces, "")
    assert nothing.sentences == []
    assert (nothing.means(5) == 0).all()
    assert nothing.means(5).shape == (4, 5)
    assert (nothing.sentence_means(5) == torch.zeros(1, 5)).all()
    assert (nothing.passage_means(5) == torch.zeros(1, 5)).all()

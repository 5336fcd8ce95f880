"""Haystacks: length, depth, and token spans that really hold the facts."""

import pytest

from everlong.data import Book
from everlong_lab.corpora.facts import make_facts
from everlong_lab.corpora.haystack import build_haystack
from support import byte_tokenizer
from support.texts import paragraph_books

TOKENIZER = byte_tokenizer()  # one token a byte


LONGEST_PARAGRAPH = max(len(paragraph) for book in paragraph_books() for paragraph in book.text.split("\n\n")) + 2
FACTS = make_facts(("pass-key", "uuid", "name"), 3, seed=0)
# A fact is longer than nothing: what stands behind it can be off by as much more.
SLACK = LONGEST_PARAGRAPH + max(len(fact.statement) for fact in FACTS)
LENGTHS = [4_000, 8_000, 16_000]
POSITIONS = [200, 1_500, 3_900, 4_100, 6_000, 9_000, 11_000, 13_000, 15_900]


def test_spans_hold_their_statements_as_paragraphs() -> None:
    haystack = build_haystack(paragraph_books(), TOKENIZER, LENGTHS, FACTS, POSITIONS, seed=1)
    assert [needle.fact for needle in haystack.needles] == FACTS
    stream = "".join(part.text for part in haystack.parts)
    for needle in haystack.needles:
        statement = needle.fact.statement
        assert stream[needle.begin : needle.end] == statement
        assert stream[needle.begin - 2 : needle.begin] == "\n\n"
        assert stream[needle.end : needle.end + 2] == "\n\n" or needle.end == len(stream)
        assert stream.count(statement) == 1
        part = haystack.parts[needle.part]
        assert part.begin <= needle.begin < needle.end <= part.end


def test_depths_and_lengths_are_right_within_a_paragraph() -> None:
    haystack = build_haystack(paragraph_books(), TOKENIZER, LENGTHS, FACTS, POSITIONS, seed=1)
    for needle, position in zip(haystack.needles, POSITIONS, strict=True):
        assert abs(needle.begin - position) <= SLACK
        assert abs(needle.depth(16_000) - position / 16_000) <= SLACK / 16_000
    for parts, length in zip(haystack.checkpoints, LENGTHS, strict=True):
        assert abs(haystack.parts[parts - 1].end - length) <= SLACK
    assert haystack.tokens == haystack.parts[-1].end


def test_parts_follow_each_other_and_lose_no_text() -> None:
    shelf = paragraph_books()
    haystack = build_haystack(shelf, TOKENIZER, LENGTHS, FACTS, POSITIONS, seed=1)
    end = 0
    for part in haystack.parts:
        assert part.begin == end
        end = part.end
        assert len(TOKENIZER(part.text, add_special_tokens=False)["input_ids"]) == part.end - part.begin
    for book in shelf:
        text = "".join(part.text for part in haystack.parts if part.source == book.name)
        for fact in FACTS:
            text = text.replace(f"\n\n{fact.statement}", "")
        assert book.text.startswith(text.strip())


def test_seed_decides_the_order_of_books() -> None:
    built = [
        build_haystack(paragraph_books(), TOKENIZER, LENGTHS, FACTS, POSITIONS, seed=seed) for seed in (1, 1, 2, 3)
    ]
    assert built[0] == built[1]
    assert len({tuple(part.source for part in haystack.parts) for haystack in built}) > 1


def test_gold_passage_holds_the_fact_and_about_so_many_tokens() -> None:
    haystack = build_haystack(paragraph_books(), TOKENIZER, LENGTHS, FACTS, POSITIONS, seed=1)
    for needle in haystack.needles:
        passage = haystack.gold_passage(needle, 500)
        assert needle.fact.statement in passage
        assert len(passage) == 500


def test_a_long_paragraph_is_split_at_a_sentence() -> None:
    text = "This sentence has no end of friends. " * 300
    haystack = build_haystack([Book("one", text)], TOKENIZER, [6_000], FACTS[:1], [3_000])
    needle = haystack.needles[0]
    assert abs(needle.begin - 3_000) <= 40
    stream = "".join(part.text for part in haystack.parts)
    assert stream[: needle.begin].rstrip().endswith("friends.")
    assert stream[needle.end :].startswith("\n\nThis sentence")


def test_facts_at_one_place_all_stand() -> None:
    haystack = build_haystack(paragraph_books(), TOKENIZER, [8_000], FACTS[:3], [4_000, 4_001, 4_002])
    stream = "".join(part.text for part in haystack.parts)
    for needle in haystack.needles:
        assert stream[needle.begin : needle.end] == needle.fact.statement
    assert {needle.fact for needle in haystack.needles} == set(FACTS[:3])
    begins = [needle.begin for needle in haystack.needles]
    assert begins == sorted(begins)
    assert begins[-1] - begins[0] <= 2 * SLACK


@pytest.mark.parametrize(
    ("lengths", "positions", "message"),
    [
        ([10**6], [10], "the haystack needs"),
        ([4_000], [4_000], "outside"),
        ([4_000], [-1], "outside"),
        ([8_000, 4_000], [10], "ascending"),
        ([], [10], "ascending"),
        ([4_000], [10, 20], "1 facts for 2 positions"),
    ],
)
def test_bad_input_is_said(lengths: list[int], positions: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_haystack(paragraph_books(), TOKENIZER, lengths, FACTS[:1], positions)

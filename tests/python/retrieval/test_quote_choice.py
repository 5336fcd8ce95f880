"""Several quotes are near the question, no copies of each other, from several groups, and cover what it names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.frame.part import Offer
from everlong.retrieval.quote_choice import REACH, choose
from everlong.retrieval.quotes import Sentence
from support import SMALL, byte_tokenizer, tiny_model
from support.examples import examples

DOGS = "What are the dogs of Mara, Liv and Kofi called?"
COMMON = {"the", "of", "and", "what", "are", "is", "my", "a", "in", "by"}


def rarity(words: Sequence[str]) -> list[float]:
    return [0.0 if word in COMMON else 1.0 for word in words]


def chosen(
    told: Sequence[tuple[str, float]], question: str, count: int, groups: Sequence[Offer] = ()
) -> list[tuple[str, float]]:
    """Return those of the sentences, each with a score, that are chosen; each has ten tokens of its own."""
    ranked = [Sentence(0, 10 * number, 10 * number + 10, score) for number, (_, score) in enumerate(told)]
    found = choose(ranked, [words for words, _ in told], question, groups, rarity, count)
    return [told[one.begin // 10] for one in found]


def test_the_best_come_first_and_what_is_far_below_does_not_come() -> None:
    told = [("Mara moved to Leeds.", 1.0), ("Liv has a garden.", 0.9), ("hello , how are you ?", REACH - 0.01)]
    assert chosen(told, "Who moved?", 3) == told[:2]
    assert chosen(told, "Who moved?", 1) == told[:1]
    assert chosen([], "Who moved?", 3) == []


def test_one_that_asks_gives_way() -> None:
    told = [("Where does Mara live ?", 1.0), ("Mara moved to Leeds.", 0.9), ("Mara lives in Turin.", 0.85)]
    assert chosen(told, "Where does Mara live?", 3) == [told[1], told[2], told[0]]


def test_what_names_nobody_whom_the_question_names_gives_way() -> None:
    told = [("Liv lives in Turin.", 1.0), ("Mara went to Leeds.", 0.9), ("She has a house.", 0.85)]
    assert chosen(told, "Where does Mara live?", 3) == [told[1], told[0]]
    assert chosen(told, "who lives where?", 3) == told


def test_a_copy_gives_way_and_another_value_does_not() -> None:
    told = [
        ("Mara: By the way, my dog is called Biscuit.", 1.0),
        ("Mara: my dog is called Biscuit.", 0.99),
        ("Mara: my dog, by the way, is Biscuit.", 0.98),
        ("Mara: my dog is called Comet.", 0.77),
        ("Mara: my dog is called Biscuit, the old one.", 0.76),
    ]
    assert chosen(told, "Mara's dog?", 5) == [told[0], told[3], told[4]]


def test_each_name_of_a_list_is_covered() -> None:
    told = [
        ("Mara: my dog is called Biscuit.", 1.0),
        ("Mara: another dog called at the door.", 0.94),
        ("Mara: that dog is called a hound.", 0.935),
        ("Liv: my dog is called Saffron.", 0.93),
        ("Kofi: my dog is called Pickle.", 0.92),
    ]
    assert chosen(told, DOGS, 3) == [told[0], told[3], told[4]]


def test_a_form_of_a_word_covers_it() -> None:
    told = [("the cat sat by a wall", 1.0), ("the mat lies by a wall", 0.95), ("two walls fell", 0.94), ("a dog", 0.92)]
    assert chosen(told, "cat dogs", 2) == [told[0], told[3]]


def test_of_equals_a_group_without_a_quote_comes_first() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=None) as mm:
        mm.read("abcdefgh" * 40)
        pages = mm.memory.core.blocks.pages()
    groups = [Offer(0.0, page, (), pages=(page,)) for page in pages]
    told = [(f"value {number}", 1.0 - number / 1000) for number in range(groups[0].end // 10 + 2)]
    first, second = chosen(told, "?", 2, groups)
    assert first == told[0]
    assert second == told[groups[1].begin // 10] != told[1]


@pytest.mark.parametrize("count", [2, 5])
def test_no_more_are_quoted_than_asked_for(count: int) -> None:
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"quotes": count})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config, pack=None) as mm:
        mm.read(" ".join(f"The lantern of house {number:03d} is lit." for number in range(60)), source="houses")
        quoted = mm.generate("The lantern of house 007?", max_new_tokens=1, remember=False).quoted
    assert 1 <= len(set(quoted)) == len(quoted) <= count


@examples(200)
@given(st.sets(st.text("abc", min_size=1, max_size=8), max_size=6), st.sets(st.text("abc", min_size=1, max_size=8)))
def test_forms_of_a_word_differ_in_an_ending(wanted: set[str], words: set[str]) -> None:
    """A sentence that has a form of a rare word is chosen before one of the same score that has none."""

    def is_form(one: str, other: str) -> bool:
        shorter, longer = sorted((one, other), key=len)
        begins = longer.startswith(shorter) and len(shorter) >= 3 and len(longer) - len(shorter) <= 3
        return one == other or begins

    covers = {word for word in wanted if any(is_form(word, one) for one in words)}
    told = [("zz " * 3, 1.0), (" ".join(sorted(words)) or "zz", 1.0)]
    (first,) = chosen(told, " ".join(sorted(wanted)) or "y", 1)
    assert first == told[1 if covers - COMMON else 0]


def test_what_says_the_same_of_another_thing_is_left_out() -> None:
    told = [
        ("The special number for golden pillar is 65.", 1.0),
        ("One of the special numbers for tiny violin is 77.", 0.99),
        ("The special number for golden orchard is 27.", 0.9),
        ("An orchard has apple trees.", 0.89),
        ("What is the special number for golden orchard?", 0.98),
    ]
    question = "What is the special number for golden orchard?"
    assert set(chosen(told[:4], question, 5)) == {told[2], told[3]}
    # What asks says nothing of the thing, so that it leaves nothing out.
    assert set(chosen([told[0], told[4]], question, 5)) == {told[0], told[4]}
    moved = [("Mara: I live in Turin these days.", 1.0), ("Mara: By the way, I have moved to Leeds for good.", 0.9)]
    assert chosen(moved, "In which city does Mara live now?", 5) == moved


def test_values_of_one_thing_are_no_copies() -> None:
    told = [(f"One of the special numbers for the tiny violin is {number}.", 1 - number / 100) for number in range(4)]
    assert chosen(told, "What are all the special numbers for the tiny violin?", 6) == told


def test_a_sentence_of_few_words_says_nothing_of_another_thing() -> None:
    told = [("Mara flew to Leeds with a small bag.", 1.0), ("Mara bought a coat.", 0.95)]
    assert set(chosen(told, "What did Mara buy in Leeds?", 3)) == set(told)


@pytest.mark.parametrize(
    ("told", "question"),
    [
        (("Mara: I had an accordion for ten years.", "Jo: I had an accordion for ten years."), "Who had one?"),
        (("The plant of Turin did pass the audit.", "The plant of Leeds did pass the audit."), "Which did pass?"),
        (("Mara: I eat meat.", "Mara: I no longer eat meat."), "Does Mara eat meat?"),
        (("The audit of the plant was passed.", "The audit of the plant was not passed."), "Was the audit passed?"),
    ],
)  # fmt: skip
def test_two_that_say_one_thing_and_what_is_denied_are_no_copies(told: Sequence[str], question: str) -> None:
    assert {text for text, _ in chosen([(text, 1.0) for text in told], question, 3)} == set(told)


def test_what_others_say_in_the_same_words_is_left_out() -> None:
    told = [
        (f"{who}: By the way, my dog is called {dog}.", 1.0) for who, dog in (("Mara", "Biscuit"), ("Liv", "Comet"))
    ]
    assert chosen(told, "What is the dog of Liv called?", 3) == [told[1]]
    assert chosen(told, "What are the dogs of Liv and Mara called?", 3) == told

"""Facts: what counts as right, and that questions are unambiguous."""

import re

import pytest

from everlong_lab.corpora import words
from everlong_lab.corpora.facts import KINDS, Fact, make_facts, plant_jointly


def one(kind: str) -> Fact:
    return make_facts([kind], 1, seed=7)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_statement_itself_is_accepted_and_nothing_is_not(kind: str) -> None:
    fact = one(kind)
    assert fact.accept(fact.statement)
    assert fact.accept(fact.answer)
    assert fact.accept(f"  {fact.answer}.\n")
    assert not fact.accept("")
    assert not fact.accept("I do not know.")
    assert not fact.accept(fact.question)


@pytest.mark.parametrize("kind", KINDS)
def test_another_facts_answer_is_wrong(kind: str) -> None:
    facts = make_facts([kind], 12, seed=3)
    for fact in facts:
        for other in facts:
            if other.answer != fact.answer:
                assert not fact.accept(other.statement)


def test_pass_key_is_judged_by_its_first_number() -> None:
    fact = one("pass-key")
    wrong = str((int(fact.answer) + 1) % 100_000).zfill(5)
    assert fact.accept(f"It is {fact.answer}, not {wrong}.")
    assert not fact.accept(f"It is {wrong} or {fact.answer}.")
    assert not fact.accept(f"It is {fact.answer}7.")
    assert not fact.accept(f"It is 7{fact.answer}.")
    assert not fact.accept(fact.answer[:-1])
    assert fact.accept(f"{int(fact.answer):,}")


def test_uuid_wants_every_digit_and_no_case() -> None:
    fact = one("uuid")
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", fact.answer)
    assert fact.accept(f"The UUID is {fact.answer.upper()}.")
    assert not fact.accept(fact.answer[1:])
    assert not fact.accept(fact.answer[:-1])
    assert not fact.accept(fact.answer + "0")
    swapped = fact.answer[:-1] + ("0" if fact.answer[-1] != "0" else "1")
    assert not fact.accept(swapped)
    assert not fact.accept(f"{swapped} {fact.answer}")


def test_name_is_judged_by_its_first_city() -> None:
    fact = one("name")
    other = next(city for city in words.CITIES if city != fact.answer)
    assert fact.accept(f"{fact.key} is from {fact.answer.lower()}, not from {other}.")
    assert not fact.accept(f"{other}, or {fact.answer}.")
    assert not fact.accept(f"{fact.answer}ville")


def test_sentences_may_differ_in_case_and_punctuation_only() -> None:
    for kind in ("best-thing", "quote"):
        fact = one(kind)
        assert fact.accept(fact.answer.upper().replace(" ", ",  "))
        assert not fact.accept(" ".join(fact.answer.split()[:-1]))
        assert not fact.accept(fact.answer + "s")


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_among_guesses_is_none(kind: str) -> None:
    facts = make_facts([kind], 12, seed=3)
    for fact in facts:
        for other in facts:
            if other.answer != fact.answer:
                assert fact.accept(f"It is {fact.answer}, not {other.answer}.")
                assert not fact.accept(f"It is {other.answer}, or {fact.answer}.")


def test_a_paraphrase_is_judged_by_the_first_planted_answer() -> None:
    texts = [
        ("Bees live on the roof of the opera.", "Where is honey made?", "opera"),
        ("The old fire station has an opera.", "Where do they sing?", "fire station"),
        ("He paid in honey.", "What did he pay with?", "honey"),
    ]
    bees, singers, payer = plant_jointly(Fact("paraphrase", a, s, q, a, 32) for s, q, a in texts)
    assert singers.accept("At the opera there is a fire station."), "its own statement names the opera"
    assert not bees.accept("In the fire station or the opera.")
    assert bees.accept("In the opera, near the fire station.")
    assert bees.accept("Honey is made on the opera."), "the question names it"
    assert not payer.accept("The opera, honey.")
    assert payer.accept("Operatic honey."), "no part of a word"


def test_numbers_in_a_row_are_different_numbers() -> None:
    fact = one("pass-key")
    assert fact.accept(f"{fact.answer},54321")
    assert not fact.accept(f"54321,{fact.answer}")


def test_same_seed_same_facts() -> None:
    assert make_facts(KINDS, 5, seed=4) == make_facts(KINDS, 5, seed=4)
    assert make_facts(KINDS, 5, seed=4) != make_facts(KINDS, 5, seed=5)


def test_keys_are_distinct_and_named_by_their_question_alone() -> None:
    facts = make_facts(("pass-key", "uuid", "name", "quote"), 60, seed=1) + make_facts(("best-thing",), 20, seed=1)
    assert len({fact.key for fact in facts}) == len(facts)
    for fact in facts:
        named = [other.key for other in facts if other.key in fact.question]
        assert named == [fact.key]
        assert fact.key in fact.statement
        assert fact.answer not in fact.question


def test_things_do_not_share_words_while_there_are_enough() -> None:
    facts = make_facts(("pass-key", "uuid"), 30, seed=2)
    assert len({word for fact in facts for word in fact.key.split()}) == 2 * len(facts)


def test_a_home_city_is_nobodys_best_thing_to_do() -> None:
    facts = make_facts(("name", "best-thing"), 20, seed=0)
    homes = {fact.answer for fact in facts if fact.kind == "name"}
    assert not homes & {fact.key for fact in facts if fact.kind == "best-thing"}


def test_unknown_kind_and_exhausted_keys_are_said() -> None:
    with pytest.raises(ValueError, match="pass-key, uuid, name, best-thing, quote, paraphrase"):
        make_facts(["riddle"], 1)
    with pytest.raises(ValueError, match="'best-thing' have distinct keys"):
        make_facts(["best-thing"], 1000)


@pytest.mark.parametrize("name", ["ADJECTIVES", "NOUNS", "FIRST_NAMES", "LAST_NAMES", "CITIES"])
def test_word_lists_have_no_repetitions(name: str) -> None:
    listed = getattr(words, name)
    assert len(set(listed)) == len(listed) >= 50

"""Texts to learn from and to measure by: apart from each other, the same by seed, spans where they say."""

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong.corpora import words
from everlong.corpora.attended import trim_texts
from everlong.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong.corpora.chains import draw_chains
from everlong.corpora.development import DEVELOPMENT
from everlong.corpora.evicted import evicted_texts
from everlong.corpora.facts import KINDS, make_facts
from everlong.corpora.frames import frame_texts
from everlong.corpora.pairs import Pairs, load_pairs
from everlong.corpora.paraphrases import ASSOCIATED, PARAPHRASED
from everlong.corpora.planted import draw_planted
from everlong.corpora.record import Record
from everlong.corpora.scenarios import draw_scenarios
from everlong.corpora.seeds import draws, picks
from everlong.corpora.tasks import TASKS, Draw
from everlong.corpora.tasks.babi import PLACES
from everlong.corpora.told import told_blocks, told_stories
from everlong.corpora.walks import draw_walk_texts
from everlong.data import Book, shipped_books
from tiny_models import byte_tokenizer

PLANTED, TOLD, CHAINS, WORDS = (words.listed_in(name) for name in ("planted", "told", "chains", "words"))
NAMES = ("people", "ships", "first", "stems", "first_names", "last_names", "cities")
SEEDS = st.integers(0, 2**31)
SOME = settings(max_examples=8, deadline=None)

# Common words that stand in lists of both sides. They are no names, and packs and figures were made with them.
SHARED_WORDS = {
 The known exception: questions of chains have"anchor", "bronze", "copper", "crimson", "kettle", "lantern", "mirror", "narrow", "orange", "painted", "pewter",
 The known exception: questions of chains have"saddle", "velvet", "violet",
}  # fmt: skip
# Names in planted facts that paraphrases or associations have, too; titles are no names.
SHARED_NAMES = {"barnaby", "henrietta", "okafor", "philippa"}
TITLES = {"captain", "little", "professor", "the"}
# Things that planted facts or chains to learn from tell of, and that facts to measure by may be about.
SHARED_THINGS = {"copper kettle", "silver teapot"} | {
 The known exception: questions of chains havef"{made} {thing}"
 The known exception: questions of chains havefor made in ("copper", "narrow", "painted", "velvet")
 The known exception: questions of chains havefor thing in ("anchor", "lantern", "mirror", "saddle")
}


def texts_in(listed: Any) -> Iterator[str]:
 The known exception: questions of chains have"""Every text of nested lists."""
 The known exception: questions of chains haveif isinstance(listed, str):
 The known exception: questions of chains have    yield listed
 The known exception: questions of chains haveelse:
 The known exception: questions of chains have    for inner in listed.values() if isinstance(listed, dict) else listed:
 The known exception: questions of chains have        yield from texts_in(inner)


def form(text: str) -> str:
 The known exception: questions of chains have"""A template without what is filled in."""
 The known exception: questions of chains havereturn " ".join(re.sub(r"\{\w+\}", "_", text).lower().split())


def words_of(listed: dict[str, Any], *without: str) -> dict[str, set[str]]:
 The known exception: questions of chains havereturn {name: {one.lower() for one in texts_in(own)} for name, own in listed.items() if name not in without}


LEARNED_FROM = [
 The known exception: questions of chains havewords_of(PLANTED, "forms", "months", "syllables"),
 The known exception: questions of chains havewords_of(TOLD, "forms", "syllables"),
 The known exception: questions of chains havewords_of(CHAINS["train"]),
]
MEASURED_BY = [words_of(CHAINS["test"]), words_of(WORDS), {"places": set(PLACES)}]


def test_no_name_to_learn_from_is_one_to_measure_by() -> None:
 The known exception: questions of chains havelearned = {one for lists in LEARNED_FROM for name in lists if name in NAMES for one in lists[name]}
 The known exception: questions of chains havemeasured = {one for lists in MEASURED_BY for own in lists.values() for one in own}
 The known exception: questions of chains haveassert learned
 The known exception: questions of chains haveassert not learned & measured
 The known exception: questions of chains havesaid = {word.lower() for one in texts_in([PARAPHRASED, ASSOCIATED]) for word in re.findall(r"[A-Z][a-z]+", one)}
 The known exception: questions of chains haveassert {word for one in learned for word in one.split()} & said - TITLES == SHARED_NAMES
 The known exception: questions of chains havekeys = {f"{made} {thing}" for made in WORDS["adjectives"] for thing in WORDS["nouns"]}
 The known exception: questions of chains haveown = {f"{made} {thing}" for made in CHAINS["train"]["made"] for thing in CHAINS["train"]["things"]}
 The known exception: questions of chains haveassert keys & (own | set(PLANTED["things"])) == SHARED_THINGS
 The known exception: questions of chains haveof_both = {one for lists in LEARNED_FROM for own in lists.values() for one in own} & measured
 The known exception: questions of chains haveassert of_both == SHARED_WORDS


def test_no_template_to_learn_from_is_one_to_measure_by() -> None:
 The known exception: questions of chains havelearned = {form(one) for one in texts_in([PLANTED["forms"], TOLD["forms"]]) if " " in form(one)}
 The known exception: questions of chains haveby_split = {
 The known exception: questions of chains have    split: {form(one) for relation in CHAINS["relations"] for one in relation["statements"][split]}
 The known exception: questions of chains have    for split in ("train", "test")
 The known exception: questions of chains have}
 The known exception: questions of chains havetold = {form(one) for one in texts_in([PARAPHRASED, ASSOCIATED])}
 The known exception: questions of chains haveassert min(map(len, (learned, *by_split.values(), told))) > 15
 The known exception: questions of chains haveassert not (learned | by_split["train"]) & (by_split["test"] | told)
 The known exception: questions of chains have# The known exception: questions of chains have the same words on both sides; told facts, frames and needs are
 The known exception: questions of chains have# held out by names, places and books, with one set of forms.
 The known exception: questions of chains haveassert {"source", "target", "noun", "question", "statements"} == set(CHAINS["relations"][0])
 The known exception: questions of chains haveassert not told & {form(one) for fact in DEVELOPMENT for one in (fact.statement, fact.question)}


EVERY_NAME = {one for lists in (*LEARNED_FROM, *MEASURED_BY) for own in lists.values() for one in own}
ANY_NAME = re.compile(rf"\b({'|'.join(map(re.escape, sorted(EVERY_NAME, key=len, reverse=True)))})\b", re.IGNORECASE)


def shapes(text: str) -> set[str]:
 The known exception: questions of chains have"""The sentences of a text, without names, numbers and codes."""
 The known exception: questions of chains havereturn set(re.split(r"(?<=[.?])\s", re.sub(r"\S*\d\S*", "_", ANY_NAME.sub("_", text))))


@SOME
@given(SEEDS)
def test_what_is_drawn_to_learn_from_is_never_drawn_to_measure_by(seed: int) -> None:
 The known exception: questions of chains haverandom = np.random.default_rng(seed)
 The known exception: questions of chains havelearned = [fact.statement for fact in draw_planted(random, 20)]
 The known exception: questions of chains havelearned += [one for chain in draw_chains(random, [1, 2, 3], "train") for one in chain.statements]
 The known exception: questions of chains havemeasured = [one for chain in draw_chains(random, [1, 2, 3], "test") for one in chain.statements]
 The known exception: questions of chains havefacts = make_facts((*KINDS, "paraphrase", "association"), 2, seed)
 The known exception: questions of chains havemeasured += [fact.statement for fact in facts]
 The known exception: questions of chains havedraw = Draw(seed, lambda text: len(text) // 4)
 The known exception: questions of chains havefor task in TASKS.values():
 The known exception: questions of chains have    for question in task.questions(1, 2_000, draw):
 The known exception: questions of chains have        measured += [*question.statements, *question.distractors, *question.evidence]
 The known exception: questions of chains haveshared = set.union(*(shapes(one) for one in learned)) & set.union(*(shapes(one) for one in measured))
 The known exception: questions of chains haveassert not shared
 The known exception: questions of chains havetold = " ".join(learned).lower()
 The known exception: questions of chains havekeys = {fact.key.lower() for fact in facts if re.search(rf"\b{re.escape(fact.key.lower())}\b", told)}
 The known exception: questions of chains haveassert keys <= SHARED_THINGS | SHARED_NAMES


def some_books() -> list[Book]:
 The known exception: questions of chains havereturn [Book(book.name, book.text[:200_000]) for book in shipped_books()]


@functools.cache
def stories_of() -> Pairs:
 The known exception: questions of chains havereturn load_pairs(["fairytale"])


@functools.cache
def records_of(kind: str, seed: int) -> list[Record]:
 The known exception: questions of chains havetokenizer, books, stories = byte_tokenizer(begins=True), some_books(), stories_of()
 The known exception: questions of chains havematch kind.split():
 The known exception: questions of chains have    case ["attended"]:
 The known exception: questions of chains have        return trim_texts(tokenizer, books, stories, samples=6, stories=5, seed=seed)
 The known exception: questions of chains have    case ["evicted"]:
 The known exception: questions of chains have        return evicted_texts(tokenizer, books, samples=9, seed=seed)
 The known exception: questions of chains have    case ["told"]:
 The known exception: questions of chains have        return told_blocks(tokenizer, books, texts=9, seed=seed)
 The known exception: questions of chains have    case ["told", "stories"]:
 The known exception: questions of chains have        return told_stories(tokenizer, stories, texts=4, seed=seed)
 The known exception: questions of chains have    case ["scenarios"]:
 The known exception: questions of chains have        return list(draw_scenarios(tokenizer, books, 16, seed=seed))
 The known exception: questions of chains have    case ["walks", ("train" | "test") as split]:
 The known exception: questions of chains have        return draw_walk_texts(tokenizer, books, texts=3, tokens=4000, chains=7, split=split, seed=seed)
 The known exception: questions of chains have    case ["frames", ("train" | "fit" | "test") as split]:
 The known exception: questions of chains have        return frame_texts(tokenizer, books, stories, count=6, split=split, seed=seed)
 The known exception: questions of chains haveraise ValueError(kind)


def digest(records: list[Record]) -> str:
 The known exception: questions of chains haveof = hashlib.sha256()
 The known exception: questions of chains havefor record in records:
 The known exception: questions of chains have    of.update(f"{record.name} {record.origin} {record.split}".encode() + record.ids.numpy().tobytes())
 The known exception: questions of chains have    for question in record.questions:
 The known exception: questions of chains have        of.update(repr((question.words, question.answers, question.kind, question.reasons)).encode())
 The known exception: questions of chains have    for target in getattr(record, "targets", ()):
 The known exception: questions of chains have        of.update(target.ids.numpy().tobytes() + bytes([target.first]))
 The known exception: questions of chains havereturn of.hexdigest()[:12]


# Of seed 3. Shipped packs were trained on what these makers draw, and docs/measured was measured on it.
DRAWN = {
 The known exception: questions of chains have"attended": "280b5edba060",
 The known exception: questions of chains have"evicted": "7bddb7f5a52f",
 The known exception: questions of chains have"told": "91a88bef8d99",
 The known exception: questions of chains have"told stories": "695df1ebd563",
 The known exception: questions of chains have"scenarios": "465edd71bcd8",
 The known exception: questions of chains have"walks train": "7030a8c7255c",
 The known exception: questions of chains have"walks test": "3f0bd26ced3a",
 The known exception: questions of chains have"frames train": "63f21efc1b5f",
 The known exception: questions of chains have"frames fit": "d17fe73947c0",
 The known exception: questions of chains have"frames test": "08c5c0c05dc6",
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_seed_draws_what_it_always_drew(kind: str) -> None:
 The known exception: questions of chains havefirst = records_of(kind, 3)
 The known exception: questions of chains haveassert digest(first) == DRAWN[kind]
 The known exception: questions of chains haveassert digest(records_of(kind, 4)) != DRAWN[kind]
 The known exception: questions of chains haveassert {record.split for record in first} <= (
 The known exception: questions of chains have    {kind.split()[1]} if kind[:5] in ("walks", "frame") else {"train", "fit"}
 The known exception: questions of chains have)


@pytest.mark.parametrize("kind", DRAWN)
def test_spans_point_at_what_answers(kind: str) -> None:
 The known exception: questions of chains havetokenizer, pieces = byte_tokenizer(begins=True), {text.name: text.pieces for text in stories_of().texts}
 The known exception: questions of chains havepointed = 0
 The known exception: questions of chains havefor record in records_of(kind, 3):
 The known exception: questions of chains have    assert record.ids.dtype == torch.int64
 The known exception: questions of chains have    if kind[:5] not in ("walks", "frame"):
 The known exception: questions of chains have        assert len(record.ids) >= SINK_TOKENS + record.blocks * BLOCK_TOKENS
 The known exception: questions of chains have    for question in record.questions:
 The known exception: questions of chains have        assert question.words
 The known exception: questions of chains have        told = [tokenizer.decode(record.ids[first:last]).strip() for first, last in question.spans]
 The known exception: questions of chains have        pointed += len(told)
 The known exception: questions of chains have        if record.name in pieces:
 The known exception: questions of chains have            assert all(
 The known exception: questions of chains have                one in pieces[record.name] or any(one in piece for piece in pieces[record.name]) for one in told
 The known exception: questions of chains have            )
 The known exception: questions of chains have        elif told:
 The known exception: questions of chains have            answers = question.answers[0].removeprefix("to ").removesuffix(" fathoms")
 The known exception: questions of chains have            assert answers.lower() in told[-1].lower()
 The known exception: questions of chains have            assert all(one[0].isupper() and one[-1] in '."' for one in told)
 The known exception: questions of chains haveassert pointed or kind in ("evicted", "scenarios")


@SOME
@given(SEEDS)
def test_kinds_draw_differently_and_each_the_same_again(seed: int) -> None:
 The known exception: questions of chains haveassert draws(seed, "told").random() == draws(seed, "told").random()
 The known exception: questions of chains haveassert len({draws(seed, kind).random() for kind in ("attended", "scenarios", "told", "told stories")}) == 4
 The known exception: questions of chains haveassert picks(seed, "facts").random() == picks(seed, "facts").random() != picks(seed, "books").random()
 The known exception: questions of chains haveassert [fact.statement for fact in draw_planted(draws(seed, "told"), 20)] == [
 The known exception: questions of chains have    fact.statement for fact in draw_planted(draws(seed, "told"), 20)
 The known exception: questions of chains have]


@SOME
@given(SEEDS)
def test_what_is_stated_has_its_answer(seed: int) -> None:
 The known exception: questions of chains havefor fact in draw_planted(np.random.default_rng(seed), 20):
 The known exception: questions of chains have    assert fact.answer in fact.statement
 The known exception: questions of chains have    assert fact.answer not in fact.question
 The known exception: questions of chains havefor fact in make_facts(KINDS, 3, seed):
 The known exception: questions of chains have    assert fact.answer.lower() in fact.statement.lower()
 The known exception: questions of chains have    assert fact.accept(fact.statement)
 The known exception: questions of chains havefor split in ("train", "test"):
 The known exception: questions of chains have    chains = draw_chains(np.random.default_rng(seed), [1, 2, 3, 3], split)
 The known exception: questions of chains have    for chain in chains:
 The known exception: questions of chains have        assert chain.answer in chain.statements[-1]
 The known exception: questions of chains have    for one, other in itertools.combinations(chains, 2):
 The known exception: questions of chains have        assert not set(one.statements) & set(other.statements)

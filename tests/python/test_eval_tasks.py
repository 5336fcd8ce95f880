"""Tasks: their texts answer their questions by an independent reading, and their scorer knows right from wrong."""

from __future__ import annotations

import collections
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong.eval.tasks import SUITES, TASKS, Draw, Question, tasks_of

LENGTH = 32_768
COUNT = 3
ALL = sorted(TASKS)


def questions_of(name: str, seed: int = 0) -> list[Question]:
    return TASKS[name].questions(COUNT, LENGTH, Draw(seed, lambda text: len(text) // 4 + 1))


def text_of(question: Question) -> str:
    return "\n".join([*question.statements, *question.distractors, *(d.text for d in question.documents)])


@pytest.mark.parametrize("name", ALL)
def test_right_answers_score_one_and_wrong_ones_nothing(name: str) -> None:
    asked = questions_of(name)
    assert len(asked) == COUNT
    for question, other in zip(asked, [*asked[1:], asked[0]], strict=True):
        assert question.score(f"The answer is {', '.join(question.answers)}.") == 1.0
        assert question.score("") == question.score("I do not know.") == 0.0
        assert question.score(question.text) == 0.0, "repeating the question is no answer"
        if not set(question.answers) & set(other.answers):
            assert question.score(" ".join(other.answers)) == 0.0


@pytest.mark.parametrize("name", ALL)
def test_an_answer_among_guesses_is_none(name: str) -> None:
    for question in questions_of(name):
        known = re.findall(question.candidates, text_of(question), re.IGNORECASE)
        named = {found.lower() for found in re.findall(question.candidates, question.text, re.IGNORECASE)}
        right = {answer.lower() for answer in question.answers}
        wrong = [found for found in dict.fromkeys(known) if found.lower() not in right | named]
        if len(wrong) >= len(right):
            guesses = " ".join([*wrong[: len(right)], *question.answers])
            assert question.score(guesses) == 0.0


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_settled_score_stays_whatever_follows(name: str, data: st.DataObject) -> None:
    question = data.draw(st.sampled_from(questions_of(name)))
    known = re.findall(question.candidates, text_of(question) + question.text, re.IGNORECASE)
    piece = st.sampled_from([*question.answers, *known[:20], "The answer is", "and", "12", "1,", "New", "a-b", "."])
    pieces = data.draw(st.lists(piece, min_size=1, max_size=30))
    joints = data.draw(
        st.lists(st.sampled_from([" ", "\n", ", ", "", "-"]), min_size=len(pieces), max_size=len(pieces))
    )
    reply = "".join(part + joint for part, joint in zip(pieces, joints, strict=True))
    settled = [end for end in range(len(reply) + 1) if question.settled(reply[:end])]
    if settled:
        assert {question.score(reply[:end]) for end in range(settled[0], len(reply) + 1)} == {question.score(reply)}
        assert settled == list(range(settled[0], len(reply) + 1))


@pytest.mark.parametrize("name", ALL)
def test_a_whole_answer_settles_and_a_cut_one_does_not(name: str) -> None:
    for question in questions_of(name):
        answer = " ".join(question.answers)
        assert question.settled(f"{answer} and so on")
        assert not question.settled(answer), "the last word may go on"


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_questions(name: str) -> None:
    assert questions_of(name) == questions_of(name)
    assert questions_of(name) != questions_of(name, seed=1)


@pytest.mark.parametrize("name", ALL)
def test_what_is_planted_holds_the_answers_and_the_evidence(name: str) -> None:
    for question in questions_of(name):
        text = text_of(question)
        assert all(answer in text for answer in question.answers)
        assert all(any(part in document.text for document in question.documents) for part in question.evidence)
        assert all(any(document.source == source for document in question.documents) for source in question.sources)


def test_part_of_the_answers_scores_its_share() -> None:
    question = questions_of("niah_multivalue")[0]
    first, second, *_ = question.answers
    assert question.score(f"They are {first} and {second}.") == 0.5
    assert question.score(f"{first}, {first}, {second}") == 0.5
    assert question.score(f"{int(first):,}") == 0.25  # a thousands separator is none of the answer's


def test_a_variable_chain_leads_to_the_value() -> None:
    for question in questions_of("vt"):
        values: dict[str, str] = {}
        for statement in question.statements:
            name, source = re.fullmatch(r"VAR (\w+) = (?:VAR )?(\w+)\.", statement).groups()
            values[name] = values.get(source, source)
        assert len(set(values.values())) == 1
        assert set(question.answers) == set(values)
        assert next(iter(values.values())) in question.text


def test_the_common_words_are_the_most_common() -> None:
    for question in questions_of("cwe"):
        counts = collections.Counter(re.findall(r"^\d+\. (\w+)$", question.documents[0].text, re.MULTILINE))
        top = counts.most_common(11)
        assert {word for word, _ in top[:10]} == set(question.answers)
        assert top[9][1] > top[10][1], "no tie decides"


def test_the_frequent_words_are_the_most_frequent() -> None:
    for question in questions_of("fwe"):
        counts = collections.Counter(question.documents[0].text.partition(". ")[2].split())
        top = counts.most_common(4)
        assert tuple(word for word, _ in top[:3]) == question.answers
        assert top[0][1] > top[1][1] > top[2][1] > top[3][1]


def test_key_value_objects_are_json_with_the_answers() -> None:
    for question in questions_of("kv_retrieval"):
        pairs = json.loads(question.documents[0].text)
        key = re.search(r'"([^"]+)"', question.text).group(1)
        assert (pairs[key],) == question.answers


def test_facts_answer_only_together() -> None:
    """A small reader of who carries what where, which knows nothing of the generator."""
    for name in ("babi_1", "babi_2", "babi_3"):
        for question in questions_of(name):
            rooms = [re.search(r"to the (\w+)", line) for line in question.statements]
            visited = [match.group(1) for match in rooms if match]
            expected = visited[-2] if name == "babi_3" else visited[-1]
            assert question.answers == (expected,)
            if name == "babi_3":
                assert visited[-1] in question.text


def test_the_later_session_holds_what_is_true_now() -> None:
    for question in questions_of("dialogue_update"):
        days = [document.source for document in question.documents]
        assert days == sorted(days)
        assert question.answers[0] in question.documents[-1].text
        assert question.answers[0] not in question.documents[0].text


def test_a_session_that_is_named_is_the_one_with_the_answer() -> None:
    for question in questions_of("dialogue_session"):
        named = [document for document in question.documents if document.source in question.sources]
        assert len(named) == 1
        assert len(question.documents) == 2
        assert question.answers[0] in named[0].text


def test_an_unknown_name_lists_what_exists() -> None:
    assert [task.name for task in tasks_of("vt")] == ["vt"]
    assert {task.name for suite in ("ruler", "infinite", "babi", "dialogue") for task in SUITES[suite]} == set(TASKS)
    with pytest.raises(ValueError, match=r"'rulr'.*ruler.*niah_single_1.*dialogue_update"):
        tasks_of("rulr")

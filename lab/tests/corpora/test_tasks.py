"""Tasks: their texts answer their questions by an independent reading, and their scorer knows right from wrong."""

from __future__ import annotations

import collections
import json
import re
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong_lab.corpora.patterns import LONG_NUMBER, NUMBER
from everlong_lab.corpora.tasks import SUITES, TASKS, Draw, Question, tasks_of
from support.examples import examples

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
    others = [other for seed in range(1, 5) for other in questions_of(name, seed)]
    for question in asked:
        disjoint = [other for other in others if not set(question.answers) & set(other.answers)]
        assert len(disjoint) >= COUNT
        assert question.score(f"The answer is {', '.join(question.answers)}.") == 1.0
        assert question.score("") == question.score("I do not know.") == 0.0
        assert question.score(question.text) == 0.0, "repeating the question is no answer"
        assert {question.score(" ".join(other.answers)) for other in disjoint} == {0.0}


@pytest.mark.parametrize("name", ALL)
def test_an_answer_among_guesses_is_none(name: str) -> None:
    """Guesses are what else the text has, and the answers of other questions."""
    others = [answer for seed in range(1, 5) for question in questions_of(name, seed) for answer in question.answers]
    for question in questions_of(name):
        known = re.findall(question.candidates, text_of(question), re.IGNORECASE)
        known += [answer for answer in others if re.fullmatch(question.candidates, answer, re.IGNORECASE)]
        named = {found.lower() for found in re.findall(question.candidates, question.text, re.IGNORECASE)}
        right = {answer.lower() for answer in question.answers}
        wrong = [found for found in dict.fromkeys(known) if found.lower() not in right | named][: len(right)]
        assert len(wrong) == len(right)
        assert question.score(" ".join(wrong)) == 0.0
        assert question.score(" ".join([*wrong, *question.answers])) == 0.0
        assert question.score(" ".join([*question.answers, *wrong])) == 1.0


@pytest.mark.parametrize("name", ALL)
@examples(20)
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
        told = [*question.statements, *(document.text for document in question.documents)]
        assert all(any(part in one for one in told) for part in question.evidence)
        assert all(any(document.source == source for document in question.documents) for source in question.sources)


def test_part_of_the_answers_scores_its_share() -> None:
    question = questions_of("niah_multivalue")[0]
    first, second, *_ = question.answers
    assert question.score(f"They are {first} and {second}.") == 0.5
    assert question.score(f"{first}, {first}, {second}") == 0.5
    assert question.score(f"{int(first):,}") == 0.25  # a thousands separator is none of the answer's


@pytest.mark.parametrize("name", ["niah_multivalue", "niah_multiquery"])
def test_numbers_of_a_list_are_told_apart_from_its_items(name: str) -> None:
    for question in questions_of(name):
        answers = question.answers
        assert question.score("\n".join(f"{n}. x: {answer}" for n, answer in enumerate(answers, 1))) == 1.0
        assert question.score(",".join(answers)) == 1.0
        assert question.score("; ".join(f"{int(answer):,}" for answer in answers)) == 1.0
        wrong = [str(int(answer) // 10 + 100_000) for answer in answers]
        assert question.score("\n".join(f"{n}. x: {value}" for n, value in enumerate([*wrong, *answers], 1))) == 0.0


@pytest.mark.parametrize(
    ("text", "numbers", "long_numbers"),
    [
        ("1234567,2345678", ["1234567", "2345678"], ["1234567", "2345678"]),
        ("1,234,567 and 12,345", ["1,234,567", "12,345"], ["1,234,567"]),
        ("123,456", ["123,456"], ["123,456"]),
        ("1. 2345678, 2. 1", ["1", "2345678", "2", "1"], ["2345678"]),
        ("12345,678901", ["12345", "678901"], ["678901"]),
        ("1,2345", ["1", "2345"], []),
        ("1,234,5678", ["1,234", "5678"], []),
    ],
)
def test_a_comma_in_a_number_stands_before_three_digits(text: str, numbers: list[str], long_numbers: list[str]) -> None:
    assert re.findall(NUMBER, text) == numbers
    assert re.findall(LONG_NUMBER, text) == long_numbers


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


@pytest.mark.parametrize("length", [8_192, 131_072])
def test_the_head_of_the_word_list_is_no_answer(length: int) -> None:
    scores = []
    for seed in range(40):
        (question,) = TASKS["cwe"].questions(1, length, Draw(seed, lambda text: len(text) // 4 + 1))
        listed = re.findall(r"^\d+\. (\w+)$", question.documents[0].text, re.MULTILINE)
        counts = collections.Counter(listed)
        common, rare = (
            [count for word, count in counts.items() if (word in question.answers) == known] for known in (True, False)
        )
        assert len(common) == 10
        assert min(common) >= 3 > max(rare) or min(common) >= 2 * max(rare)
        assert len(rare) >= 10 * len(common)
        scores.append(question.score(" ".join(listed)))
    assert statistics.fmean(scores) <= 0.2


@pytest.mark.parametrize("name", ["niah_multikey_2", "niah_multikey_3", "kv_retrieval"])
@pytest.mark.parametrize(("length", "tokens"), [(4_096, 192), (131_072, 4_096), (1 << 20, 8_192)])
def test_tables_are_several_times_what_is_recalled(name: str, length: int, tokens: int) -> None:
    def count(text: str) -> int:
        return len(text) // 4 + 1

    for question in TASKS[name].questions(2, length, Draw(0, count)):
        assert 0.9 * tokens <= count(question.documents[0].text) <= 1.4 * tokens  # rounded line by line


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


def room_in(lines: Sequence[str], question: str) -> str | None:
    """A small reader of who carries what where, which knows nothing of the generator; None where it cannot tell."""
    rooms: dict[str, list[str]] = collections.defaultdict(list)  # of a person or a thing, in order
    carried: dict[str, str] = {}  # thing: person
    for line in lines:
        if took := re.fullmatch(r"(.+) picked up the (.+)\.", line):
            person, thing = took.groups()
            carried[thing] = person
            rooms[thing] += rooms[person][-1:]
        elif went := re.fullmatch(r"(.+) went to the (\w+)\.", line):
            person, room = went.groups()
            for one in (person, *(thing for thing, carrier in carried.items() if carrier == person)):
                rooms[one].append(room)
    asked = re.fullmatch(r"Where (?:is|was) (?:the )?(.+?)(?: before the (\w+))?\?", question)
    visited = rooms[asked.group(1)]
    if asked.group(2) is None:
        return visited[-1] if visited else None
    number = visited.index(asked.group(2)) if asked.group(2) in visited else 0
    return visited[number - 1] if number else None


@pytest.mark.parametrize(("name", "needed"), [("babi_1", 1), ("babi_2", 2), ("babi_3", 3)])
def test_without_any_one_of_the_needed_statements_the_answer_is_another_or_none(name: str, needed: int) -> None:
    for question in (question for seed in range(20) for question in questions_of(name, seed)):
        told = [*question.distractors, *question.statements]
        assert room_in(told, question.text) == room_in(question.evidence, question.text) == question.answers[0]
        assert len(question.evidence) == needed
        assert set(question.evidence) <= set(question.statements)
        for statement in question.evidence:
            assert room_in([line for line in told if line != statement], question.text) != question.answers[0]


@pytest.mark.parametrize("name", ["babi_1", "babi_2", "babi_3"])
def test_the_question_does_not_say_who_else_and_others_move_too(name: str) -> None:
    for question in questions_of(name):
        people = {re.match(r"\w+ \w+", line).group(0) for line in question.statements}
        assert len(people) == 1
        assert (people.pop() in question.text) == (name == "babi_1")
        others = {re.match(r"\w+ \w+", line).group(0) for line in question.distractors}
        assert len(others) == 1
        assert len(re.findall(r"went to the", "".join(question.statements))) >= 3
        assert len(re.findall(r"went to the", "".join(question.distractors))) == 2


def test_two_rooms_in_turn_are_judged_by_the_first() -> None:
    for question in questions_of("babi_3"):
        right = question.answers[0]
        later = re.search(r"before the (\w+)", question.text).group(1)
        assert question.score(f"The {right} and the {later}.") == 1.0
        assert question.score(f"The {later} and the {right}.") == 0.0
        assert question.score(f"Before the {later} it was in the {right}.") == 1.0, "that repeats the question"


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

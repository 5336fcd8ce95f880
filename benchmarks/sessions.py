"""Write conversations of many sessions, and questions to them, for questions.py: facts that change, who said what and
when, and questions that two to four sessions answer together.

    python benchmarks/sessions.py QUESTIONS.json [--sessions 40] [--seed 1] [--lists]

Eight friends talk with each other. In a session somebody states a fact, and all around it is small talk of TIAGE's
dialogues, without lines that say where somebody lives, what they do, or what their animals are called. Where somebody
moves or takes another job, the last session counts. With --lists, each of eight topics comes up in some sessions, and
the questions are: in which? Forty further questions are `elsewhere`: no session answers them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import random
import re
from typing import Any

from everlong_lab.data.qa import qa_dialogues

FRIENDS = ("Mara", "Tobias", "Ines", "Kofi", "Liv", "Rafael", "Yuki", "Oskar")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
CITIES = ("Lisbon", "Gdansk", "Turin", "Bergen", "Ghent", "Split", "Malmo", "Graz", "Porto", "Leeds", "Basel", "Cork")
JOBS = (
    "a beekeeper", "a bus driver", "a nurse", "a bookbinder", "a surveyor", "a pastry cook", "a piano tuner",
    "a locksmith", "a florist", "a translator", "a glazier", "a midwife",
)  # fmt: skip
PETS = ("Biscuit", "Comet", "Juniper", "Pickle", "Saffron", "Tango", "Waffle", "Zephyr")
TOLD = (
    ("my boiler broke down and I sat in the cold", "the boiler broke down"),
    ("I lost my wallet on the night train", "a wallet was lost on a train"),
    ("I won a ham in the raffle", "a ham was won in a raffle"),
    ("somebody stole the saddle of my bicycle", "a bicycle's saddle was stolen"),
    ("I planted forty tulips behind the house", "tulips were planted"),
    ("I burnt the soup for my mother's birthday", "the soup was burnt"),
    ("I learned to juggle with four oranges", "juggling was learned"),
    ("I slept in a lighthouse by the sea", "somebody slept in a lighthouse"),
)
NOBODY_SAID = (  # what is asked of each friend, and no session tells
    "When is {}'s appointment with the dentist?",
    "How much did {} pay for the new sofa?",
    "What is the name of {}'s landlord?",
    "On which floor is {}'s flat?",
    "Which size of shoes does {} wear?",
)
TOPICS = ("regatta", "landslide", "windmill", "eclipse", "tortoise", "cathedral", "glacier", "accordion")
_MOST_LISTED = 6  # sessions that one topic comes up in

_PERSONAL = re.compile(
    r"\b(live[sd]?|living|mov(e|ed|ing)|from|born|grew|city|town|state|country|work(s|ed|ing)?|jobs?|career|employed"
    r"|am an?|i'm an?|dogs?|cats?|pets?|pupp(y|ies)|kittens?|named?|called)\b"
)


def drawn(sessions: int, draw: random.Random) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the sessions by name, and the questions."""
    cities = [draw.sample(CITIES, 2) for _ in FRIENDS]
    jobs = [draw.sample(JOBS, 2) for _ in FRIENDS]
    tellers = draw.sample(FRIENDS, len(FRIENDS))
    earlier = [(friend, f"I live in {cities[at][0]} these days.") for at, friend in enumerate(FRIENDS)]
    earlier += [(friend, f"I work as {jobs[at][0]}.") for at, friend in enumerate(FRIENDS)]
    later = [(friend, f"I have moved to {cities[at][1]} for good.") for at, friend in enumerate(FRIENDS)]
    later += [(friend, f"I changed my job, and work as {jobs[at][1]} now.") for at, friend in enumerate(FRIENDS)]
    anywhen = [(friend, f"my dog is called {pet}.") for friend, pet in zip(FRIENDS, PETS, strict=True)]
    anywhen += [(who, f"{told}.") for who, (told, _) in zip(tellers, TOLD, strict=True)]
    draw.shuffle(anywhen)
    half = len(anywhen) // 2
    # Who says what, in this order.
    said = [*interleaved(earlier, anywhen[:half], draw), *interleaved(later, anywhen[half:], draw)]
    talk = itertools.cycle(
        [[words for words, _ in turns if not _PERSONAL.search(words)] for _, turns in qa_dialogues("tiage-dev")]
    )
    texts: dict[str, str] = {}
    held: dict[tuple[str, str], tuple[str, str]] = {}
    for number in range(sessions):
        facts = said[number * len(said) // sessions : (number + 1) * len(said) // sessions]
        month = MONTHS[number * len(MONTHS) // sessions]
        name = f"session {number + 1}"
        texts[name] = session(f"Session {number + 1}, in {month}", facts, next(talk) + next(talk), draw)
        held |= {fact: (name, month) for fact in facts}
    questions = []

    def ask(kind: str, words: str, facts: list[tuple[str, str]], answers: list[str], evidence: list[str]) -> None:
        sources = list(dict.fromkeys(held[fact][0] for fact in facts))
        row = {"kind": kind, "question": words, "sources": sources, "answers": answers, "evidence": evidence}
        questions.append(row)

    for at, friend in enumerate(FRIENDS):
        lives = [fact for fact in said if fact[0] == friend and ("live in" in fact[1] or "moved to" in fact[1])]
        works = [fact for fact in said if fact[0] == friend and "work as" in fact[1]]
        now, before = cities[at][1], cities[at][0]
        ask("changed", f"In which city does {friend} live now?", lives[1:], [now], [lives[1][1]])
        ask("changed", f"What is {friend}'s job now?", works[1:], [jobs[at][1][2:]], [works[1][1]])
        ask("several", f"In which two cities has {friend} lived?", lives, [before, now], [one for _, one in lives])
    for who, (told, so) in zip(tellers, TOLD, strict=True):
        fact = (who, f"{told}.")
        ask("who", f"Who said that {so}?", [fact], [who], [told])
        ask("when", f"In which month did {who} tell that {so}?", [fact], [held[fact][1]], [told, held[fact][1]])
    for count in (2, 3, 4):
        for _ in range(4):
            them = draw.sample(range(len(FRIENDS)), count)
            names = ", ".join(FRIENDS[at] for at in them[:-1]) + " and " + FRIENDS[them[-1]]
            facts = [(FRIENDS[at], f"my dog is called {PETS[at]}.") for at in them]
            words = f"What are the dogs of {names} called?"
            ask("several", words, facts, [PETS[at] for at in them], [one for _, one in facts])
    return texts, questions


def elsewhere() -> list[str]:
    """Return questions about the friends that no session answers."""
    return [words.format(friend) for words in NOBODY_SAID for friend in FRIENDS]


def listed(texts: dict[str, str], draw: random.Random) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return sessions in which topics come up, and what each question for such a topic has to list."""
    lines = {name: text.split("\n") for name, text in texts.items()}
    questions = []
    for number, topic in enumerate(TOPICS):
        names = draw.sample(list(texts), 2 + number % (_MOST_LISTED - 1))
        for name in names:
            who = draw.choice(FRIENDS)
            lines[name].insert(draw.randrange(3, len(lines[name])), f"{who}: And then there is the {topic}, of course.")
        names.sort(key=list(texts).index)
        words = f"In which sessions does the {topic} come up?"
        numbers = [name.split()[1] for name in names]
        rows = {"sources": names, "answers": numbers, "evidence": [f"the {topic}, of course"], "only": r"\d+"}
        questions.append({"kind": "list", "question": words, **rows})
    return {name: "\n".join(turns) for name, turns in lines.items()}, questions


def interleaved(some: list[Any], others: list[Any], draw: random.Random) -> list[Any]:
    mixed = [*some, *others]
    draw.shuffle(mixed)
    return mixed


def session(head: str, facts: list[tuple[str, str]], talk: list[str], draw: random.Random) -> str:
    """Return the turns of a session, each with who speaks. A friend who states a fact speaks in small talk, too."""
    friends = list(dict.fromkeys(who for who, _ in facts))
    friends += draw.sample([one for one in FRIENDS if one not in friends], max(0, 2 - len(friends)))
    lines = [f"{friends[at % len(friends)]}: {words}" for at, words in enumerate(talk)]
    for who, what in facts:
        lines.insert(draw.randrange(2, len(lines)), f"{who}: By the way, {what}")
    return "\n".join([head, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=pathlib.Path)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", action="store_true", help="ask in which sessions topics come up")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    texts, questions = drawn(given.sessions, draw)
    if given.lists:
        texts, questions = listed(texts, draw)
    rows = {"texts": texts, "questions": questions, "elsewhere": [] if given.lists else elsewhere()}
    given.questions.write_text(json.dumps(rows, indent=1), "utf-8")
    print(f"{len(texts)} sessions, {sum(map(len, texts.values()))} characters, {len(questions)} questions")


if __name__ == "__main__":
    main()

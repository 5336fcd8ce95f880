"""How much of what was found a model is to read: page groups and their neighbours, by how well it answers.

    python benchmarks/groups.py FOLDER --model MODEL.gguf [--tokens 4096] [--questions 12] [--groups 4 8 16]

A memory in FOLDER reads books with planted facts, and FairytaleQA's test stories, each of so many tokens. Every
question is asked with each number of groups and of neighbours, one arm after the other. Planted facts are right or not.
A question to a story scores the F1 of the words that reply and answer share. FOLDER/groups.json has the replies after
each question, and a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import everlong
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.models import load
from everlong_lab.eval.statistics import mean_and_stderr
from everlong_lab.parts.towers.measure import QuestionMeasured, planted_facts, read_planted, read_stories, to_answer
from everlong_lab.parts.towers.measure_answers import ToAnswer, drawn_evenly

_STORY_TOKENS = 24

Scores = dict[str, dict[str, tuple[float, str]]]  # by question and arm: the score, and the reply


def read(folder: pathlib.Path, model: tuple[Any, Any], config: everlong.MemoryConfig, tokens: int, facts: int) -> None:
    """Read both texts, and keep the questions to them."""
    found: list[QuestionMeasured] = []
    planted = [fact for fact in planted_facts(development=False) if fact.kind != "association"][:facts]
    with everlong.MemoryModel(*model, folder / "memory.everlong", config) as mm:
        read_planted(mm, planted, [tokens], None, found.extend)
        found += read_stories(mm, "test", tokens=2 * tokens)
        print(mm.stream_tokens, "tokens were read", file=sys.stderr, flush=True)
    asked = [{"words": one.words, "kind": one.kind, "spans": one.spans, "answers": one.answers} for one in found]
    (folder / "questions.json").write_text(json.dumps(asked), "utf-8")


def questions_of(folder: pathlib.Path, count: int) -> list[ToAnswer]:
    """Return `count` questions of each kind at most, the kinds in turn."""
    said = json.loads((folder / "questions.json").read_text("utf-8"))
    asked = [
        QuestionMeasured(
            one["words"], one["kind"], tuple((int(a), int(b)) for a, b in one["spans"]), tuple(one["answers"])
        )
        for one in said
    ]
    drawn = drawn_evenly(to_answer(asked, development=False), count)
    kinds = [[one for one in drawn if one.kind == kind] for kind in dict.fromkeys(one.kind for one in drawn)]
    turns = itertools.zip_longest(*kinds)
    return [one for turn in turns for one in turn if one is not None]


def answered(mm: everlong.MemoryModel, question: ToAnswer) -> tuple[float, str]:
    """Return the score of an answer, and its text. Nothing is remembered."""
    most = _STORY_TOKENS if question.fact is None else question.fact.max_new_tokens
    reply = mm.generate(question.words, max_new_tokens=most, remember=False, **AS_MEASURED).text
    return question.score(reply), reply


def rows_of(scores: Scores, kinds: dict[str, str], base: str) -> Iterator[str]:
    """Yield the table: each arm's score, and its difference to the first arm with the standard error."""
    names = list(dict.fromkeys(kinds[words] for words in scores))
    counts = {name: sum(kinds[words] == name for words in scores) for name in names}
    yield "| groups x neighbours | " + " | ".join(f"{name} ({counts[name]})" for name in names) + " | all |"
    yield "|---|" + "---|" * (len(names) + 1)
    for arm in next(iter(scores.values())):
        cells = []
        for name in (*names, None):
            of_kind = [by_arm for words, by_arm in scores.items() if name in (None, kinds[words])]
            mean = statistics.fmean(by_arm[arm][0] for by_arm in of_kind)
            less, error = mean_and_stderr(by_arm[arm][0] - by_arm[base][0] for by_arm in of_kind)
            cells.append(f"{mean:.2f}" if arm == base else f"{mean:.2f} ({less:+.2f} ± {error:.2f})")
        yield f"| {arm} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of each of the two texts")
    parser.add_argument("--questions", type=int, default=12, help="of each kind")
    parser.add_argument("--minutes", type=float, default=60, help="no question is begun after so many")
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--set", action="append", default=[], help="setting of MemoryConfig, group.name=value")
    given = parser.parse_args()
    started = time.monotonic()
    given.folder.mkdir(parents=True, exist_ok=True)
    model = load(given.model, given.dtype)
    config = everlong.MemoryConfig().with_settings(given.set)
    if not (given.folder / "questions.json").exists():
        read(given.folder, model, config, given.tokens, given.questions)
    file = given.folder / "groups.json"
    scores: Scores = json.loads(file.read_text("utf-8")) if file.exists() else {}
    arms = {f"{groups} x {sides}": (groups, sides) for groups in given.groups for sides in given.neighbours}
    questions = questions_of(given.folder, given.questions)
    with everlong.MemoryModel(*model, given.folder / "memory.everlong", config) as mm:
        for question in questions:
            if question.words in scores or time.monotonic() - started > 60 * given.minutes:
                continue
            by_arm = {}
            for arm, (groups, sides) in arms.items():
                mm.config = config.changed(search={"groups": groups, "neighbours": sides})
                by_arm[arm] = answered(mm, question)
            scores[question.words] = by_arm
            file.write_text(json.dumps(scores, indent=1), "utf-8")
            seconds = time.monotonic() - started
            print(
                f"{len(scores)} questions, {seconds:.0f} s",
                question.kind,
                {arm: score for arm, (score, _) in by_arm.items()},
                file=sys.stderr,
                flush=True,
            )
    kinds = {question.words: question.kind for question in questions}
    print("\n".join(rows_of(scores, kinds, next(iter(arms)))))


if __name__ == "__main__":
    main()

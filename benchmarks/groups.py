"""How much of what was found a model is to read: page groups and their neighbours, by how likely the right answer is.

    python benchmarks/groups.py FOLDER --model MODEL.gguf [--tokens 4096] [--questions 12] [--groups 4 8 16]

A memory in FOLDER reads books with planted facts, and FairytaleQA's test stories, each of so many tokens. Every
question is asked with each number of groups and of neighbours. The model does not answer freely: it is led through the
right answer, and the log-probability of its tokens is the score, in nats a token. So a few questions tell arms apart,
and no wording is judged. FOLDER/groups.json has the scores after each question, and a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers

import everlong
from everlong.eval.decoding import AS_MEASURED
from everlong.eval.statistics import mean_and_stderr
from everlong.models import load
from everlong.parts.towers.measure import Asked, planted_facts, read_planted, read_stories, to_answer
from everlong.parts.towers.measure_answers import ToAnswer, drawn_evenly

Scores = dict[str, dict[str, float]]  # by question and arm: nats a token of the right answer


class Led(transformers.LogitsProcessor):
    """Lets a model say the given tokens and no others, and notes how likely each was."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.nats: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = len(self.nats)
        if at >= len(self.ids):
            return scores
        self.nats.append(float(torch.log_softmax(scores[0].float(), -1)[self.ids[at]]))
        led = torch.full_like(scores, -torch.inf)
        led[:, self.ids[at]] = 0.0
        return led


def read(folder: pathlib.Path, model: tuple[Any, Any], config: everlong.MemoryConfig, tokens: int, facts: int) -> None:
    """Read both texts, and keep the questions to them."""
    found: list[Asked] = []
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
        Asked(one["words"], one["kind"], tuple((int(a), int(b)) for a, b in one["spans"]), tuple(one["answers"]))
        for one in said
    ]
    drawn = drawn_evenly(to_answer(asked, development=False), count)
    kinds = [[one for one in drawn if one.kind == kind] for kind in dict.fromkeys(one.kind for one in drawn)]
    turns = itertools.zip_longest(*kinds)
    return [one for turn in turns for one in turn if one is not None]


def nats_of(mm: everlong.MemoryModel, question: ToAnswer) -> float:
    """Return the mean log-probability of the right answer's tokens."""
    right = question.fact.answer if question.fact is not None else question.answers[0]
    led = Led(mm.tokenizer(right, add_special_tokens=False)["input_ids"])
    chosen = {**AS_MEASURED, "max_new_tokens": len(led.ids), "remember": False}
    mm.generate(question.words, logits_processor=[led], **chosen)
    return statistics.fmean(led.nats)


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
            mean = statistics.fmean(by_arm[arm] for by_arm in of_kind)
            less, error = mean_and_stderr(by_arm[arm] - by_arm[base] for by_arm in of_kind)
            cells.append(f"{mean:.3f}" if arm == base else f"{mean:.3f} ({less:+.3f} ± {error:.3f})")
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
                by_arm[arm] = nats_of(mm, question)
            scores[question.words] = by_arm
            file.write_text(json.dumps(scores, indent=1), "utf-8")
            seconds = time.monotonic() - started
            print(f"{len(scores)} questions, {seconds:.0f} s", question.kind, by_arm, file=sys.stderr, flush=True)
    kinds = {question.words: question.kind for question in questions}
    print("\n".join(rows_of(scores, kinds, next(iter(arms)))))


if __name__ == "__main__":
    main()

"""Measure answers as well as passages: what the model says from its memory, and with the right passage alone.

A planted fact is answered where the reply gives its answer and no other one first (corpora/facts.py). A question to a
story has answers in free words. Its score is the F1 of the words that reply and answer share, for the best of the
answers (Rajpurkar et al., EMNLP 2016).
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from everlong.generation.eval_decoding import AS_MEASURED
from everlong.generation.memory_model import MemoryModel
from everlong_lab.corpora.facts import Fact
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.statistics import mean_interval

MEMORY, GOLD = "from memory", "right passage alone"
_NEW_TOKENS = 32  # of an answer to a story's question
_WORD = re.compile(r"[^\W_]+")
_ARTICLES = ("a", "an", "the")


@dataclasses.dataclass(frozen=True)
class ToAnswer:
    """A question, what answers it, and the spans of the stream that say so."""

    words: str
    kind: str
    spans: tuple[tuple[int, int], ...]
    answers: tuple[str, ...] = ()  # to a story's question
    fact: Fact | None = None  # the planted fact

    def score(self, reply: str) -> float:
        if self.fact is not None:
            return float(self.fact.accept(reply))
        return max((words_f1(reply, answer) for answer in self.answers), default=0.0)


@dataclasses.dataclass(frozen=True)
class AnswerScore:
    kind: str
    words: str
    replies: dict[str, str]  # MEMORY, GOLD
    scores: dict[str, float]
    found: bool  # whether some of the right passage came back


def drawn_evenly(questions: Sequence[ToAnswer], count: int, seed: int = 0) -> list[ToAnswer]:
    """Draw at most `count` questions of each kind."""
    rng = np.random.default_rng(seed)
    chosen: list[ToAnswer] = []
    for kind in dict.fromkeys(question.kind for question in questions):
        of_kind = [question for question in questions if question.kind == kind]
        chosen += [of_kind[at] for at in sorted(rng.choice(len(of_kind), min(count, len(of_kind)), replace=False))]
    return chosen


def answer_all(mm: MemoryModel, questions: Sequence[ToAnswer]) -> list[AnswerScore]:
    """Answer each question from the memory, and by plain transformers with the right passage. Nothing is remembered."""
    rows = []
    for question in questions:
        most = _NEW_TOKENS if question.fact is None else question.fact.max_new_tokens
        answer = mm.generate(question.words, max_new_tokens=most, remember=False, **AS_MEASURED)
        stream = mm.frame.os.stream
        passage = "\n".join(
            mm.tokenizer.decode(mm.memory.core.blocks.token_ids(stream, *span)) for span in question.spans
        )
        replies = {
            MEMORY: answer.text,
            GOLD: answer_from_passage(mm.model, mm.tokenizer, passage, question.words, most),
        }
        scores = {name: question.score(reply) for name, reply in replies.items()}
        came = [recall.span for recall in answer.recalled]
        found = any(begin < last and first < end for begin, end in came for first, last in question.spans)
        rows.append(AnswerScore(question.kind, question.words, replies, scores, found))
    return rows


def answer_shares(rows: Sequence[AnswerScore]) -> dict[str, dict[str, tuple[float, float, float, int]]]:
    """Return by kind and way: the mean score, its 95 % interval, and the number of answers."""
    shares: dict[str, dict[str, tuple[float, float, float, int]]] = {}
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        for way in (MEMORY, GOLD):
            scores = [row.scores[way] for row in of_kind]
            shares.setdefault(kind, {})[way] = (sum(scores) / len(scores), *mean_interval(scores), len(scores))
    return shares


def words_f1(reply: str, answer: str) -> float:
    """Return the F1 of the words of both, without articles; 0 where one of them has none."""
    said, wanted = _counted(reply), _counted(answer)
    shared = sum((said & wanted).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / said.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)


def _counted(text: str) -> collections.Counter[str]:
    return collections.Counter(word for word in _WORD.findall(text.lower()) if word not in _ARTICLES)

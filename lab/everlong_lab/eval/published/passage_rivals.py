"""Answers from text in the prompt, beside a memory's: the same passages, text retrieval, the right passages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from everlong.generation.eval_decoding import AS_MEASURED
from everlong.text.encoding import encode
from everlong_lab.eval.baselines.bm25 import Bm25
from everlong_lab.eval.baselines.minilm import MiniLm
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.published.example import Example, Text

# Reciprocal rank fusion (Cormack et al. 2009): 1 / (60 + rank) of each list.
_FUSION_RANK = 60


@dataclasses.dataclass(frozen=True)
class Passages:
    """What stands in the prompt, best first."""

    texts: tuple[str, ...]
    sources: tuple[str, ...]
    tokens: int


class PassageSearch:
    """BM25 and MiniLM over whole texts, each a vector of its own, fused by rank."""

    def __init__(self, texts: Sequence[Text], tokenizer: Any) -> None:
        """Raise MissingPackageError where one of the two is not installed."""
        self._texts = texts
        self._tokens = [len(encode(tokenizer, text.text)) for text in texts]
        self._parts = (Bm25(), MiniLm())
        for part in self._parts:
            part.index([text.text for text in texts])

    def find(self, question: str, tokens: int) -> Passages:
        """Return the best texts that fit into so many tokens together, at least one."""
        fused = np.zeros(len(self._texts))
        for part in self._parts:
            ranks = np.argsort(np.argsort(-part.scores(question), kind="stable"), kind="stable")
            fused += 1 / (_FUSION_RANK + 1 + ranks)
        chosen: list[int] = []
        for index in np.argsort(-fused, kind="stable"):
            if chosen and sum(self._tokens[one] for one in chosen) + self._tokens[index] > tokens:
                break
            chosen.append(int(index))
        found = [self._texts[index] for index in chosen]
        return Passages(
            tuple(text.text for text in found),
            tuple(text.source for text in found),
            sum(self._tokens[index] for index in chosen),
        )


class PassageRivals:
    """Chooses the passages of each rival for questions of one collection of texts."""

    def __init__(self, texts: Sequence[Text], tokenizer: Any) -> None:
        self._texts, self._tokenizer = {text.source: text for text in texts}, tokenizer
        self._search: PassageSearch | None = None

    def passages(self, rival: str, example: Example, recalled: Mapping[str, Any]) -> Passages:
        """Return what a rival reads. `recalled`: the row of the memory's own answer to the question."""
        return _CHOICES[rival](self, example, recalled)

    def same(self, example: Example, recalled: Mapping[str, Any]) -> Passages:
        """Return what came back."""
        return Passages(tuple(recalled["passages"]), tuple(recalled["recalled"]), recalled["recalled_tokens"])

    def retrieved(self, example: Example, recalled: Mapping[str, Any]) -> Passages:
        """Return what text retrieval finds, in as many tokens as came back."""
        if self._search is None:
            self._search = PassageSearch(list(self._texts.values()), self._tokenizer)
        return self._search.find(example.question, recalled["recalled_tokens"])

    def gold(self, example: Example, recalled: Mapping[str, Any]) -> Passages:
        """Return the texts that answer the question."""
        texts = tuple(self._texts[source].text for source in example.evidence)
        return Passages(texts, example.evidence, sum(len(encode(self._tokenizer, text)) for text in texts))


_Choice = Callable[[PassageRivals, Example, Mapping[str, Any]], Passages]
_CHOICES: dict[str, _Choice] = {
    "same text": PassageRivals.same,
    "minilm + bm25": PassageRivals.retrieved,
    "gold": PassageRivals.gold,
}
PASSAGE_RIVALS = tuple(_CHOICES)


def answer_by_text(model: Any, tokenizer: Any, example: Example, passages: Passages) -> str:
    """Answer from passages in the prompt, the best one last."""
    context = "\n\n".join(text.strip() for text in reversed(passages.texts))
    how = {**AS_MEASURED, "max_new_tokens": example.max_new_tokens}
    return answer_from_passage(model, tokenizer, context, example.question, **how)

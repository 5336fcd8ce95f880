"""Answers a question over everything: from notes of all text, and from how often its words occur."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from everlong.frame.frame import Frame
from everlong.generation.answer import Answer
from everlong.generation.answering import Answering
from everlong.generation.progress import Progress, telling
from everlong.memory.where import Where
from everlong.retrieval.notes import Notes, take_notes, words_in
from everlong.retrieval.recall import Recall
from everlong.retrieval.searcher import Searcher
from everlong.text.encoding import encode
from everlong.text.prompt import Prompt

_COUNTED = 20  # words whose counts stand before a question that counts
_LONGEST = 40  # letters of such a word
_COUNTS = re.compile(
    r"\b(how (many|often)|(most|least) (common|frequent|often|used)|count|number of times|frequen\w+)\b", re.IGNORECASE
)


class Surveying:
    """Surveys one frame's memory. For the frame's thread alone."""

    def __init__(self, frame: Frame, searcher: Searcher, answering: Answering, tokenizer: Any) -> None:
        self._frame, self._searcher, self._answering, self._tokenizer = frame, searcher, answering, tokenizer

    def answer(
        self,
        question: str,
        prompt: Prompt,
        max_new_tokens: int | None,
        where: Where,
        note_tokens: int | None,
        progress: Progress,
        generation: Mapping[str, Any],
    ) -> Answer:
        """Do as `MemoryModel.survey`, whose prompt for the question this is."""
        config = self._searcher.config
        room = config.frame.recalled_tokens if note_tokens is None else note_tokens
        with telling(progress, "survey") as told:
            notes = take_notes(
                self._frame.memory.core, self._tokenizer, question, where, self._frame.os.stream, room, told.more
            )
        whole = prompt.behind(encode(self._tokenizer, _said(notes, question)))
        answering = self._answering.answer(whole, max_new_tokens, [], where, None, generation)
        answer = self._answering.whole(answering, where, remember=False)
        lines = tuple(note.text for note in notes.lines)
        return dataclasses.replace(answer, recalled=self._cited(notes), quoted=lines)

    def _cited(self, notes: Notes) -> tuple[Recall, ...]:
        """Return the lines, those with the most of the question first."""
        best = sorted(notes.lines, key=lambda note: -note.share)
        return tuple(
            self._searcher.citing.line(note.stream, (note.begin, note.end), note.share, "survey") for note in best
        )


def _said(notes: Notes, question: str) -> str:
    """Return what stands before the question."""
    paragraphs = ["\n".join(" ".join(note.text.split()) for note in notes.lines)] if notes.lines else []
    if _COUNTS.search(question):
        asked = set(words_in(question))
        words = (
            one for one in notes.counts if one[0] not in asked and not one[0].isdecimal() and len(one[0]) <= _LONGEST
        )
        most = ", ".join(f"{word} {count}" for word, count in itertools.islice(words, _COUNTED))
        paragraphs.append(f"The words that occur most often, with how often: {most}.")
    return "".join(f"{one}\n\n" for one in paragraphs)

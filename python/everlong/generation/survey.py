"""Answers a question over everything: from notes of all text, and from how often its words occur."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from everlong.frame.frame import Frame
from everlong.generation.answer import Answer
from everlong.generation.answer_generator import AnswerGenerator
from everlong.generation.exclusive import CallGuard, exclusive
from everlong.generation.progress import Progress, report_progress
from everlong.generation.validation import require_generation_arguments
from everlong.memory import Memory
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.notes import Notes, take_notes
from everlong.retrieval.searcher import Searcher
from everlong.text.encoding import encode
from everlong.text.messages import question_of
from everlong.text.words import words_apart

_COUNTED = 20  # words whose counts stand before a question that counts
_LONGEST = 40  # letters of such a word
_COUNTS = re.compile(
    r"\b(how (many|often)|(most|least) (common|frequent|often|used)|count|number of times|frequen\w+)\b", re.IGNORECASE
)


class Survey:
    """What a MemoryModel does with questions over everything."""

    memory: Memory
    tokenizer: Any
    frame: Frame
    searcher: Searcher
    _answering: AnswerGenerator
    _guard: CallGuard

    @exclusive
    def survey(
        self,
        /,
        question: str,
        max_new_tokens: int | None = None,
        *,
        system: str | None = None,
        chat: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        where: Where = EVERYWHERE,
        note_tokens: int | None = None,
        progress: Progress = False,
        **generation: Any,
    ) -> Answer:
        """Answer a question over everything: how many, all of which, the most frequent. Nothing is remembered.

        Every line of the text that passes `where` is looked at, in words. Lines that have most of what the question
        names are noted, and lines that those lead to, up to `note_tokens` in all (None: the recalled zone's). The
        answer is made from these notes alone. Notes of several sources stand below their names. To a question that
        counts, the most frequent words are told with their counts. `quoted` has the notes, and `recalled` cites them.
        `progress` is as for `read`. Other arguments and errors are as for `generate`.
        """
        require_generation_arguments(where, generation, max_new_tokens)
        if note_tokens is not None and note_tokens < 1:
            raise ValueError(f"note_tokens is {note_tokens}, expected 1 or more")
        prompt = self._answering.prompt(question_of(question, None, system), chat, chat_template_kwargs)
        room = self.searcher.config.frame.recalled_tokens if note_tokens is None else note_tokens
        core, stream = self.memory.core, self.frame.os.stream
        with report_progress(progress, "survey") as reporter:
            notes = take_notes(core, self.tokenizer, question, where, stream, room, reporter.advance)
        whole = prompt.behind(encode(self.tokenizer, _format_notes(notes, question)))
        answering = self._answering.answer(whole, max_new_tokens, [], where, None, generation)
        answer = self._answering.whole(answering, where, remember=False)
        best = sorted(notes.lines, key=lambda note: -note.share)
        lines = ((one.stream, (one.begin, one.end), one.share) for one in best)
        cited = self.searcher.citing.lines(lines, "survey")
        return dataclasses.replace(answer, recalled=cited, quoted=tuple(note.text for note in notes.lines))


def _format_notes(notes: Notes, question: str) -> str:
    """Return what stands before the question."""
    several = len({note.source for note in notes.lines}) > 1
    paragraphs = []
    for source, lines in itertools.groupby(notes.lines, key=lambda note: note.source):
        head = [f"{source}:"] if several else []
        paragraphs.append("\n".join([*head, *(" ".join(note.text.split()) for note in lines)]))
    if _COUNTS.search(question):
        questions = set(words_apart(question))
        words = (
            one
            for one in notes.counts
            if one[0] not in questions and not one[0].isdecimal() and len(one[0]) <= _LONGEST
        )
        most = ", ".join(f"{word} {count}" for word, count in itertools.islice(words, _COUNTED))
        paragraphs.append(f"The words that occur most often, with how often: {most}.")
    return "".join(f"{one}\n\n" for one in paragraphs)

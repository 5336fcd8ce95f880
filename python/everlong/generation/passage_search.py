"""Finds passages of all that a memory holds, for who reads them otherwise: frameworks, and people."""

from __future__ import annotations

import dataclasses

from everlong.frame.frame import Frame
from everlong.generation.answer_generator import AnswerGenerator
from everlong.generation.exclusive import CallGuard, exclusive
from everlong.memory.where import EVERYWHERE, Where, require_where
from everlong.retrieval.recall import Recall
from everlong.retrieval.searcher import Searcher
from everlong.text.messages import question_of


class PassageSearch:
    """What a MemoryModel does with a question that it does not answer itself."""

    frame: Frame
    searcher: Searcher
    _answering: AnswerGenerator
    _guard: CallGuard

    @exclusive
    def find(self, question: str, *, k: int = 4, where: Where = EVERYWHERE) -> tuple[Recall, ...]:
        """Return the `k` passages that are nearest to a question, best first. Keep nothing.

        `recall` returns what would come back into the frame: not what stands there now, and no more than there is room
        for. This looks at all that was archived. Raises what `recall` raises, and ValueError for a `k` below 1.
        """
        require_where(where)
        if k < 1:
            raise ValueError(f"k is {k}, expected 1 or more")
        prompt = self._answering.prompt(question_of(question, None, None), False, None)
        prompt = dataclasses.replace(prompt, before=None)  # who asks here has no talk with the model
        return self.searcher.citing.places(self.searcher.anywhere(prompt, k, where).offers)

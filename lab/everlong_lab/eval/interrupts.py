"""An answer ends where its score is settled, for every baseline alike: more words only take time."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from everlong_lab.corpora.tasks import Question


class StopWhenScored(transformers.StoppingCriteria):
    """Stops one greedy answer, from its first token on; every answer needs a new one."""

    def __init__(self, question: Question, tokenizer: Any) -> None:
        self._question = question
        self._tokenizer = tokenizer
        self._prompt: int | None = None  # tokens before the answer

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return [1]: whether nothing that may follow can change the answer's score. input_ids [1, prompt + answer]."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1] - 1
        reply = self._tokenizer.decode(input_ids[0, self._prompt :], skip_special_tokens=True)
        return torch.tensor([self._question.settled(reply)], device=input_ids.device)

"""Full attention of plain transformers over as much as the model's own window holds: beginning and end of the text."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from everlong.attach import trained_window
from everlong.config import MemoryConfig
from everlong.eval.baselines.base import QUESTION_ROOM, Baseline, Reading, Reply, generation_of
from everlong.eval.haystack import Part
from everlong.eval.plan import Asked
from everlong.prompt import with_start

_QUESTION = "(question)"
_CHUNK_TOKENS = 512


@dataclasses.dataclass
class FullAttention(Baseline):
    """Where the text is longer than the window its middle is cut out. Its keys and values serve every question."""

    name: ClassVar[str] = "full"
    window: int | None = None  # tokens; the model's own

    def __post_init__(self) -> None:
        if self.window is not None and self.window <= QUESTION_ROOM:
            raise ValueError(
                f"full: window is {self.window}, expected more than the {QUESTION_ROOM} tokens of question and answer"
            )

    def check(self, model: Any, tokenizer: Any, config: MemoryConfig) -> None:
        trained = trained_window(model)
        if self.window is not None and self.window > trained:
            raise ValueError(f"full: window is {self.window}, the model was trained for {trained} tokens")
        if self.room(model, tokenizer) < 1:
            raise ValueError(f"full: a window of {self.window or trained} tokens has no room for a text")

    def room(self, model: Any, tokenizer: Any) -> int:
        """Tokens of text in the window."""
        before, _ = _around_question(tokenizer)
        return (self.window or trained_window(model)) - QUESTION_ROOM - len(tokenizer(before)["input_ids"])

    def prepare(self, reading: Reading) -> None:
        self._reading = reading
        tokenizer = reading.tokenizer
        before, self._after = _around_question(tokenizer)
        self._kept, text = _without_middle(reading.texts, self.room(reading.model, tokenizer))
        plain = tokenizer(before + text + "\n\n", add_special_tokens=False, verbose=False)["input_ids"]
        self._ids = with_start(tokenizer, plain)
        self._cache = _prefill(reading.model, self._ids)

    @property
    def truncated(self) -> bool:
        """Whether the text was longer than the window."""
        return len(self._kept) > 1

    def answer(self, asked: Asked) -> Reply:
        question, reading = asked.question, self._reading
        tail = reading.tokenizer(question.text + self._after, add_special_tokens=False)["input_ids"]
        generation = generation_of(question, reading.tokenizer)
        cache = copy.deepcopy(self._cache)
        text = continue_prompt(reading.model, reading.tokenizer, self._ids + tail, cache, **generation)
        return Reply(text, self._kept)

    def held_bytes(self) -> int:
        return len(self._ids) * self._reading.kv_token_bytes


def _around_question(tokenizer: Any) -> tuple[str, str]:
    """What the chat template puts before and after a user's text."""
    if not getattr(tokenizer, "chat_template", None):
        return "", ""
    turn = [{"role": "user", "content": _QUESTION}]
    before, after = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True).split(_QUESTION)
    return before, after


def _without_middle(texts: Sequence[Part], tokens: int) -> tuple[tuple[tuple[int, int], ...], str]:
    """The first and the last half of `tokens` tokens, with their spans; all of the text where it is short enough."""
    end = texts[-1].end
    spans = ((0, end),) if end <= tokens else ((0, tokens // 2), (end - tokens // 2, end))
    pieces = []
    for first, last in spans:
        for part in texts:
            begin, stop = max(first, part.begin), min(last, part.end)
            if begin < stop:
                pieces.append(part.between(begin, stop))
    return spans, "\n\n".join(pieces)


@torch.inference_mode()
def _prefill(model: Any, ids: Sequence[int]) -> Any:
    """The cache after `ids`, read in chunks: attention over all of them at once takes memory by the square."""
    cache: Any = None
    rows = torch.tensor([list(ids)], device=model.device)
    for chunk in torch.split(rows, _CHUNK_TOKENS, dim=1):
        cache = model(input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
    return cache


@torch.inference_mode()
def continue_prompt(model: Any, tokenizer: Any, ids: Sequence[int], cache: Any, **generation: Any) -> str:
    """Greedy answer to `ids`, of which `cache` holds the first ones; further arguments are those of `generate`."""
    rows = torch.tensor([list(ids)], device=model.device)
    output = model.generate(
        input_ids=rows,
        attention_mask=torch.ones_like(rows),
        past_key_values=cache,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        **generation,
    )
    answer: str = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
    return answer

"""Full attention of plain transformers over as much as the model's own window holds: beginning and end of the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers.cache_utils import DynamicLayer

from everlong.config import MemoryConfig
from everlong.kv_cache.own_layers import OwnLayers
from everlong.models.attach import trained_window
from everlong.text.prompt import with_start
from everlong_lab.corpora.haystack import HaystackPiece
from everlong_lab.eval.baselines.base import QUESTION_ROOM, Baseline, ReadTexts, Reply, generation_of
from everlong_lab.eval.gold import continue_prompt, prefilled
from everlong_lab.eval.plan import PlannedRun

_QUESTION = "(question)"


@dataclasses.dataclass
class FullAttention(Baseline):
    """Where the text is longer than the window, its middle is cut out. Its keys and values serve every question."""

    name: ClassVar[str] = "full"
    window: int | None = None  # tokens; by default the model's own window

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
        """Return the tokens of text in the window."""
        before, _ = _around_question(tokenizer)
        return (self.window or trained_window(model)) - QUESTION_ROOM - len(tokenizer(before)["input_ids"])

    def prepare(self, reading: ReadTexts) -> None:
        self._reading = reading
        tokenizer = reading.tokenizer
        before, self._after = _around_question(tokenizer)
        self._kept, text = _without_middle(reading.texts, self.room(reading.model, tokenizer))
        plain = tokenizer(before + text + "\n\n", add_special_tokens=False, verbose=False)["input_ids"]
        self._ids = with_start(tokenizer, plain)
        self._prefix = Prefix(prefilled(reading.model, self._ids)[0])

    def answer(self, run: PlannedRun) -> Reply:
        question, reading = run.question, self._reading
        tail = reading.tokenizer(question.text + self._after, add_special_tokens=False)["input_ids"]
        generation = generation_of(question, reading.tokenizer)
        cache = self._prefix.cache_behind_it()
        text = continue_prompt(reading.model, reading.tokenizer, self._ids + tail, cache, **generation)
        return Reply(text, self._kept)

    def held_bytes(self) -> int:
        return len(self._ids) * self._reading.kv_token_bytes


class Prefix:
    """A cache that holds a text. Every question goes on from it, and nothing of the text is copied."""

    def __init__(self, cache: Any) -> None:
        """Take over `cache`, a DynamicCache of transformers."""
        self._cache, self._full, other = cache, [], {}
        for index, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
                cache.layers[index] = _RoomyLayer(layer.keys, layer.values)
                self._full.append(cache.layers[index])
            else:
                other[index] = layer
        self._other = OwnLayers(other, {})
        self._state = self._other.snapshot()

    def cache_behind_it(self) -> Any:
        """Return the cache as it was taken over, to go on from. This invalidates what went on from it before."""
        for layer in self._full:
            layer.rewind()
        self._other.restore(self._state)
        return self._cache


class _RoomyLayer(DynamicLayer):
    """Keys and values [B, H, T, D] with room behind them. The layer of transformers copies all of
    them for every token.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers has no types there
        self._prefix = keys.shape[2]
        self.lazy_initialization(keys, values)
        self._k, self._v = _with_capacity(keys, QUESTION_ROOM), _with_capacity(values, QUESTION_ROOM)
        self._end_at(self._prefix)

    def rewind(self) -> None:
        """Forget all but what it was made with."""
        self._end_at(self._prefix)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.get_seq_length()
        last = first + key_states.shape[-2]
        if last > self._k.shape[-2]:
            more = last - first + QUESTION_ROOM
            self._k, self._v = _with_capacity(self._k, more), _with_capacity(self._v, more)
        self._k[:, :, first:last] = key_states
        self._v[:, :, first:last] = value_states
        return self._end_at(last)

    def _end_at(self, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._k[:, :, :end], self._v[:, :, :end]
        self.keys, self.values = keys, values
        return keys, values


def _with_capacity(states: torch.Tensor, tokens: int) -> torch.Tensor:
    batch, heads, _, dim = states.shape
    return torch.cat([states, states.new_empty(batch, heads, tokens, dim)], dim=2)


def _around_question(tokenizer: Any) -> tuple[str, str]:
    """Return what the chat template puts before and after a user's text."""
    if not getattr(tokenizer, "chat_template", None):
        return "", ""
    turn = [{"role": "user", "content": _QUESTION}]
    before, after = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True).split(_QUESTION)
    return before, after


def _without_middle(texts: Sequence[HaystackPiece], tokens: int) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the first and the last half of `tokens` tokens, with their spans; all of the text where it is short
    enough.
    """
    end = texts[-1].end
    spans = ((0, end),) if end <= tokens else ((0, tokens // 2), (end - tokens // 2, end))
    pieces = []
    for first, last in spans:
        for part in texts:
            begin, stop = max(first, part.begin), min(last, part.end)
            if begin < stop:
                pieces.append(part.between(begin, stop))
    return spans, "\n\n".join(pieces)

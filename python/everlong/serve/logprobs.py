"""How likely each token of an answer was, and which others were: OpenAI's `logprobs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from everlong.text.encoding import decode_text


@dataclasses.dataclass(frozen=True)
class TokenLogprob:
    """A token, the logarithm of its probability, and the most likely tokens in its place, best first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return it as OpenAI's clients read it."""
        others = [_top_logprobs(token, logprob) for token, logprob in self.top]
        return {**_top_logprobs(self.token, self.logprob), "top_logprobs": others}


class LogprobRecorder:
    """A logits processor of transformers that changes nothing. It sees the model's scores before sampling does."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._row: torch.Tensor | None = None  # of the token that is chosen next
        self._found: list[tuple[int, float, list[int], list[float]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._choose(int(input_ids[0, -1]))
        self._row = torch.log_softmax(scores[0].float(), dim=-1)
        return scores

    def scored(self, tokenizer: Any, last: int, ends: set[int], cut: str | None) -> tuple[TokenLogprob, ...]:
        """Return the answer's tokens. `last` is the newest one; `ends` end an answer, and say nothing.

        `cut`: what is left of an answer that was cut off at a stop string.
        """
        self._choose(last)
        found = self._found[: -1 if self._found and self._found[-1][0] in ends else None]
        while cut is not None and found and len(decode_text(tokenizer, [one[0] for one in found[:-1]])) >= len(cut):
            found.pop()

        def named(ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[str, float], ...]:
            return tuple((decode_text(tokenizer, [id]), value) for id, value in zip(ids, logprobs, strict=True))

        return tuple(TokenLogprob(decode_text(tokenizer, [id]), at, named(ids, top)) for id, at, ids, top in found)

    def _choose(self, token: int) -> None:
        """Note which token was chosen by the newest scores."""
        if self._row is None:
            return
        top = self._row.topk(self._top)
        self._found.append((token, float(self._row[token]), top.indices.tolist(), top.values.tolist()))
        self._row = None


def _top_logprobs(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, -9999.0), "bytes": list(token.encode())}

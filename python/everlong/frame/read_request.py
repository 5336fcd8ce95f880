"""What is to be put into a frame, and what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

import everlong._core as _core

Origin = Literal["read", "prompt", "generated"]


@dataclasses.dataclass(frozen=True, eq=False)
class Computed:
    """What the model computed for some tokens."""

    logits: torch.Tensor  # [1, V] of the last token, or [n, V] of all
    hidden: Mapping[int, torch.Tensor]  # by layer, [n, hidden size] of every token; only the layers that were asked for


@dataclasses.dataclass(frozen=True, eq=False)
class ReadRequest:
    """Tokens for the end of a stream, and what is wanted of them.

    `ids` [n], n >= 1, or soft tokens: `inputs_embeds` [n, hidden size]. Where a memory keeps token ids, `ids` stand for
    soft tokens; without `ids`, a special token of the tokenizer does. `hidden_layers` are counted as `HiddenTap` does.
    """

    ids: torch.Tensor | None
    origin: Origin
    inputs_embeds: torch.Tensor | None = None
    keep_all: bool = False  # logits of all tokens, and not of the last alone
    hidden_layers: Sequence[int] = ()
    chunk_tokens: int | None = None  # tokens a forward, at most; None: as configured
    # Of a generated token: whether what the Memory OS asks for is going to be recalled. The frame returns it then, and
    # else passes it over.
    recall: bool = False
    precomputed: Computed | None = None  # what `Frame.compute_ahead` gave for the one token that is put in
    progress: Callable[[int], None] | None = None  # called with the tokens of each chunk
    tap: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext  # entered around each chunk


@dataclasses.dataclass(frozen=True, eq=False)
class Forward(Computed):
    """What the model computed for the tokens that were put into a frame, and what is to be done next."""

    recalls: Sequence[_core.Recall] = ()  # to be carried out in order, before anything else is put in

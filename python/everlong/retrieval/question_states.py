"""What a model computes for a question's tokens, and what a search reads of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.parts import Parts, needs_of
from everlong.frame.read_request import ReadRequest
from everlong.frame.taps import HiddenTap, QueryTap, rotate_queries
from everlong.kv_cache.steps import run_to_end
from everlong.models.attach import AttachedModel
from everlong.models.model_interface import ModelInterface
from everlong.retrieval.profile import IndexProfile

# Index parts that compare a question's mean query with blocks.
_BY_MEAN = {kind.name for kind in _core.index_kinds() if "mean_query" in kind.inputs}

# The most tokens of a question that are searched by. Each costs time, and common ones say little of a page.
MOST_QUERY_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class QuestionStates:
    """What the model computes for a question's tokens, by layer, on the CPU."""

    queries: Mapping[int, torch.Tensor]  # un-rotated q [T, Hq, D]
    hidden: Mapping[int, torch.Tensor]  # hidden states [T, hidden size]

    def only(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> QuestionStates:
        """Return the states of these tokens alone."""
        chosen = torch.from_numpy(rows)
        return QuestionStates(
            {layer: q[chosen] for layer, q in self.queries.items()},
            {layer: states[chosen] for layer, states in self.hidden.items()},
        )


@dataclasses.dataclass(frozen=True)
class TappedQuestion:
    """A question as it was read for its search."""

    token_ids: np.ndarray[Any, np.dtype[np.int32]]  # [T]
    states: QuestionStates  # of these tokens
    profile: IndexProfile | None  # heads that the queries are for

    def only(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> TappedQuestion:
        """Return it with these tokens alone."""
        return dataclasses.replace(self, token_ids=self.token_ids[rows], states=self.states.only(rows))


def query_layers(served: ModelInterface, profile: IndexProfile | None, config: MemoryConfig, parts: Parts) -> set[int]:
    """Return the layers whose queries a search reads; none for a model that is served by text alone."""
    layers: set[int] = set()
    if served.keyed is None:
        return layers
    if profile is not None and "heads" in config.search.index:
        layers |= {layer for layer, _, _ in profile.heads}
    if needs_mean_query(config, parts):
        layers.add(served.layers - 1)
    return layers


def needs_mean_query(config: MemoryConfig, parts: Parts) -> bool:
    """Return whether a search compares a question's mean query with blocks, or topics."""
    return bool(_BY_MEAN & set(config.search.index)) or any(needs_of(one).mean_query for one in parts.retrievers)


def head_queries(
    served: AttachedModel, queries: Mapping[int, torch.Tensor], profile: IndexProfile
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return [T, heads, D]: q of the retrieval heads, each rotated to the profile's fixed distance from every key."""
    rotated = [
        rotate_queries(served.table(layer), queries[layer][:, head : head + 1], profile.query_distance)
        for layer, head, _ in profile.heads
    ]
    return torch.cat(rotated, dim=1).contiguous().numpy()


def mean_query(served: AttachedModel, queries: Mapping[int, torch.Tensor]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return [Hkv * D]: the mean of the last layer's q over tokens and over the query heads that share a KV head."""
    q = queries[served.layers - 1]
    grouped = q.reshape(q.shape[0], served.kv_heads, -1, served.head_dim)
    return grouped.mean(dim=(0, 2)).reshape(-1).contiguous().numpy()


def tap_question_in_steps(
    frame: Frame, prompt_ids: torch.Tensor, question: slice, layers: Sequence[int], hidden_layers: Sequence[int] = ()
) -> Generator[None, None, QuestionStates]:
    """Read a prompt once without a trace. Keep q of `layers` and hidden states of `hidden_layers` of its question.

    Nothing is kept where the model is served by text alone, or nothing is asked for. It yields between two chunks.
    """
    keyed = frame.served.keyed
    if keyed is None or not (layers or hidden_layers):
        return QuestionStates({}, {})
    count = len(prompt_ids)
    queries, hidden = QueryTap(keyed, layers), HiddenTap(frame.served.model, hidden_layers)

    @contextlib.contextmanager
    def tapped() -> Iterator[None]:
        with queries, hidden:  # for a chunk, because others compute between two
            yield
        for tap in (queries, hidden):
            tap.drop_before(count - question.start)

    # Decisions on the way do not tell what the question is answered from.
    with frame.branch(traced=False):
        frame.clear_recalled()
        yield from frame.forward_in_steps(ReadRequest(prompt_ids, "prompt", tap=tapped))
    part_query = slice(
        question.start - count, (question.stop - count) or None
    )  # from the end: an early chunk may be gone
    return QuestionStates(
        _on_host({layer: queries.queries(layer)[part_query] for layer in layers}),
        _on_host({layer: hidden.hidden(layer)[part_query] for layer in hidden_layers}),
    )


tap_question = run_to_end(tap_question_in_steps)


def _on_host(states: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Move all in one copy, so that the device is waited for once."""
    if not states:
        return {}
    together = torch.cat([state.flatten() for state in states.values()]).cpu()
    parts = torch.split(together, [state.numel() for state in states.values()])
    return {layer: part.view_as(states[layer]) for layer, part in zip(states, parts, strict=True)}

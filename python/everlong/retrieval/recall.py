"""From a question to the pages that answer it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig, Order
from everlong.frame.frame import Frame, Recalled
from everlong.frame.taps import QueryTap, rotate_queries
from everlong.memory.where import EVERYWHERE, Role, Where
from everlong.models.attach import ServedModel
from everlong.models.served import Served
from everlong.retrieval.profile import IndexProfile

# Of a question's tokens, at most: what a search costs grows by each of them, and common ones say little of a page.
MOST_QUERY_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Recall:
    """What came back, and from where: a group of pages of one block run."""

    block_id: int  # of the group's first page
    span: tuple[int, int]  # tokens of the stream
    score: float  # of its best page; only to be compared within one answer
    source: str
    text: str
    passage: str  # the page of it that was found; the rest is what stands around it
    found_by: tuple[str, ...]  # which parts of the index
    role: Role  # what the passage was to the memory: read, asked or said
    origin: str = ""  # where what was read came from: a file's path, as a rule


@dataclasses.dataclass(frozen=True)
class Found:
    """A search's outcome: the groups, best first, and how sure the index is."""

    groups: tuple[_core.FoundGroup, ...]
    agreed: bool  # every part of the index has the best page among its first
    decisiveness: float  # mass of the best page over the second best; 0 without heads

    def chosen(self, decisive: float | None) -> Found:
        """The first group alone when it is decisive."""
        sure = decisive is not None and self.agreed and self.decisiveness >= decisive
        return dataclasses.replace(self, groups=self.groups[:1]) if sure else self

    def recalled(self, order: Order, temperature: float) -> Recalled:
        """The pages in frame order: "relevance" puts the best group last, "time" the newest.

        A group of probability p is cooled to 1 + (temperature - 1) (1 - p / p_best). Fused scores are log p, but for a
        constant; a part alone keeps scores of its own, which then stand for it.
        """
        groups = list(reversed(self.groups))
        if order == "time":
            groups.sort(key=lambda group: (group.stream, group.begin))
        best = max((group.score for group in groups), default=0.0)
        placed = [
            (page, 1 - (temperature - 1) * math.expm1(group.score - best)) for group in groups for page in group.pages
        ]
        return Recalled(
            [page for page, _ in placed],
            [temperature for _, temperature in placed],
            self.groups[0].pages if self.groups else (),
        )


@dataclasses.dataclass(frozen=True)
class Tapped:
    """A question as it was read to find what it asks for."""

    token_ids: np.ndarray[Any, np.dtype[np.int32]]  # [T]
    queries: dict[int, torch.Tensor]  # by layer, un-rotated q [T, Hq, D]
    profile: IndexProfile | None  # whose heads they are for

    def only(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Tapped:
        """These of its tokens."""
        queries = {layer: q[torch.from_numpy(rows)] for layer, q in self.queries.items()}
        return dataclasses.replace(self, token_ids=self.token_ids[rows], queries=queries)


def search(
    frame: Frame,
    question: Tapped,
    config: MemoryConfig,
    where: Where = EVERYWHERE,
    page_query: np.ndarray[Any, np.dtype[np.float32]] | None = None,
) -> Found:
    """Search that part of the frame's memory for a question.

    `page_query` is the question's vector by the encoder, where pages have vectors. Of a question longer than
    MOST_QUERY_TOKENS its rarest tokens are searched for. A frame without a recalled zone has no room for anything:
    nothing is found.
    """
    if config.recalled_tokens == 0:
        return Found((), False, 0.0)
    if len(question.token_ids) > MOST_QUERY_TOKENS:
        rarest = np.argsort(-frame.memory.core.idf(question.token_ids), kind="stable")[:MOST_QUERY_TOKENS]
        question = question.only(np.sort(rarest))
    rolling_begin = frame.os.rolling[0]
    keyed, queries, profile = frame.served.keyed, question.queries, question.profile
    kinds = [kind for kind in config.index if kind != "heads" or profile is not None]
    by_heads = by_mean = None
    if keyed is not None:
        by_heads = head_queries(keyed, queries, profile) if profile is not None and "heads" in kinds else None
        by_mean = mean_query(keyed, queries) if {"mean_pool", "hnsw"} & set(kinds) else None
    result = frame.memory.core.search(
        token_ids=question.token_ids,
        head_queries=by_heads,
        mean_query=by_mean,
        page_query=page_query,
        kinds=kinds or ["lexical"],
        max_groups=config.groups,
        neighbours=config.neighbours,
        token_budget=config.recalled_tokens,
        stream=frame.os.stream,
        resident_from=rolling_begin,
        **where.core(),
    )
    return Found(tuple(result.groups), result.agreed, result.decisiveness)


def query_layers(served: Served, profile: IndexProfile | None, config: MemoryConfig) -> set[int]:
    """The layers whose queries a search reads; none of a model that is served by text alone."""
    layers: set[int] = set()
    if served.keyed is None:
        return layers
    if profile is not None and "heads" in config.index:
        layers |= {layer for layer, _, _ in profile.heads}
    if {"mean_pool", "hnsw"} & set(config.index):
        layers.add(served.layers - 1)
    return layers


def head_queries(
    served: ServedModel, queries: dict[int, torch.Tensor], profile: IndexProfile
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[T, heads, D]: q of the retrieval heads, each rotated to the profile's fixed distance from every key."""
    rotated = [
        rotate_queries(served.table(layer), queries[layer][:, head : head + 1], profile.query_distance)
        for layer, head, _ in profile.heads
    ]
    return torch.cat(rotated, dim=1).contiguous().numpy()


def mean_query(served: ServedModel, queries: dict[int, torch.Tensor]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[Hkv * D]: the mean of the last layer's q over tokens and over the query heads that share a KV head."""
    q = queries[served.layers - 1]
    grouped = q.reshape(q.shape[0], served.kv_heads, -1, served.head_dim)
    return grouped.mean(dim=(0, 2)).reshape(-1).contiguous().numpy()


def tap_question(
    frame: Frame, prompt_ids: torch.Tensor, question: slice, layers: Sequence[int]
) -> dict[int, torch.Tensor]:
    """Read a prompt once without a trace and keep q [T, Hq, D] of its question tokens."""
    keyed = frame.served.keyed
    if not layers or keyed is None:
        return {}
    # What is decided on the way says nothing of what the question is answered from.
    with frame.branch(traced=False), QueryTap(keyed, layers) as tap:
        frame.clear_recalled()
        frame.extend(prompt_ids, "prompt")
    # An empty stream begins with tokens of its own.
    return {layer: tap.queries(layer)[-len(prompt_ids) :][question].cpu() for layer in layers}

"""Finds a model's retrieval heads: their attention, without training, points at the page that is asked for.

Any text serves. A few words are quoted from pages of the memory itself. Every head of every layer is scored by the rank
that it gives to the page of the quote (mean reciprocal rank). No labels are needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.frame.taps import rotate_queries
from everlong.retrieval.profile import IndexProfile

if TYPE_CHECKING:
    from everlong.frame.frame import Frame

# A quote asks which passage goes on from its words. Nothing here is tuned to one model.
QUOTE_QUESTION = 'Which passage goes on from these words: "{quote}"?'


def calibrate(
    frame: Frame,
    ask: Callable[[str, Sequence[int]], tuple[np.ndarray[Any, np.dtype[np.int32]], Mapping[int, torch.Tensor]]],
    decode: Callable[[Sequence[int]], str],
    *,
    heads: int,
    query_distance: int,
    pages: int = 512,
    quotes: int = 12,
    quote_tokens: int = 20,
    seed: int = 0,
) -> IndexProfile:
    """Rank all (layer, head) of the frame's model on quotes from its memory.

    `ask(question, layers)` returns the question's token ids and their un-rotated q by layer. `decode` makes text of
    ids. The newest `pages` pages that were read serve as haystack. Raises EverlongError for a memory of less than 8
    such pages, and for one of text alone, which has no keys that heads could search.
    """
    served = frame.served.keyed
    if served is None:
        raise EverlongError("a memory of text alone has no keys that heads could search")
    core = frame.memory.core
    haystack = [page for page in pages_to_quote(core) if page.begin >= frame.os.sinks][-pages:]
    if len(haystack) < 8:
        raise EverlongError(f"calibration needs at least 8 pages that were read, the memory has {len(haystack)}")
    layers = list(range(served.layers))
    rng = random.Random(seed)
    gold = sorted(rng.sample(range(len(haystack)), min(quotes, len(haystack) // 2)))
    questions = []
    for index in gold:
        ids = core.blocks.token_ids(haystack[index].stream, haystack[index].begin, haystack[index].end)
        first = rng.randint(0, max(0, len(ids) - quote_tokens))
        quote = decode(ids[first : first + quote_tokens].tolist()).strip()
        questions.append(ask(QUOTE_QUESTION.format(quote=quote), layers))

    page_tokens = torch.tensor([page.end - page.begin for page in haystack], device="cpu")
    page_of_key = torch.arange(len(haystack), device="cpu").repeat_interleave(page_tokens)
    shape = (len(questions), served.layers, served.query_heads, len(haystack))
    mass = torch.zeros(shape, dtype=torch.float32, device="cpu")
    for layer in layers:
        keys = torch.cat(
            [torch.from_numpy(core.blocks.read_keys(page, layer)) for page in haystack], dim=1
        )  # [Hkv, N, D]
        for row, (ids, queries) in enumerate(questions):
            weights = torch.from_numpy(core.search.idf(ids))
            q = rotate_queries(served.table(layer), queries[layer], query_distance)
            mass[row, layer] = _page_mass(q, keys, weights, page_of_key, len(haystack))

    # Ties count against the head: scores in low precision tie massively, and a tie finds nothing.
    asked, gold_page = torch.arange(len(gold), device="cpu"), torch.tensor(gold, device="cpu")
    right = mass[asked, :, :, gold_page]  # [Q, L, Hq]
    rank = (mass >= right[..., None]).sum(dim=-1).float()
    score = (1.0 / rank).mean(dim=0)  # [L, Hq]
    best = torch.argsort(score.flatten(), descending=True, stable=True)[:heads].tolist()
    group = served.query_heads // served.kv_heads
    chosen = tuple((i // served.query_heads, i % served.query_heads, i % served.query_heads // group) for i in best)
    together = sum(mass[:, layer, head] for layer, head, _ in chosen)
    assert isinstance(together, torch.Tensor)
    together_right = together[asked, gold_page]
    together_rank = (together >= together_right[:, None]).sum(dim=-1).float()
    return IndexProfile(
        heads=chosen,
        query_distance=query_distance,
        reciprocal_rank=float((1.0 / together_rank).mean()),
        pages=len(haystack),
        quotes=len(gold),
        seed=seed,
    )


def pages_to_quote(core: _core.Memory) -> list[_core.PageRef]:
    """Return the pages that were read, in order of archiving. Questions and answers repeat themselves and them."""
    read = {block.id for block in core.blocks.infos() if block.role == "read"}
    return [page for page in core.blocks.pages() if page.block in read]


def _page_mass(
    q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, page_of_key: torch.Tensor, pages: int
) -> torch.Tensor:
    """Return [Hq, pages], sums over question tokens of weight * softmax mass; q [T, Hq, D], keys [Hkv, N, D]."""
    tokens, query_heads, dim = q.shape
    kv_heads = keys.shape[0]
    grouped = q.reshape(tokens, kv_heads, query_heads // kv_heads, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    attention = torch.softmax(torch.bmm(grouped, keys.transpose(1, 2)) * dim**-0.5, dim=-1)
    by_token = attention.reshape(query_heads, tokens, -1)
    by_key = torch.einsum("htn,t->hn", by_token, weights)
    return by_key.new_zeros(query_heads, pages).index_add_(1, page_of_key, by_key)

"""What the index is asked with, against the scores of the model's own attention and against loops in fp64."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.frame.taps import QueryTap, rotate_queries
from everlong.retrieval.calibration import calibrate
from everlong.retrieval.question_states import mean_query, tap_question
from everlong.text.encoding import decode_text
from everlong.text.prompt import build_prompt
from support import SMALL, TINY_KINDS, WINDOW_ONLY, byte_tokenizer, random_text, tiny_model
from support.rope import rotated

SEVERAL = [
    ("llama", "default"),
    ("qwen3", "yarn"),
    ("glm", "partial"),  # interleaved
    ("smollm3", "default"),
    ("gemma4", "nested proportional"),
]


@dataclasses.dataclass(frozen=True)
class Attended:
    """What a layer's attention was given: q [Hq, T, D] and k [Hkv, T, D] as the model rotated them."""

    q: np.ndarray[Any, np.dtype[np.float64]]
    k: np.ndarray[Any, np.dtype[np.float64]]
    scaling: float

    def score(self, head: int, query: int, key: int) -> float:
        shared_by = len(self.q) // len(self.k)
        return float(self.q[head, query] @ self.k[head // shared_by, key]) * self.scaling


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
def test_a_rotated_query_scores_a_key_as_the_model_does(kind: str, rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(kind, rope)
    model.set_attn_implementation("eager")
    text = random_text(300)
    with everlong.MemoryModel(model, byte_tokenizer(), config=WINDOW_ONLY) as mm:
        mm.read(text)
        served, core = mm.frame.served, mm.memory.core
        attended: dict[int, Attended] = {}
        module = sys.modules[type(served.attention[0]).__module__]
        own = module.eager_attention_forward

        def noting(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(own).bind(*arguments, **named).arguments
            if given["module"] in served.attention:
                q, k = (given[name][0].double().numpy() for name in ("query", "key"))
                attended[served.attention.index(given["module"])] = Attended(q, k, given["scaling"])
            return own(*arguments, **named)

        monkeypatch.setattr(module, "eager_attention_forward", noting)
        with torch.no_grad(), QueryTap(served, range(served.layers)) as tap:
            model(input_ids=mm.encode(text)[None])
        assert sorted(attended) == list(range(served.layers))
        for layer, its in attended.items():
            keys = np.concatenate([core.blocks.read_keys(page, layer) for page in core.blocks.pages()], axis=1).astype(
                np.float64
            )
            for query, key in ((299, 0), (299, 17), (299, 299), (150, 140), (40, 39)):
                turned = rotate_queries(served.table(layer), tap.queries(layer)[query : query + 1], query - key)
                q = turned[0].double().numpy()
                for head in range(served.query_heads):
                    kv_head = head * served.kv_heads // served.query_heads
                    got = q[head] @ keys[kv_head, key] / np.sqrt(served.head_dim)
                    size = np.linalg.norm(q[head]) * np.linalg.norm(keys[kv_head, key]) / np.sqrt(served.head_dim)
                    assert abs(got - its.score(head, query, key)) <= 1e-4 * max(size, 1.0)


def reciprocal_ranks(mass: np.ndarray[Any, np.dtype[np.float64]], gold: Sequence[int]) -> Iterator[float]:
    """Of mass [questions, pages]: a page of the same mass comes before the right one."""
    for row, right in zip(mass, gold, strict=True):
        yield 1.0 / sum(of_page >= row[right] for of_page in row)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rope"), SEVERAL)
@pytest.mark.parametrize(("distance", "newest"), [(0, 512), (400, 30)])
def test_calibration_keeps_the_heads_that_rank_pages_best(kind: str, rope: str, distance: int, newest: int) -> None:
    """Every head's mean reciprocal rank, summed up token by token of each question."""
    questions: list[tuple[np.ndarray[Any, Any], dict[int, torch.Tensor]]] = []
    quoted: list[list[int]] = []
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(40 * 64 + 30))
        served, core = mm.frame.served, mm.memory.core

        def ask(question: str, layers: Sequence[int]) -> tuple[np.ndarray[Any, Any], dict[int, torch.Tensor]]:
            prompt = build_prompt(mm.tokenizer, question)
            ids = prompt.ids[prompt.question].numpy().astype(np.int32)
            questions.append((ids, tap_question(mm.frame, prompt.ids, prompt.question, layers).queries))
            return questions[-1]

        def decode(ids: Sequence[int]) -> str:
            quoted.append(list(ids))
            return decode_text(mm.tokenizer, ids)

        profile = calibrate(mm.frame, ask, decode, heads=5, query_distance=distance, pages=newest, quotes=6)
        pages = [page for page in core.blocks.pages() if page.begin >= mm.frame.os.sinks][-newest:]
        assert (profile.pages, profile.quotes, len(quoted)) == (len(pages), 6, 6)
        text_of = [decode_text(mm.tokenizer, core.blocks.token_ids(0, page.begin, page.end).tolist()) for page in pages]
        (gold,) = zip(
            *([i for i, text in enumerate(text_of) if decode_text(mm.tokenizer, ids) in text] for ids in quoted),
            strict=True,
        )
        assert len(set(gold)) == 6

        shape = (len(questions), served.layers, served.query_heads, len(pages))
        mass = np.zeros(shape)
        for layer in range(served.layers):
            table = served.table(layer)
            keys = [core.blocks.read_keys(page, layer).astype(np.float64) for page in pages]
            for row, (ids, queries) in enumerate(questions):
                q = rotated(queries[layer], table, torch.tensor(distance), table.attention_scaling**2).numpy()
                for token, weight in enumerate(core.search.idf(ids)):
                    for head in range(served.query_heads):
                        kv_head = head * served.kv_heads // served.query_heads
                        scores = [of_page[kv_head] @ q[token, head] / np.sqrt(served.head_dim) for of_page in keys]
                        most = max(map(np.max, scores))
                        parts = np.array([np.exp(of_page - most).sum() for of_page in scores])
                        mass[row, layer, head] += weight * parts / parts.sum()
    rank = {
        (layer, head): float(np.mean([*reciprocal_ranks(mass[:, layer, head], gold)]))
        for layer in range(served.layers)
        for head in range(served.query_heads)
    }
    best = sorted(rank, key=lambda which: -rank[which])[:5]  # stable: of equal ones the first
    assert len(set(rank.values())) > 5
    assert profile.heads == tuple((layer, head, head * served.kv_heads // served.query_heads) for layer, head in best)
    together = sum(mass[:, layer, head] for layer, head in best)
    assert isinstance(together, np.ndarray)
    assert profile.reciprocal_rank == pytest.approx(np.mean([*reciprocal_ranks(together, gold)]))


@pytest.mark.parametrize(("kind", "rope"), SEVERAL)
def test_the_mean_query_is_the_mean_of_those_that_share_a_head(kind: str, rope: str) -> None:
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=SMALL) as mm:
        served = mm.frame.served
        ids = mm.encode(random_text(30))
        queries = tap_question(mm.frame, ids, slice(4, 17), [0, served.layers - 1]).queries
        got = mean_query(served, queries)
    last = queries[served.layers - 1].double().numpy()
    assert last.shape == (13, served.query_heads, served.head_dim)
    expected = np.zeros((served.kv_heads, served.head_dim))
    shared_by = served.query_heads // served.kv_heads
    for q in last:
        for head in range(served.query_heads):
            expected[head // shared_by] += q[head] / (13 * shared_by)
    np.testing.assert_allclose(got, expected.reshape(-1), atol=1e-6)

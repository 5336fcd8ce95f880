"""What of a question is searched for, what is found, and in which order it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.config.answer import Order
from everlong.config.search import IndexPart
from everlong.retrieval.question_states import MOST_QUERY_TOKENS, head_queries, tap_question
from everlong.retrieval.search import search
from everlong.text.prompt import Prompt
from support import SMALL, TINY_MEMORY, byte_tokenizer, random_text, tiny_model
from support.memories import answering_of


def test_of_a_long_question_the_rarest_tokens_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, by heads and words alike; a shorter one is searched for as it is."""
    asked: list[dict[str, Any]] = []
    model, tokenizer = tiny_model(), byte_tokenizer()
    text = "".join(f"{number:04d} and so on, and so on. " for number in range(400))
    config = TINY_MEMORY.changed(search={"index": ("heads", "lexical")})
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read(text)
        mm.calibrate()
        core = mm.memory.core

        class Searches:
            def find(self, **request: Any) -> Any:
                asked.append(request)
                return core.search.find(**request)

            def __getattr__(self, name: str) -> Any:
                return getattr(core.search, name)

        class Spy:
            search = Searches()

            def __getattr__(self, name: str) -> Any:
                return getattr(core, name)

        monkeypatch.setattr(mm.memory, "core", Spy())
        for length in (MOST_QUERY_TOKENS, 3 * MOST_QUERY_TOKENS):
            question = mm.encode(text[100 : 100 + length])
            prompt = Prompt(question, slice(0, length))
            tapped = mm.searcher.tap(prompt)
            search(mm.frame, prompt, tapped, mm.config)
            idf = core.search.idf(tapped.token_ids)
            rows = sorted(sorted(range(length), key=lambda row: -idf[row])[:MOST_QUERY_TOKENS])
            assert asked[-1]["token_ids"].tolist() == tapped.token_ids[rows].tolist()
            assert mm.profile is not None
            expected = head_queries(mm.frame.served, tapped.states.queries, mm.profile)[rows]
            np.testing.assert_allclose(asked[-1]["head_queries"], expected, atol=1e-6)
    digits = {*tokenizer("0123456789")["input_ids"]}
    assert len(digits & {*asked[-1]["token_ids"].tolist()}) > 3


def test_of_a_table_the_line_that_was_asked_for_comes_back_and_not_its_half() -> None:
    """What came back is what is said to have come back."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    lines = [f"the number of {number:03d} is {(number * 7919) % 1000:03d}; " for number in range(60)]
    lines[30] = "the number of QXZ is JKV; "
    config = TINY_MEMORY.changed(
        frame={"tokens": 1_536, "recalled_tokens": 640}, search={"index": ("lexical",), "groups": 1}
    )
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read("".join(lines))
        mm.read("e " * 400)  # the table has left the window
        mm.generate("what is the number of QXZ?", max_new_tokens=1, remember=False)
        (recall,) = mm.last_recalled
    assert lines[30] in recall.text
    # Its page, the two whose groups hold it, and what stands beside these.
    assert (
        recall.span[1] - recall.span[0]
        <= 5 * config.archive.page_tokens
        < config.frame.recalled_tokens
        < len("".join(lines))
    )


@pytest.mark.parametrize("part", ["mean_pool", "hnsw"])
@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("glm", "partial"), ("gemma3", "nested")])
def test_the_block_comes_back_whose_mean_key_is_nearest(part: IndexPart, kind: str, rope: str) -> None:
    """By the cosine with the mean of the last layer's queries; each a plain mean in fp64."""
    config = SMALL.changed(search={"index": (part,), "groups": 1, "neighbours": 0})
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=config) as mm:
        texts = {source: random_text(700, seed=seed) for seed, source in enumerate("abc")}
        for source, text in texts.items():
            mm.read(text, source=source)
        mm.read(random_text(600, seed=5), source="new")  # what came before has left the window
        core, served = mm.memory.core, mm.frame.served
        last = served.layers - 1
        for source, text in texts.items():
            question = text[300:330]
            where = everlong.Where(source=source)
            with mm.frame.branch():
                answering_of(mm).narrow(where)
                q = tap_question(mm.frame, mm.encode(question), slice(0, 30), [last]).queries[last].double().numpy()
            asked = q.reshape(30, served.kv_heads, -1, served.head_dim).mean(axis=(0, 2)).reshape(-1)
            cosines: dict[int, float] = {}
            for block in mm.memory.blocks(source):
                pages = [page for page in core.blocks.pages() if page.block == block.id]
                keys = np.concatenate([core.blocks.read_keys(page, last).astype(np.float64) for page in pages], axis=1)
                mean = keys.mean(axis=1).reshape(-1)
                cosines[block.id] = float(asked @ mean / np.linalg.norm(asked) / np.linalg.norm(mean))
            best = max(cosines, key=cosines.__getitem__)
            (found,) = mm.generate(question, max_new_tokens=1, remember=False, where=where).recalled
            assert len(cosines) == 6
            assert (found.block_id, found.found_by) == (best, (part,))
            assert found.score == pytest.approx(cosines[best], abs=1e-3)
            # The next best blocks are one group with the best where they stand beside it.
            came = [block for block in mm.memory.blocks(source) if span_holds(found.span, block.span)]
            assert (came[0].span[0], came[-1].span[1]) == found.span
            assert {block.id for block in came} == {*sorted(cosines, key=cosines.__getitem__)[-len(came) :]}


def span_holds(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span[0] <= other[0] and other[1] <= span[1]


@pytest.mark.parametrize("order", ["relevance", "time"])
def test_what_comes_back_stands_in_the_order_that_is_set(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most relevant of three passages is the oldest: it stands next to the question, or where it was said."""
    facts = ["#KEY# is %GREEN%, says @TOM@", "#KEY# is old", "#KEY# is %GREEN%"]
    pieces = [random_text(600, seed=seed) for seed in range(4)]
    text = "".join(piece + fact for piece, fact in zip(pieces, [*facts, ""], strict=True))
    config = SMALL.changed(search={"index": ("lexical",), "groups": 3, "neighbours": 0}, answer={"order": order})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text)
        placed: list[list[tuple[int, int]]] = []
        bring_back = mm.frame.bring_back

        def noting(offers: Any) -> None:
            placed.append([(page.begin, page.end) for offer in offers for page in offer.pages])
            bring_back(offers)

        monkeypatch.setattr(mm.frame, "bring_back", noting)
        answer = mm.generate("#KEY# %GREEN% @TOM@", max_new_tokens=1, remember=False)
        spans = [found.span for found in answer.recalled]
        assert spans[0] == min(spans)
        assert spans != sorted(spans)
        assert spans[::-1] != sorted(spans)
    (pages,) = placed
    in_frame = sorted(spans) if order == "time" else spans[::-1]
    assert [next(i for i, span in enumerate(spans) if span[0] <= page[0] < span[1]) for page in pages] == [
        spans.index(span) for span in in_frame for page in pages if span[0] <= page[0] < span[1]
    ]


def test_pages_of_128_tokens_are_what_is_found(tmp_path: Path) -> None:
    fact = "Zq7#Kx9!Wv3@Jy5%"
    text = random_text(1200) + fact + random_text(1800, seed=2)
    config = SMALL.changed(archive={"page_tokens": 128}, search={"index": ("lexical",), "groups": 1, "neighbours": 0})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(text)
        assert {page.end - page.begin for page in mm.memory.core.blocks.pages()} == {128, len(text) % 128}
        first = mm.generate(fact, max_new_tokens=12, remember=False)
        (found,) = first.recalled
        assert found.span == (1200 // 128 * 128, 1200 // 128 * 128 + 128)
        assert found.text == found.passage == text[slice(*found.span)]
        assert mm.frame.os.rolling[1] - mm.frame.os.rolling[0] > 128
    # How long its pages are was decided when it was made.
    with everlong.MemoryModel(
        tiny_model(), byte_tokenizer(), tmp_path / "m", config=config.changed(archive={"page_tokens": 64})
    ) as mm:
        assert mm.config.archive.page_tokens == 128
        assert mm.generate(fact, max_new_tokens=12, remember=False) == first

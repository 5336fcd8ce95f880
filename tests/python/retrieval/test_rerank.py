"""Re-ranking by the model: what it computes against plain transformers, what it changes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

import everlong
import everlong._core as _core
from everlong.models.releases import cache_argument
from everlong.models.rope import rope_table
from everlong.retrieval import rerank, search
from everlong.retrieval.rerank import LIFT_WEIGHT, MOST_CANDIDATES, Candidate, Reranker, RerankQuery, candidates
from everlong.text.prompt import Prompt, build_prompt
from support import (
    ARCHITECTURES,
    SMALL,
    TINY_MEMORY,
    TOLERANCE,
    byte_tokenizer,
    random_text,
    tiny_model,
    tiny_text_model,
)
from support.rope import rotated

ROOMY = SMALL.changed(frame={"rolling_tokens": 640})  # 600 tokens are archived while they are all in the frame
QUESTION = slice(5, 25)
# Lines much alike, so that a question finds many places.
LINES = "".join(f"the number of {number:04d} is {number * 7919 % 10_000:04d}, as they say. " for number in range(150))
ASKED = "what is the number of 0042, as they say?"
SEARCHED = TINY_MEMORY.changed(search={"groups": 2})


def likelihood(logits: torch.Tensor, ids: torch.Tensor, first: int, last: int) -> float:
    """Sum of log p of ids[first:last], by logits of all of ids."""
    chances = logits.double().log_softmax(-1)
    return sum(float(chances[at - 1, ids[at]]) for at in range(first, last))


def question_ids() -> torch.Tensor:
    return torch.frombuffer(bytearray(random_text(30, seed=3).encode()), dtype=torch.uint8).long()


@pytest.mark.parametrize("sinks", [0, 8])
@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_the_beginning_of_a_text_is_a_plain_forward(kind: str, rope: str, sinks: int) -> None:
    """Of its tokens and the question. Models with layers that are not archived read the pages, without sinks."""
    model = tiny_model(kind, rope)
    with everlong.MemoryModel(model, byte_tokenizer(), config=ROOMY.changed(frame={"sink_tokens": sinks})) as mm:
        mm.read(random_text(600))
        ids, question = mm.encode(random_text(600)), question_ids()
        served, lengths = mm.frame.served, (64, 192, 128, 0)
        groups = [mm.memory.core.blocks.pages_of(0, 0, length) for length in lengths[:3]]
        asked = RerankQuery.of(Prompt(question, QUESTION))
        found = Reranker(mm.frame, []).log_likelihoods(asked, [*groups, []])
        by_archive = rerank.is_archived_whole(served)
        assert by_archive == ((kind, rope) not in [(kind, rope) for kind, rope in ARCHITECTURES[7:]])
    for length, value in zip(lengths, found.tolist(), strict=True):
        before = ids[: max(sinks, length)] if by_archive else ids[min(sinks, length) : length]
        whole = torch.cat([before, question[: QUESTION.stop]])
        positions = torch.arange(len(whole))[None] + served.first_position
        with torch.no_grad():
            logits = model(input_ids=whole[None], position_ids=positions).logits[0]
        assert value == pytest.approx(likelihood(logits, whole, len(whole) - 20, len(whole)), abs=TOLERANCE)


@pytest.mark.parametrize("sinks", [0, 8])
@pytest.mark.parametrize(
    ("kind", "rope"), [("llama", "default"), ("qwen3", "yarn"), ("mistral", "default"), ("cohere", "default")]
)
def test_pages_that_saw_earlier_text_are_those_keys_moved(kind: str, rope: str, sinks: int) -> None:
    """Which is another thing than reading them anew."""
    model = tiny_model(kind, rope)
    with everlong.MemoryModel(model, byte_tokenizer(), config=ROOMY.changed(frame={"sink_tokens": sinks})) as mm:
        mm.read(random_text(600))
        ids, question = mm.encode(random_text(600)), question_ids()
        asked = RerankQuery.of(Prompt(question, QUESTION))
        reranker = Reranker(mm.frame, [])
        pages = mm.memory.core.blocks.pages_of(0, 256, 448)
        (found,) = reranker.log_likelihoods(asked, [pages]).tolist()
    table, past = rope_table(model.config), DynamicCache()
    with torch.no_grad():
        model(input_ids=ids[None], **{cache_argument(model): past})
        for layer in past.layers:
            moved = rotated(layer.keys[:, :, 256:448], table, torch.tensor(sinks - 256), 1.0).float()
            layer.keys = torch.cat([layer.keys[:, :, :sinks], moved], dim=2)
            layer.values = torch.cat([layer.values[:, :, :sinks], layer.values[:, :, 256:448]], dim=2)
        inputs = question[None, : QUESTION.stop]
        logits = model(input_ids=inputs, **{cache_argument(model): past}).logits[0]
        anew = torch.cat([ids[:sinks], ids[256:448], question[: QUESTION.stop]])
        read = model(input_ids=anew[None]).logits[0]
    assert found == pytest.approx(likelihood(logits, question, 5, 25), abs=TOLERANCE)
    assert abs(found - likelihood(read, anew, len(anew) - 20, len(anew))) > 100 * TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_a_batch_of_unlike_lengths_changes_nothing(kind: str, rope: str) -> None:
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=ROOMY) as mm:
        mm.read(random_text(600))
        core, reranker = mm.memory.core, Reranker(mm.frame, [])
        asked = RerankQuery.of(Prompt(question_ids(), QUESTION))
        groups = [core.blocks.pages_of(0, *span) for span in ((64, 128), (128, 320), (0, 0), (500, 600), (0, 64))]
        alone = torch.cat([reranker.log_likelihoods(asked, [group]) for group in groups])
        together = reranker.log_likelihoods(asked, groups)
    assert len({round(value, 3) for value in alone.tolist()}) == len(groups)
    assert (together - alone).abs().max() <= TOLERANCE


def test_a_question_is_asked_from_where_something_stands_before_it() -> None:
    ids = torch.arange(10)
    asked = RerankQuery.of(Prompt(ids, slice(3, 7)))
    assert (asked.inputs.tolist(), asked.targets.tolist()) == ([0, 1, 2, 3, 4, 5], [3, 4, 5, 6])
    asked = RerankQuery.of(Prompt(ids, slice(0, 10)))
    assert (asked.inputs.tolist(), asked.targets.tolist()) == ([*range(9)], [*range(1, 10)])
    asked = RerankQuery.of(Prompt(ids, slice(3, 9)), most=4)
    assert (asked.inputs.tolist(), asked.targets.tolist()) == ([5, 6, 7], [6, 7, 8])
    assert len(RerankQuery.of(Prompt(ids[:1], slice(0, 1))).targets) == 0


@pytest.fixture(name="mm")
def a_memory() -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SEARCHED) as mm:
        mm.read(LINES)
        yield mm


def use(mm: everlong.MemoryModel, seconds: float) -> None:
    mm.config = mm.config.changed(search={"rerank_seconds": seconds})


def first_places(mm: everlong.MemoryModel, question: str = ASKED) -> tuple[Prompt, list[Candidate]]:
    """A prompt, and the candidates that a search for it has."""
    prompt = build_prompt(mm.tokenizer, question)
    seen: list[list[Candidate]] = []

    def look(result: _core.SearchResult) -> list[tuple[_core.PageRef, float]]:
        seen.append(candidates(result, mm.config.search.neighbours, mm.config.archive.page_tokens))
        return []

    with mm.frame.branch():
        search.search(mm.frame, prompt, mm.searcher.tap(prompt), mm.config, rerank=look)
    return prompt, seen[0]


def test_candidates_are_places_of_their_own(mm: everlong.MemoryModel) -> None:
    core, os = mm.memory.core, mm.frame.os
    prompt, places = first_places(mm)
    inputs = mm.searcher.inputs(prompt)
    everything = {"token_budget": 1 << 30, "least_share": 0, "resident_from": os.rolling[0]}
    hits = core.search.find(**inputs, **everything, max_groups=1000, neighbours=1)
    scores = {
        page.begin: score
        for group in hits.groups
        for page, score in zip(group.pages, group.page_scores, strict=True)
        if np.isfinite(score)  # a neighbour that nothing named
    }
    every = [page.begin for page in core.blocks.pages() if page.begin < os.rolling[0]]
    assert 8 < len(places) <= MOST_CANDIDATES
    assert places[0].page.begin == max(scores, key=lambda begin: scores[begin])
    assert [scores[place.page.begin] for place in places] == sorted(
        (scores[place.page.begin] for place in places), reverse=True
    )
    for number, place in enumerate(places):
        begin = place.page.begin
        at = every.index(begin)
        assert [page.begin for page in place.window] == every[max(0, at - 1) : at + 2]
        assert all(begin not in [page.begin for page in other.window] for other in places[:number])
        for page, share in place.shares:
            assert share == pytest.approx(scores[page.begin] / scores[begin], abs=1e-5)
            assert page in place.window
    found = [page.begin for place in places for page, _ in place.shares]
    assert len(found) == len(set(found))


def test_the_order_is_what_scores_and_lifts_make_it(mm: everlong.MemoryModel) -> None:
    core = mm.memory.core
    prompt, places = first_places(mm)
    plain = mm.recall(ASKED)
    use(mm, 1000)
    reranked = mm.recall(ASKED)
    reranker = Reranker(mm.frame, [])
    lifts = reranker.log_likelihoods(RerankQuery.of(prompt), [place.window for place in places]).tolist()
    hits = core.search.find(
        **mm.searcher.inputs(prompt),
        max_groups=1000,
        neighbours=1,
        token_budget=1 << 30,
        least_share=0,
        resident_from=mm.frame.os.rolling[0],
    )
    scores = {
        page.begin: score
        for group in hits.groups
        for page, score in zip(group.pages, group.page_scores, strict=True)
        if np.isfinite(score)  # a neighbour that nothing named
    }
    for place, lift in zip(places, lifts, strict=True):
        for page, share in place.shares:
            scores[page.begin] += LIFT_WEIGHT * (lift - min(lifts)) * share
    best = max(scores, key=lambda begin: scores[begin])
    assert reranked[0].span[0] <= best < reranked[0].span[1]
    assert reranked[0].passage == mm.tokenizer.decode(core.blocks.token_ids(0, best, best + 64).tolist())
    assert reranked[0].score == pytest.approx(scores[best], abs=1e-4)
    assert reranked[0].found_by == ("lexical",)
    assert not plain[0].span[0] <= best < plain[0].span[1], "the lift says nothing here"
    assert len(reranked) <= SEARCHED.search.groups


def test_a_page_comes_first_that_makes_the_question_likely(
    mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the index, which had another one, is not sure of it."""
    prompt, places = first_places(mm)
    chosen = places[6]

    def likely(self: Reranker, asked: RerankQuery, groups: Any) -> torch.Tensor:
        return torch.tensor([-10.0 if list(group) == list(chosen.window) else -90.0 for group in groups]).double()

    monkeypatch.setattr(Reranker, "log_likelihoods", likely)
    use(mm, 1000)
    with mm.frame.branch():
        found = mm.searcher.find(prompt)
    best = found.offers[0]
    assert chosen.page == best.page
    assert best.page in best.pages
    assert best.score > LIFT_WEIGHT * 80
    assert not found.agreed
    last = found.in_frame_order("relevance", 1.2)[-1]
    assert last.best
    assert last.pages == best.pages
    assert last.temperature == 1


def test_seconds_say_how_many_are_looked_at(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, places = first_places(mm)
    looked_at: list[int] = []
    compute = Reranker.log_likelihoods

    def counted(self: Reranker, asked: RerankQuery, groups: Any) -> torch.Tensor:
        looked_at.append(len(groups))
        return compute(self, asked, groups)

    monkeypatch.setattr(Reranker, "log_likelihoods", counted)
    clock = iter(range(1000))
    monkeypatch.setattr("everlong.retrieval.rerank.time.monotonic", lambda: next(clock))
    reranker = Reranker(mm.frame, [])
    for seconds, expected in ((1e-9, 8), (1.5, 12), (1e9, len(places))):
        looked_at.clear()
        added = reranker.added_scores(prompt, places, seconds)
        assert looked_at[:2] == [1, 8]  # the question alone, then the first ones
        assert sum(looked_at[1:]) == expected
        assert [page for page, _ in added] == [page for place in places[:expected] for page, _ in place.shares]
        assert min(score for _, score in added) == 0
    monkeypatch.setattr(rerank, "_BATCH_BYTES", 1)
    looked_at.clear()
    reranker.added_scores(prompt, places, 1e9)
    assert looked_at == [1] * (1 + len(places))


def test_without_seconds_nothing_is_computed(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    plain = mm.recall(ASKED)
    monkeypatch.setattr(Reranker, "added_scores", never)
    assert mm.config.search.rerank_seconds == 0
    assert mm.recall(ASKED) == plain
    use(mm, 1)
    with pytest.raises(AssertionError):
        mm.recall(ASKED)


def test_nothing_is_left_behind(mm: everlong.MemoryModel) -> None:
    """In frame, memory, trace, or torch's random numbers; an answer goes on as it would have."""
    frame = mm.frame

    def state() -> list[Any]:
        cache = frame.cache
        held = [x[:, :, cache.begin : cache.end].clone() for x in (cache.k, cache.v)]
        turned = [x[cache.begin : cache.end].clone() for x in (cache.cos, cache.sin)]
        counts = [cache.begin, cache.end, cache.recalled, str(frame.os.trace()), frame.os.stream_end]
        stats = mm.memory.stats()
        return [*held, *turned, torch.get_rng_state(), *counts, stats.blocks, stats.tokens]

    prompt, places = first_places(mm)
    before = state()
    assert len(Reranker(frame, []).added_scores(prompt, places, 1000)) >= len(places)
    for one, other in zip(before, state(), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    plain = mm.generate(ASKED, recall=[places[0].page], max_new_tokens=8, remember=False, do_sample=False)
    use(mm, 1000)
    mm.recall(ASKED)
    again = mm.generate(ASKED, recall=[places[0].page], max_new_tokens=8, remember=False, do_sample=False)
    assert again.token_ids == plain.token_ids


def test_what_is_forgotten_meanwhile_is_passed_over(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, places = first_places(mm)
    gone = places[0].page.block
    look: Callable[..., Any] = Reranker.added_scores

    def forget_first(self: Reranker, *how: Any) -> Any:
        if mm.memory.core.upkeep.stats().blocks == blocks:
            mm.memory.core.blocks.forget([gone])
        return look(self, *how)

    blocks = mm.memory.core.upkeep.stats().blocks
    monkeypatch.setattr(Reranker, "added_scores", forget_first)
    use(mm, 1000)
    with mm.frame.branch():
        found = mm.searcher.find(prompt)
    assert found.offers
    assert all(page.block != gone for group in found.offers for page in group.pages)
    with mm.frame.branch():
        added = look(Reranker(mm.frame, []), prompt, places, 1000)
    there = [place for place in places if place.page.block != gone]
    expected = [page for place in there for page, _ in place.shares if page.block != gone]
    assert [page for page, _ in added] == expected
    with mm.frame.branch(), pytest.raises(everlong.MemoryNotFoundError):
        Reranker(mm.frame, []).log_likelihoods(RerankQuery.of(prompt), [places[0].window])


def test_what_is_forgotten_while_it_is_looked_at_is_passed_over(
    mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, places = first_places(mm)
    gone = places[0].page.block
    compute = Reranker.log_likelihoods
    calls: list[int] = []

    def forgetful(self: Reranker, asked: RerankQuery, groups: Any) -> torch.Tensor:
        calls.append(len(groups))
        if len(calls) == 2:  # the first one asks without any pages
            mm.memory.core.blocks.forget([gone])
        return compute(self, asked, groups)

    monkeypatch.setattr(Reranker, "log_likelihoods", forgetful)
    added = Reranker(mm.frame, []).added_scores(prompt, places, 1000)
    there = [place for place in places if place.page.block != gone]
    assert [page for page, _ in added] == [page for at in there for page, _ in at.shares if page.block != gone]
    assert calls[2] < calls[1] == 8


def test_layers_of_their_own_read_the_candidates_behind_a_beginning() -> None:
    """A tokenizer with a token that begins every text has it before each candidate too."""
    model = tiny_model("gemma3", "nested", vocab_size=258)
    with everlong.MemoryModel(model, byte_tokenizer(begins=True), config=SEARCHED) as mm:
        mm.read(LINES)
        prompt, places = first_places(mm)
        use(mm, 1000)
        reranked = mm.recall(ASKED)
        (found,) = Reranker(mm.frame, [257]).log_likelihoods(RerankQuery.of(prompt), [places[1].window]).tolist()
        window = places[1].window
        ids = torch.from_numpy(mm.memory.core.blocks.token_ids(0, window[0].begin, window[-1].end)).long()
    whole = torch.cat([torch.tensor([257]), ids, prompt.ids[: prompt.question.stop]])
    with torch.no_grad():
        logits = model(input_ids=whole[None]).logits[0]
    count = prompt.question.stop - 1
    assert window[0].sink_tokens == 0
    assert found == pytest.approx(likelihood(logits, whole, len(whole) - count, len(whole)), abs=TOLERANCE)
    assert reranked


def test_a_memory_of_text_alone_re_ranks_nothing() -> None:
    config = SEARCHED.changed(answer={"recall_mode": "text"})
    with everlong.MemoryModel(tiny_text_model(), byte_tokenizer(), config=config) as mm:
        mm.read(LINES)
        plain = mm.recall(ASKED)
        use(mm, 1000)
        assert mm.recall(ASKED) == plain
        assert plain


def test_settings() -> None:
    assert everlong.MemoryConfig().search.rerank_seconds == 0
    assert everlong.MemoryConfig().with_settings(["search.rerank_seconds=2"]).search.rerank_seconds == 2
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="rerank_seconds"):
            everlong.MemoryConfig(search=everlong.SearchConfig(rerank_seconds=wrong))

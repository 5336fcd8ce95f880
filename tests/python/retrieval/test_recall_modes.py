"""What comes back as archived KV, and what is read again."""

from __future__ import annotations

import math
import random
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.cache_utils import DynamicCache

import everlong
import everlong.retrieval.searcher
from everlong.frame.frame import Frame
from everlong.frame.part import Offer
from everlong.frame.taps import QueryTap
from everlong.models.releases import cache_argument
from everlong.retrieval.question_states import TappedQuestion
from everlong.retrieval.recall import SearchOutcome
from everlong.retrieval.search import search
from everlong.text.prompt import Prompt, build_prompt
from support import OWN_STATE, SMALL, byte_tokenizer, next_logits, random_text, tiny_model

TEXT = random_text(1500)


def recalled_then_read(
    mode: str, spans: list[tuple[int, int]], rest: str, *, temperature: float = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of `rest` in a frame of sinks + the pages of these spans + nothing, and the ids of what it holds.

    All spans but the last have the temperature.
    """
    config = SMALL.changed(answer={"recall_mode": mode})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        core, frame = mm.memory.core, mm.frame
        with frame.branch():
            frame.begin_prompt()
            pages = [page for span in spans for page in core.blocks.pages_of(0, *span)]
            last = len(core.blocks.pages_of(0, *spans[-1]))
            frame.recall(pages, [temperature] * (len(pages) - last) + [1.0] * last)
            held = [(0, SMALL.frame.sink_tokens), *((page.begin, page.end) for page in pages)]
            ids = torch.cat([torch.from_numpy(core.blocks.token_ids(0, *span)).long() for span in held])
            rest_ids = mm.encode(rest)
            logits = frame.extend(rest_ids, "prompt", logits=True)
    return logits, torch.cat([ids, rest_ids])


def plain_logits(ids: torch.Tensor, count: int) -> torch.Tensor:
    """Of the last `count` of ids: sinks, then a gap of positions, then the rest, which ends where rolling begins."""
    sinks, rolling_from = SMALL.frame.sink_tokens, SMALL.frame.sink_tokens + SMALL.frame.recalled_tokens
    recalled = len(ids) - sinks - count
    positions = torch.cat([torch.arange(sinks), torch.arange(rolling_from - recalled, rolling_from + count)])
    with torch.no_grad():
        logits: torch.Tensor = tiny_model()(input_ids=ids[None], position_ids=positions[None]).logits[0]
    return logits[-count:]


def test_text_that_is_read_again_is_a_plain_forward_over_it() -> None:
    spans = [(700, 760), (200, 260)]
    logits, ids = recalled_then_read("text", spans, random_text(30, seed=2))
    assert (logits - plain_logits(ids, 30)).abs().max() <= 1e-4
    as_kv, _ = recalled_then_read("kv", spans, random_text(30, seed=2))
    assert (as_kv - plain_logits(ids, 30)).abs().max() > 1e-2  # each page remembers what stood before it


def test_auto_restores_one_piece() -> None:
    auto, _ = recalled_then_read("auto", [(640, 760)], random_text(30, seed=2))
    expected, _ = recalled_then_read("kv", [(640, 760)], random_text(30, seed=2))
    assert torch.equal(auto, expected)


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_auto_reads_the_last_of_several_pieces_again(temperature: float) -> None:
    """It sees the sinks and the pieces before it as the archive has them: plain transformers over just that KV.

    The keys of those pieces are divided by the temperature, for it as for what is read behind it.
    """
    spans, rest = [(700, 760), (200, 260)], random_text(30, seed=2)
    logits, _ = recalled_then_read("auto", spans, rest, temperature=temperature)

    model = tiny_model()
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL.changed(answer={"recall_mode": "kv"})) as mm:
        mm.read(TEXT)
        core, frame, cache = mm.memory.core, mm.frame, mm.frame.cache
        with frame.branch():
            frame.begin_prompt()
            first, last = (core.blocks.pages_of(0, *span) for span in spans)
            frame.recall([*first, *last])
            sinks = SMALL.frame.sink_tokens
            before = sinks + sum(page.end - page.begin for page in first)
            k, v = (x[:, None, :, cache.begin : cache.begin + before].clone() for x in (cache.k, cache.v))
            read_again = torch.cat(
                [torch.from_numpy(core.blocks.token_ids(0, page.begin, page.end)).long() for page in last]
            )
            rest_ids = mm.encode(rest)
    spliced = DynamicCache()
    for layer in range(len(k)):
        spliced.update(k[layer], v[layer], layer)
    rolling_from = SMALL.frame.sink_tokens + SMALL.frame.recalled_tokens

    def read(ids: torch.Tensor, first_position: int) -> torch.Tensor:
        positions = torch.arange(first_position, first_position + len(ids))
        with torch.no_grad():
            out = model(input_ids=ids[None], position_ids=positions[None], **{cache_argument(model): spliced})
        logits: torch.Tensor = out.logits[0]
        return logits

    for cached in spliced.layers:
        cached.keys[:, :, sinks:before] /= temperature
    read(read_again, rolling_from - len(read_again))
    assert (logits - read(rest_ids, rolling_from)).abs().max() <= 1e-4


@pytest.mark.parametrize(("kind", "rope"), OWN_STATE)
def test_what_is_read_again_knows_nothing_of_the_newest_text(kind: str, rope: str) -> None:
    """Layers that are not archived begin with it, and afterwards have their state of the newest text again."""
    model = tiny_model(kind, rope)
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL.changed(answer={"recall_mode": "text"})) as mm:
        mm.read(TEXT)
        core, frame, cache = mm.memory.core, mm.frame, mm.frame.cache
        with frame.branch():
            frame.begin_prompt()
            own = cache.own.tensors()
            pages = [*core.blocks.pages_of(0, 700, 760), *core.blocks.pages_of(0, 200, 260)]
            frame.recall(pages)
            sinks, after = SMALL.frame.sink_tokens, cache.own.tensors()
            k, v = (x[:, None, :, cache.begin : cache.rolling_slot].clone() for x in (cache.k, cache.v))
            ids = torch.cat([torch.from_numpy(core.blocks.token_ids(0, page.begin, page.end)).long() for page in pages])
        served = frame.served
    assert own.keys() == after.keys()
    assert all(torch.equal(own[name], after[name]) for name in own)
    alone = DynamicCache(config=model.config)
    for layer, index in enumerate(served.archived):
        alone.layers[index].update(k[layer, ..., :sinks, :], v[layer, ..., :sinks, :])
    first = SMALL.frame.sink_tokens + SMALL.frame.recalled_tokens - len(ids) + served.first_position
    with torch.no_grad():
        model(ids[None], position_ids=torch.arange(first, first + len(ids))[None], **{cache_argument(model): alone})
    for layer, index in enumerate(served.archived):
        torch.testing.assert_close(alone.layers[index].keys, k[layer], atol=1e-4, rtol=0)
        torch.testing.assert_close(alone.layers[index].values, v[layer], atol=1e-4, rtol=0)


def test_auto_reads_the_best_piece_again_wherever_it_stands() -> None:
    """In order of time it may be the first: it sees the sinks alone, and what comes later is as the archive has it."""

    def recalled_keys(mode: str, best: slice) -> torch.Tensor:
        config = SMALL.changed(answer={"recall_mode": mode})
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
            mm.read(TEXT)
            core, frame, cache = mm.memory.core, mm.frame, mm.frame.cache
            with frame.branch():
                frame.begin_prompt()
                pages = [*core.blocks.pages_of(0, 200, 260), *core.blocks.pages_of(0, 700, 760)]
                frame.recall(pages, best=pages[best])
                return cache.k[:, :, cache.rolling_slot - cache.recalled : cache.rolling_slot].clone()

    first, last = recalled_keys("auto", slice(0, 1)), recalled_keys("auto", slice(2, 3))
    kv, text = recalled_keys("kv", slice(0, 1)), recalled_keys("text", slice(0, 1))
    piece = kv.shape[2] // 2
    assert torch.equal(first[:, :, piece:], kv[:, :, piece:])
    torch.testing.assert_close(first[:, :, :piece], text[:, :, :piece], atol=1e-5, rtol=0)
    assert (first[:, :, :piece] - kv[:, :, :piece]).abs().max() > 1e-2
    assert torch.equal(last[:, :, :piece], kv[:, :, :piece])
    assert torch.equal(last, recalled_keys("auto", slice(0, 0))), "the last one where nothing else is named"


def _offer(begin: int, probability: float) -> Offer:
    """What a search finds, as far as its place in the frame depends on it."""
    page: Any = types.SimpleNamespace(stream=0, begin=begin, end=begin + 64)
    return Offer(math.log(probability) + 7, page, (), pages=(page,))


@given(
    st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=6),
    st.floats(1, 4),
    st.sampled_from(["relevance", "time"]),
)
def test_the_surest_group_keeps_its_keys_and_the_others_cool_by_how_unsure_they_are(
    probabilities: list[float], temperature: float, order: str
) -> None:
    probabilities = sorted(probabilities, reverse=True)
    places = list(range(len(probabilities)))
    random.Random(len(places)).shuffle(places)
    groups = [_offer(64 * place, p) for place, p in zip(places, probabilities, strict=True)]
    offers = SearchOutcome(tuple(groups), True, 1.0).in_frame_order(order, temperature)
    expected = {
        group.begin: 1 + (temperature - 1) * (1 - p / probabilities[0])
        for group, p in zip(groups, probabilities, strict=True)
    }
    in_frame = sorted(groups, key=lambda g: g.begin) if order == "time" else groups[::-1]
    assert [offer.begin for offer in offers] == [g.begin for g in in_frame]
    assert [offer.begin for offer in offers if offer.best] == [groups[0].begin]
    assert [offer.temperature for offer in offers] == pytest.approx([expected[o.begin] for o in offers], abs=1e-9)
    assert expected[groups[0].begin] == 1
    assert SearchOutcome((), False, 0.0).in_frame_order(order, temperature) == []


def test_a_question_comes_to_the_frame_with_its_temperatures() -> None:
    """The most probable group as it was archived, the others cooler; pages that the caller names as they are."""
    base = SMALL.changed(search={"index": ("lexical",), "groups": 2, "neighbours": 0}, answer={"recall_mode": "kv"})
    rare, rarer = "QUARTZ", "JYMBFH"
    text = f"{TEXT[:300]}{rare}{TEXT[300:700]}{rare}{rarer}{TEXT[700:]}"

    def recalled_keys(temperature: float, **asked: object) -> tuple[torch.Tensor, tuple[everlong.Recall, ...]]:
        config = base.changed(answer={"recalled_temperature": temperature})
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
            mm.read(text)
            if "recall" in asked:
                asked["recall"] = mm.memory.core.blocks.pages_of(0, 128, 192) + mm.memory.core.blocks.pages_of(
                    0, 640, 704
                )
            answer = mm.generate(f"{rare}{rarer}kfke", max_new_tokens=1, **asked)
            cache = mm.frame.cache
            first = cache.rolling_slot - cache.recalled
            return cache.k[:, :, first : cache.rolling_slot].clone(), answer.recalled

    (cold, found), (hot, _) = recalled_keys(1), recalled_keys(3)
    assert len(found) == 2
    assert hot.shape == cold.shape
    lengths = [end - begin for begin, end in (recall.span for recall in reversed(found))]
    odds = [math.exp(recall.score) for recall in reversed(found)]
    for before, after, each in zip(cold.split(lengths, 2), hot.split(lengths, 2), odds, strict=True):
        assert torch.allclose(after * (1 + 2 * (1 - each / odds[-1])), before, rtol=1e-5)
    assert not torch.allclose(hot[:, :, : lengths[0]], cold[:, :, : lengths[0]])
    assert torch.equal(recalled_keys(1, recall=())[0], recalled_keys(3, recall=())[0])


@pytest.mark.parametrize("temperature", [0.9, 0, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"recalled_temperature is .*, expected (at least 1|a number)"):
        everlong.MemoryConfig(answer=everlong.AnswerConfig(recalled_temperature=temperature))


def test_reading_again_leaves_no_trace() -> None:
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"recall_mode": "text"})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        cache = mm.frame.cache
        before = (cache.begin, cache.end, cache.k[:, :, cache.begin : cache.end].clone(), mm.memory.stats())
        answers = [mm.generate(TEXT[300:330], max_new_tokens=8, remember=False) for _ in range(2)]
        assert answers[0] == answers[1]
        assert TEXT[300:330] in answers[0].recalled[0].text
        assert (cache.begin, cache.end) == before[:2]
        assert torch.equal(cache.k[:, :, cache.begin : cache.end], before[2])
        assert mm.memory.stats() == before[3]


def test_a_recall_that_fails_on_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    """Pages come back in batches; a damaged one in a later batch empties the zone, and the frame goes on."""
    config = SMALL.changed(archive={"host_bytes": 0}, search={"index": ("lexical",)}, answer={"recall_mode": "kv"})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(TEXT)
    (segment,) = (tmp_path / "m" / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    damaged = slice(len(data) * 9 // 20, len(data) * 11 // 20)
    data[damaged] = bytes(255 - byte for byte in data[damaged])
    segment.write_bytes(data)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        core, frame = mm.memory.core, mm.frame
        frame.zones.pages.transfer.batch_bytes = 1  # every page is a batch of its own
        whole, torn = core.blocks.pages_of(0, 64, 192), core.blocks.pages_of(0, 704, 768)
        nothing = next_logits(mm, "rest")
        for repeat in range(2):
            frame.recall(whole)
            assert (next_logits(mm, "rest") - nothing).abs().max() > 1e-2
            with pytest.raises(everlong.CorruptMemoryError):
                frame.recall([*whole, *torn])
            assert frame.os.recalled_tokens == 0
            assert torch.equal(next_logits(mm, "rest"), nothing), repeat
        with frame.branch(), pytest.raises(everlong.CorruptMemoryError):
            frame.recall([*whole, *torn])
        assert torch.equal(next_logits(mm, "rest"), nothing)
        assert mm.generate(TEXT[100:130], max_new_tokens=4).recalled[0].span[0] <= 100


def test_a_question_is_tapped_behind_the_newest_text_which_then_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 1 asks by what layer 0 saw, whose keys are of single tokens: a plain forward gives the same queries."""
    asked: list[tuple[TappedQuestion, tuple[int, int]]] = []

    def spy(frame: Frame, prompt: Prompt, question: TappedQuestion, *rest: Any) -> SearchOutcome:
        asked.append((question, frame.os.rolling))
        return search(frame, prompt, question, *rest)

    monkeypatch.setattr(everlong.retrieval.searcher, "search", spy)
    model, question = tiny_model(num_hidden_layers=2), "Which letters are these?"
    config = SMALL.changed(search={"index": ("mean_pool",)})
    with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        os, text = mm.frame.os, mm.encode(TEXT)
        (begin, end), position = os.rolling, os.next_position()
        assert SMALL.frame.sink_tokens < begin < end - 60
        answer = mm.generate(question, max_new_tokens=2, remember=False)
        assert mm.recall(question) == answer.recalled
        prompt = build_prompt(mm.tokenizer, question)
        ids = torch.cat([text[: SMALL.frame.sink_tokens], text[begin:end], prompt.ids])
        newest = torch.arange(position - (end - begin), position + len(prompt.ids))
        with QueryTap(mm.frame.served, [1]) as tap, torch.no_grad():
            model(ids[None], position_ids=torch.cat([torch.arange(SMALL.frame.sink_tokens), newest])[None])
        expected = tap.queries(1)[-len(prompt.ids) :][prompt.question]
    for tapped, (first, last) in asked:
        torch.testing.assert_close(tapped.states.queries[1], expected, atol=1e-4, rtol=0)
        assert first == last
    assert len(asked) == 2

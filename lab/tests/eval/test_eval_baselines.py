"""Baselines against independent references: plain transformers, a search by hand, the spans that they say."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from everlong import AnswerConfig, ArchiveConfig, FrameConfig, MemoryConfig, MemoryModel, SearchConfig
from everlong.models.releases import cache_argument
from everlong_lab.corpora.haystack import HaystackPiece, token_offsets
from everlong_lab.corpora.tasks import Question
from everlong_lab.eval.baselines import BASELINES, CannotAskError, ReadTexts, baseline_of, spec_of
from everlong_lab.eval.baselines.full import FullAttention, Prefix
from everlong_lab.eval.baselines.memory import configured
from everlong_lab.eval.baselines.passages import TextWindow, cut_windows, passage_around
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.meter import metered
from everlong_lab.eval.plan import PlannedRun
from support import OWN_STATE, TINY_MEMORY, byte_tokenizer, tiny_model, tiny_text_model

TOKENIZER = byte_tokenizer()
MODEL = tiny_model()
CONFIG = MemoryConfig(
    frame=FrameConfig(tokens=1024, recalled_tokens=640, rolling_tokens=192, evict_tokens=64),
    archive=ArchiveConfig(block_tokens=128),
    search=SearchConfig(groups=2, neighbours=1, index=("lexical",)),
    answer=AnswerConfig(recalled_temperature=1),
)
NEEDLE = "The colour of the zeppelin is vermilion."
TEXTS = ["A fox ran over the hill and came to a wood. " * 40, "Nothing happens here. " * 60, "It rained. " * 90]


def parts() -> tuple[HaystackPiece, ...]:
    texts = [TEXTS[0], f"{TEXTS[1]}{NEEDLE} {TEXTS[1]}", TEXTS[2]]
    made: list[HaystackPiece] = []
    for number, text in enumerate(texts):
        begin = made[-1].end if made else 0
        made.append(HaystackPiece(f"text-{number}", text, begin, begin + len(text), token_offsets(TOKENIZER, text)))
    return tuple(made)


def asked(sources: tuple[str, ...] = ()) -> PlannedRun:
    begin = len(TEXTS[0]) + len(TEXTS[1])
    question = Question("What is the colour of the zeppelin?", ("vermilion",), "vermilion", 5, sources=sources)
    return PlannedRun("id/1", "task", 3_000, question, ((begin, begin + len(NEEDLE)),), f"It is said. {NEEDLE}")


@pytest.fixture(scope="module")
def reading() -> Iterator[ReadTexts]:
    with MemoryModel(MODEL, TOKENIZER, None, CONFIG) as mm:
        for part in parts():
            mm.read(part.text, source=part.source)
        yield ReadTexts(mm, parts())


def test_windows_leave_nothing_out_and_keep_to_one_text() -> None:
    windows = cut_windows(parts(), 64)
    assert [token for window in windows for token in range(window.begin, window.end)] == list(range(parts()[-1].end))
    assert max(window.end - window.begin for window in windows) == 64
    for window in windows:
        part = parts()[window.part]
        assert part.begin <= window.begin < window.end <= part.end


def test_a_passage_has_its_window_in_the_middle_where_there_is_room() -> None:
    part = parts()[1]  # of the tokens 1,760 to 4,439
    first, last = part.begin, part.end
    window = TextWindow(first + 640, first + 704, 1)
    assert passage_around(window, part, 192, []) == (first + 576, first + 768)
    assert passage_around(TextWindow(first, first + 64, 1), part, 192, []) == (first, first + 192)
    assert passage_around(TextWindow(last - 10, last, 1), part, 192, []) == (last - 192, last)
    # Beside what is taken it moves away, and in a gap it is as short as that.
    assert passage_around(window, part, 192, [(first + 448, first + 640)]) == (first + 640, first + 832)
    assert passage_around(window, part, 192, [(first + 700, first + 892)]) == (first + 508, first + 700)
    assert passage_around(window, part, 192, [(first + 540, first + 640), (first + 704, first + 720)]) == (
        first + 640,
        first + 704,
    )
    assert passage_around(window, part, 192, [(first + 600, first + 700)]) is None


def okapi(windows: list[str], question: str) -> list[float]:
    """BM25 as it is written down (k1 = 1.5, b = 0.75), by hand; a word of more than half of all has a small weight."""
    texts = [re.findall(r"\w+", window.lower()) for window in windows]
    mean = sum(map(len, texts)) / len(texts)
    holding = {word: sum(word in text for text in texts) for text in texts for word in text}
    weight = {word: math.log(len(texts) - n + 0.5) - math.log(n + 0.5) for word, n in holding.items()}
    least = 0.25 * sum(weight.values()) / len(weight)
    weight = {word: value if value >= 0 else least for word, value in weight.items()}
    return [
        sum(
            weight.get(word, 0.0) * text.count(word) * 2.5 / (text.count(word) + 1.5 * (0.25 + 0.75 * len(text) / mean))
            for word in re.findall(r"\w+", question.lower())
        )
        for text in texts
    ]


def test_bm25_returns_what_a_plain_search_over_windows_finds(reading: ReadTexts) -> None:
    bm25 = baseline_of("bm25:passages=4")
    bm25.prepare(reading)
    whole = "".join(part.text for part in parts())
    cut = [(first, min(first + 64, part.end), part) for part in parts() for first in range(part.begin, part.end, 64)]
    scores = okapi([whole[begin:end].strip() for begin, end, _ in cut], asked().question.text)
    expected: list[tuple[int, int]] = []
    for _, (begin, end, part) in sorted(zip(scores, cut, strict=True), key=lambda scored: -scored[0]):
        free = [True] * part.end
        for first, last in expected:
            free[first:last] = [False] * (last - first)
        middle = (begin + end) // 2
        if free[middle]:
            low = next((n + 1 for n in range(middle, part.begin - 1, -1) if not free[n]), part.begin)
            high = next((n for n in range(middle, part.end) if not free[n]), part.end)
            start = max(low, min(middle - 96, high - 192))
            expected.append((start, min(high, start + 192)))
        if len(expected) == 4:
            break
    assert list(bm25.answer(asked()).recalled) == expected
    assert sum(end - begin for begin, end in expected) <= 4 * 192
    taken = [token for begin, end in expected for token in range(begin, end)]
    assert len(set(taken)) == len(taken), "no two overlap"


@dataclasses.dataclass
class Letters:
    """An encoder that counts two letters, and notes what it is given."""

    seen: list[str] = dataclasses.field(default_factory=list)

    def encode(self, sentences: list[str]) -> np.ndarray:
        self.seen += sentences
        counts = np.array([[text.count("z") + 0.01, text.count("a") + 1.0] for text in sentences])
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def test_minilm_scores_windows_of_32_tokens_and_returns_whole_passages(
    reading: ReadTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Letters()
    monkeypatch.setattr("everlong_lab.eval.baselines.minilm.load_encoder", lambda name: encoder)
    minilm = baseline_of("minilm:passages=1")
    minilm.prepare(reading)
    assert "".join(encoder.seen) == "".join(part.text for part in parts())
    assert max(map(len, encoder.seen)) == 32
    ((begin, end),) = minilm.answer(asked()).recalled
    assert end - begin == 192
    assert begin <= asked().spans[0][0]
    assert asked().spans[0][1] <= end
    middle = (begin + end) // 2
    zeppelin = len(TEXTS[0]) + len(TEXTS[1]) + NEEDLE.index("zeppelin")
    assert zeppelin - 32 < middle < zeppelin + 32


def test_bm25_finds_the_rare_word_and_keeps_to_sources(reading: ReadTexts) -> None:
    bm25 = baseline_of("bm25:passages=1")
    bm25.prepare(reading)
    assert asked().covered(bm25.answer(asked()).recalled) == 1.0
    elsewhere = bm25.answer(asked(("text-2",))).recalled
    assert elsewhere[0][0] >= parts()[2].begin
    assert bm25.held_bytes() > sum(len(part.text) for part in parts())


def test_passages_are_read_anew_with_the_best_one_last(reading: ReadTexts) -> None:
    bm25 = baseline_of("bm25:passages=2")
    bm25.prepare(reading)
    with metered(MODEL) as meter:
        reply = bm25.answer(asked())
    whole = "".join(part.text for part in parts())
    context = "\n\n".join(whole[begin:end].strip() for begin, end in reversed(reply.recalled))
    assert NEEDLE in context[-192:]
    assert reply.text == answer_from_passage(MODEL, TOKENIZER, context, asked().question.text, 5)
    assert meter.prefilled == len(f"{context}\n\n{asked().question.text}")


def test_full_attention_is_plain_transformers_where_all_fits(reading: ReadTexts) -> None:
    short = dataclasses.replace(reading, texts=parts()[:1])
    full = FullAttention()
    full.prepare(short)
    again = [full.answer(asked()).text for _ in range(2)]
    assert full.answer(asked()).recalled == ((0, parts()[0].end),)
    prompt = f"{TEXTS[0]}\n\n{asked().question.text}"
    ids = TOKENIZER(prompt, return_tensors="pt")["input_ids"]
    output = MODEL.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, pad_token_id=256
    )
    assert again == [TOKENIZER.decode(output[0, ids.shape[1] :], skip_special_tokens=True)] * 2


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), *OWN_STATE])
def test_what_is_said_behind_a_prefix_leaves_no_trace_in_it(kind: str, rope: str) -> None:
    """However often it is gone on from, and beyond the room that it was given: as a copy of the cache does it."""
    model = tiny_model(kind, rope)
    ids = torch.randint(5, 200, (1, 1_100), generator=torch.Generator().manual_seed(3))
    prefix, tails = ids[:, :40], (ids[:, 40:70], ids[:, 70:1_000], ids[:, 1_000:])

    def logits(cache: object, rows: torch.Tensor) -> torch.Tensor:
        return model(input_ids=rows, **{cache_argument(model): cache}, use_cache=True).logits

    with torch.inference_mode():
        taken = model(input_ids=prefix, use_cache=True)[cache_argument(model)]
        kept = copy.deepcopy(taken)
        shared = Prefix(taken)
        for tail in (*tails, tails[0]):
            expected, cache = copy.deepcopy(kept), shared.cache_behind_it()
            assert cache.get_seq_length() == 40
            for chunk in (tail[:, :-1], tail[:, -1:]):
                assert torch.equal(logits(cache, chunk), logits(expected, chunk))


def test_full_attention_cuts_the_middle_out_of_what_is_too_long(reading: ReadTexts) -> None:
    full = FullAttention(window=1_256)
    full.prepare(reading)
    end = parts()[-1].end
    assert full.answer(asked()).recalled == ((0, 500), (end - 500, end))
    assert full.held_bytes() == (1_000 + 2 + 2) * reading.kv_token_bytes
    full.release()
    assert not vars(full).keys() - {"window"}


@pytest.mark.parametrize("name", ["random", "recent"])
def test_pages_that_no_question_chose(reading: ReadTexts, name: str) -> None:
    baseline = baseline_of(name)
    baseline.prepare(reading)
    spans = baseline.answer(asked()).recalled
    assert spans == baseline.answer(asked()).recalled
    assert len(set(spans)) == len(spans) == 2 * 3
    core, rolling = reading.mm.memory.core, reading.mm.frame.os.rolling[0]
    assert set(spans) <= {(page.begin, page.end) for page in core.blocks.pages() if page.end <= rolling}
    left = [block.span for block in reading.mm.memory.blocks() if block.span[1] <= rolling]
    newest = sorted((page.begin, page.end) for span in left for page in core.blocks.pages_of(0, *span))[-len(spans) :]
    assert (sorted(spans) == newest) == (name == "recent")


@pytest.mark.parametrize("name", ["random", "recent"])
def test_a_statement_on_two_pages_came_back_when_both_did(reading: ReadTexts, name: str) -> None:
    # A text so short that pages touch which are drawn of it.
    named = asked(("text-2",))
    baseline = baseline_of(name)
    baseline.prepare(reading)
    spans = baseline.answer(named).recalled
    assert sorted(spans) == sorted((page.begin, page.end) for page in baseline.pages(named))
    tokens = {token for begin, end in spans for token in range(begin, end)}
    assert any(begin in tokens and begin - 1 in tokens for begin, _ in spans)
    for edge in {edge for span in spans for edge in span}:
        across = (edge - 3, edge + 3)
        expected = 1.0 if tokens.issuperset(range(*across)) else 0.0
        assert dataclasses.replace(named, spans=(across,)).covered(spans) == expected


def test_random_pages_keep_to_sources_and_come_again(reading: ReadTexts) -> None:
    named = asked(("text-1",))
    drawn = {seed: baseline_of(f"random:seed={seed}") for seed in range(12)}
    spans = {}
    for seed, baseline in drawn.items():
        baseline.prepare(reading)
        spans[seed] = [(page.begin, page.end) for page in baseline.pages(named)]
        assert spans[seed] == [(page.begin, page.end) for page in baseline.pages(named)]
        assert len(set(spans[seed])) == 2 * 3
    part = parts()[1]
    held = [span for found in spans.values() for span in found]
    # A block may begin before its source does; no page is of another's alone.
    assert all(begin < part.end and part.begin < end for begin, end in held)
    assert len({tuple(found) for found in spans.values()}) == 12
    assert len(set(held)) > 20, "from all of it"


def test_given_pages_are_what_the_model_sees(reading: ReadTexts) -> None:
    """Recalling by hand what a search found answers as the search's own recall does."""
    mm, question = reading.mm, asked().question.text
    with configured(mm, quotes=0):
        own = mm.generate(question, 8, remember=False)
    spans = [recall.span for recall in reversed(own.recalled)]
    pages = [page for begin, end in spans for page in mm.memory.core.blocks.pages_of(0, begin, end)]
    assert mm.generate(question, 8, recall=pages, remember=False).text == own.text
    nothing = mm.generate(question, 8, recall=[], remember=False)
    assert nothing.recalled == ()
    assert nothing.text != own.text


def test_parts_of_the_index_are_asked_alone_and_the_memory_keeps_its_own_settings(reading: ReadTexts) -> None:
    before = reading.mm.config
    lexical = baseline_of("lexical:groups=1")
    lexical.prepare(reading)
    assert asked().covered(lexical.answer(asked()).recalled) == 1.0
    assert len(lexical.answer(asked()).recalled) == 1
    assert reading.mm.config is before
    with pytest.raises(RuntimeError), configured(reading.mm, groups=1):
        raise RuntimeError
    assert reading.mm.config is before


@pytest.mark.parametrize("name", ["everlong", "gold", "window", "full", "random"])
def test_an_answer_ends_where_its_score_is_settled(reading: ReadTexts, name: str) -> None:
    # Anything is a candidate here, so the first whole word of whatever a random model says settles the score.
    question = dataclasses.replace(asked().question, candidates=r"\S+", max_new_tokens=200)
    wanted = dataclasses.replace(asked(), question=question)
    baseline = baseline_of(name)
    baseline.prepare(reading)
    text = baseline.answer(wanted).text
    assert question.settled(text) or len(TOKENIZER(text)["input_ids"]) >= 150
    shorter = text[:-1]
    assert not question.settled(shorter), "it went on after that"


@pytest.mark.parametrize("name", ["everlong", "window", "random", "full", "bm25", "gold"])
def test_a_models_own_penalties_on_repeating_punish_nobody(
    reading: ReadTexts, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = baseline_of(name)
    baseline.prepare(reading)
    wanted = dataclasses.replace(asked(), question=dataclasses.replace(asked().question, max_new_tokens=40))
    expected = baseline.answer(wanted).text
    monkeypatch.setattr(MODEL.generation_config, "repetition_penalty", 20.0)
    monkeypatch.setattr(MODEL.generation_config, "no_repeat_ngram_size", 1)
    monkeypatch.setattr(MODEL.generation_config, "encoder_no_repeat_ngram_size", 1)
    assert baseline.answer(wanted).text == expected


def test_the_registry_names_every_baseline_by_its_own_name() -> None:
    assert all(kind.name == name and dataclasses.is_dataclass(kind) for name, kind in BASELINES.items())
    assert {"window", "full", "bm25", "minilm", "random", "recent", "heads", "lexical", "gold"} <= BASELINES.keys()


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("bm25:passages=0", "bm25: passages is 0, expected at least 1"),
        ("minilm:window=0", "minilm: window is 0, expected at least 1"),
        ("full:window=256", "full: window is 256, expected more than the 256 tokens"),
        ("everlong:groups=0", "groups is 0, expected at least 1"),
        ("heads:recalled_temperature=0.5", "recalled_temperature is 0.5, expected at least 1"),
        (
            "everlong:index=heads+tokens",
            "index is 'tokens', expected one of heads, lexical, mean_pool, hnsw, embedding, meaning, encoder, words",
        ),
        ("heads:index=lexical", "baseline heads has no setting 'index'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(spec: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        baseline_of(spec)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            "bm25:passages=10",
            "10 passages of 192 tokens and a question of 256 do not fit the model's window of 2,048; 9 ",
        ),
        ("full:window=4096", "full: window is 4096, the model was trained for 2048 tokens"),
        (
            "everlong:index=lexical+embedding",
            "no part embedding, its index is lexical: .* search.index=lexical,embedding",
        ),
    ],
)
def test_what_does_not_go_with_the_model_or_the_memory_is_refused_before_anything_is_read(spec: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        baseline_of(spec).check(MODEL, TOKENIZER, CONFIG)


@pytest.mark.parametrize("spec", ["bm25:passages=9", "full:window=2048", "full", "everlong", "everlong:index=lexical"])
def test_what_fits_is_not_refused(spec: str) -> None:
    baseline_of(spec).check(MODEL, TOKENIZER, CONFIG)


def test_text_has_no_larger_budget_than_pages() -> None:
    assert baseline_of("bm25").count(CONFIG) == 2
    assert baseline_of("bm25").count(CONFIG.changed(search={"groups": 9})) == 640 // 192


def test_several_parts_of_the_index_are_one_setting(reading: ReadTexts) -> None:
    both = baseline_of("everlong:index=lexical+mean_pool,groups=1")
    assert both.index == ("lexical", "mean_pool")
    assert spec_of(both) == "everlong:groups=1,index=lexical+mean_pool"
    assert baseline_of(spec_of(both)) == both
    assert spec_of(baseline_of("everlong")) == "everlong"
    used: list[tuple[str, ...]] = []
    both.prepare(reading)
    search = reading.mm.searcher.find
    reading.mm.searcher.find = lambda *how, **more: used.append(reading.mm.config.search.index) or search(*how, **more)
    try:
        both.answer(asked())
    finally:
        del reading.mm.searcher.find
    assert used == [("lexical", "mean_pool")]


def test_a_part_alone_without_anything_to_search_says_so(tmp_path: Path) -> None:
    """Else it would be the words under another name, or nothing."""
    config = TINY_MEMORY.changed(search={"index": ("heads", "lexical")})
    with MemoryModel(tiny_model(seed=77), byte_tokenizer(), config=config) as mm:
        mm.read("a few words. " * 20)
        with pytest.raises(CannotAskError, match="no retrieval heads"):
            baseline_of("heads").prepare(ReadTexts(mm, ()))
        baseline_of("everlong").prepare(ReadTexts(mm, ()))
    config = TINY_MEMORY.changed(search={"index": ("lexical",)}, answer={"recall_mode": "text"})
    with MemoryModel(tiny_text_model(), byte_tokenizer(), config=config) as mm:
        mm.read("a few words. " * 20)
        with pytest.raises(CannotAskError, match="text alone"):
            baseline_of("mean_pool").prepare(ReadTexts(mm, ()))

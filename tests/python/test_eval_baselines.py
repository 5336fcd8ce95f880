"""Baselines against independent references: plain transformers, a search by hand, the spans that they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from everlong import MemoryConfig, MemoryModel
from everlong.eval.baselines import BASELINES, Reading, baseline_of
from everlong.eval.baselines.full import FullAttention
from everlong.eval.baselines.memory import configured
from everlong.eval.baselines.passages import cut_passages
from everlong.eval.gold import answer_from_passage
from everlong.eval.haystack import Part, token_offsets
from everlong.eval.meter import metered
from everlong.eval.plan import Asked
from everlong.eval.tasks import Question
from tiny_models import byte_tokenizer, tiny_model

TOKENIZER = byte_tokenizer()
MODEL = tiny_model()
CONFIG = MemoryConfig(
    frame_tokens=1024,
    recalled_tokens=640,
    rolling_tokens=192,
    evict_tokens=64,
    block_tokens=128,
    groups=2,
    neighbours=1,
    index=("lexical",),
    recalled_temperature=1,  # pages that the caller names never cool
)
NEEDLE = "The colour of the zeppelin is vermilion."
TEXTS = ["A fox ran over the hill and came to a wood. " * 40, "Nothing happens here. " * 60, "It rained. " * 90]


def parts() -> tuple[Part, ...]:
    texts = [TEXTS[0], f"{TEXTS[1]}{NEEDLE} {TEXTS[1]}", TEXTS[2]]
    made: list[Part] = []
    for number, text in enumerate(texts):
        begin = made[-1].end if made else 0
        made.append(Part(f"text-{number}", text, begin, begin + len(text), token_offsets(TOKENIZER, text)))
    return tuple(made)


def asked(sources: tuple[str, ...] = ()) -> Asked:
    begin = len(TEXTS[0]) + len(TEXTS[1])
    question = Question("What is the colour of the zeppelin?", ("vermilion",), "vermilion", 5, sources=sources)
    return Asked("id/1", "task", 3_000, question, ((begin, begin + len(NEEDLE)),), f"It is said. {NEEDLE}")


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    with MemoryModel(MODEL, TOKENIZER, None, CONFIG) as mm:
        for part in parts():
            mm.read(part.text, source=part.source)
        yield Reading(mm, parts())


def test_passages_overlap_and_leave_nothing_out() -> None:
    passages = cut_passages(parts(), 192)
    held = {token for passage in passages for token in range(passage.begin, passage.end)}
    assert held == set(range(parts()[-1].end))
    whole = "".join(part.text for part in parts())
    assert all(passage.text == whole[passage.begin : passage.end] for passage in passages)
    assert max(passage.end - passage.begin for passage in passages) == 192


def test_bm25_finds_the_rare_word_and_keeps_to_sources(reading: Reading) -> None:
    bm25 = baseline_of("bm25:passages=1")
    bm25.prepare(reading)
    assert asked().covered(bm25.answer(asked()).recalled) == 1.0
    elsewhere = bm25.answer(asked(("text-2",))).recalled
    assert elsewhere[0][0] >= parts()[2].begin
    assert bm25.held_bytes() > sum(len(part.text) for part in parts())


def test_passages_are_read_anew_with_the_best_one_last(reading: Reading) -> None:
    bm25 = baseline_of("bm25:passages=2")
    bm25.prepare(reading)
    with metered(MODEL) as meter:
        reply = bm25.answer(asked())
    whole = "".join(part.text for part in parts())
    context = "\n\n".join(whole[begin:end].strip() for begin, end in reversed(reply.recalled))
    assert NEEDLE in context[-reading.passage_tokens :]
    assert reply.text == answer_from_passage(MODEL, TOKENIZER, context, asked().question.text, 5)
    assert meter.prefilled == len(f"{context}\n\n{asked().question.text}")


def test_full_attention_is_plain_transformers_where_all_fits(reading: Reading) -> None:
    short = dataclasses.replace(reading, texts=parts()[:1])
    full = FullAttention()
    full.prepare(short)
    assert not full.truncated
    again = [full.answer(asked()).text for _ in range(2)]
    prompt = f"{TEXTS[0]}\n\n{asked().question.text}"
    ids = TOKENIZER(prompt, return_tensors="pt")["input_ids"]
    output = MODEL.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, pad_token_id=256
    )
    assert again == [TOKENIZER.decode(output[0, ids.shape[1] :], skip_special_tokens=True)] * 2


def test_full_attention_cuts_the_middle_out_of_what_is_too_long(reading: Reading) -> None:
    full = FullAttention(window=1_256)
    full.prepare(reading)
    assert full.truncated
    end = parts()[-1].end
    assert full.answer(asked()).recalled == ((0, 500), (end - 500, end))
    assert full.held_bytes() == (1_000 + 2 + 2) * reading.kv_token_bytes
    full.release()
    assert not vars(full).keys() - {"window"}


@pytest.mark.parametrize("name", ["random", "recent"])
def test_pages_that_no_question_chose(reading: Reading, name: str) -> None:
    baseline = baseline_of(name)
    baseline.prepare(reading)
    spans = baseline.answer(asked()).recalled
    assert spans == baseline.answer(asked()).recalled
    assert 1 <= len(spans) <= 2 * 3
    rolling = reading.mm.frame.os.rolling[0]
    assert all(end <= rolling for _, end in spans)
    if name == "recent":
        left = [block.span[1] for block in reading.mm.memory.blocks() if block.span[1] <= rolling]
        assert max(end for _, end in spans) == max(left)


def test_given_pages_are_what_the_model_sees(reading: Reading) -> None:
    """Recalling by hand what a search found answers as the search's own recall does."""
    mm, question = reading.mm, asked().question.text
    own = mm.generate(question, 8, remember=False)
    spans = [recall.span for recall in reversed(own.recalled)]
    pages = [page for begin, end in spans for page in mm.memory.core.pages_of(0, begin, end)]
    assert mm.generate(question, 8, recall=pages, remember=False).text == own.text
    nothing = mm.generate(question, 8, recall=[], remember=False)
    assert nothing.recalled == ()
    assert nothing.text != own.text


def test_parts_of_the_index_are_asked_alone_and_the_memory_keeps_its_own_settings(reading: Reading) -> None:
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
def test_an_answer_ends_where_its_score_is_settled(reading: Reading, name: str) -> None:
    # Anything is a candidate here, so the first whole word of whatever a random model says settles the score.
    question = dataclasses.replace(asked().question, candidates=r"\S+", max_new_tokens=200)
    wanted = dataclasses.replace(asked(), question=question)
    baseline = baseline_of(name)
    baseline.prepare(reading)
    text = baseline.answer(wanted).text
    assert question.settled(text) or len(TOKENIZER(text)["input_ids"]) >= 150
    shorter = text[:-1]
    assert not question.settled(shorter), "it went on after that"


def test_the_registry_names_every_baseline_by_its_own_name() -> None:
    assert all(kind.name == name and dataclasses.is_dataclass(kind) for name, kind in BASELINES.items())
    assert {"window", "full", "bm25", "minilm", "random", "recent", "heads", "lexical", "gold"} <= BASELINES.keys()

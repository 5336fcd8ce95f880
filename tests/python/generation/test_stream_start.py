"""A stream begins as the tokenizer begins every text, with its BOS: once, and in everybody's baseline too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import everlong
from everlong.doctor import examine
from everlong.frame.taps import QueryTap
from everlong.retrieval.question_states import tap_question
from everlong.text.prompt import start_ids, with_start
from support import SMALL, TOLERANCE, byte_tokenizer, next_logits, plain_logits, random_text, tiny_model
from support.interrupted import Interrupted
from support.stream_start import BEGIN, TEMPLATE, TEXT, model_and_tokenizer, open_model


def stream(mm: everlong.MemoryModel) -> list[int]:
    mm.frame.end_of_text()
    return mm.memory.core.blocks.token_ids(0, 0, mm.stream_tokens).tolist()


def test_what_a_tokenizer_begins_a_text_with() -> None:
    tokenizer = byte_tokenizer(begins=True)
    assert start_ids(byte_tokenizer()) == []
    assert start_ids(tokenizer) == [BEGIN]
    assert with_start(tokenizer, [1, 2]) == with_start(tokenizer, [BEGIN, 1, 2]) == [BEGIN, 1, 2]


def test_what_is_read_is_the_plain_forward_over_the_tokenizers_own_text() -> None:
    model, tokenizer = model_and_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        report = mm.read(TEXT[:300], source="book")
        assert (report.tokens, mm.stream_tokens) == (300, 301)
        with mm.frame.branch():
            logits = mm.frame.extend(mm.encode(TEXT[300:340]), "prompt", logits=True)
        expected = plain_logits(model, torch.tensor(tokenizer(TEXT[:340])["input_ids"]))
        assert (logits - expected[-40:]).abs().max() <= TOLERANCE
        mm.read(TEXT[300:], source="more")
        assert stream(mm) == tokenizer(TEXT)["input_ids"]


def test_a_question_to_an_empty_memory_is_transformers_own_prompt() -> None:
    model, tokenizer = model_and_tokenizer()
    ids = torch.tensor(tokenizer(TEXT[:50])["input_ids"])[None]
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        answer = mm.generate(TEXT[:50], max_new_tokens=20)
        assert answer.text == tokenizer.decode(expected[0, 51:], skip_special_tokens=True)
        mm.generate(TEXT[50:60], max_new_tokens=2)
        assert stream(mm).count(BEGIN) == 1


def test_the_queries_of_a_question_are_its_own_on_an_empty_memory() -> None:
    with open_model() as mm:
        ids = mm.encode(TEXT[:20])
        found = tap_question(mm.frame, ids, slice(4, 9), [1]).queries[1]
        with QueryTap(mm.frame.served, [1]) as tap, torch.no_grad():
            mm.model(torch.cat([torch.tensor([BEGIN]), ids])[None])
        torch.testing.assert_close(found, tap.queries(1)[5:10], atol=TOLERANCE, rtol=0)


def test_a_prompt_that_brings_it_has_it_once() -> None:
    """As one that the caller has rendered, with a system message."""
    question = TEMPLATE.partition("{%")[0] + "[Be brief.][Who?]"
    with open_model() as mm:
        mm.generate(question, max_new_tokens=2, chat=False)
        begun = stream(mm)
    assert begun[0] == BEGIN
    assert begun.count(BEGIN) == 1
    assert begun[1:2] == byte_tokenizer()("[")["input_ids"]


def test_an_interrupted_reading_goes_on_behind_it(tmp_path: Path) -> None:
    pieces = [TEXT[i : i + 100] for i in range(0, 600, 100)]
    with open_model(tmp_path / "m") as mm, pytest.raises(KeyboardInterrupt):
        mm.read(Interrupted(pieces, after=2), source="book")
    with open_model(tmp_path / "m") as mm:
        report = mm.read(pieces, source="book")
        assert report.resumed_tokens > 0
        assert report.resumed_tokens + report.tokens == 600
        assert stream(mm) == mm.tokenizer(TEXT)["input_ids"]


def test_a_memory_that_began_without_it_stays_as_it_is(tmp_path: Path) -> None:
    model, tokenizer = model_and_tokenizer()
    earlier = byte_tokenizer(begins=True)
    earlier.backend_tokenizer.post_processor = byte_tokenizer().backend_tokenizer.post_processor
    assert start_ids(earlier) == []
    with everlong.MemoryModel(model, earlier, tmp_path / "m", config=SMALL) as mm, pytest.raises(KeyboardInterrupt):
        mm.read(Interrupted([TEXT[:300], TEXT[300:]], after=1), source="book")
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=SMALL) as mm:
        assert mm.read([TEXT[:300], TEXT[300:]], source="book").resumed_tokens >= 300
        assert stream(mm) == mm.encode(TEXT).tolist()


def test_the_doctor_finds_such_a_model_healthy() -> None:
    report = examine(*model_and_tokenizer(), tokens=256)
    assert report.healthy
    verdicts = {check.name: check.verdict for check in report.checks}
    assert verdicts["frame"] == verdicts["archive fp32"] == "exact"


@pytest.mark.parametrize(
    "first", [1, 3, SMALL.frame.sink_tokens - 1, SMALL.frame.sink_tokens, SMALL.frame.sink_tokens + 1]
)
def test_a_stream_that_was_closed_before_its_sinks_were_full_goes_on(first: int, tmp_path: Path) -> None:
    """What is stored, and what the model says then, is that of a stream that was never closed."""

    def stored(mm: everlong.MemoryModel) -> list[np.ndarray]:
        core = mm.memory.core
        served = mm.frame.served
        pages = [page for page in core.blocks.pages() if page.end > first]
        keys = [[core.blocks.read_keys(page, layer) for layer in range(served.layers)] for page in pages]
        return [np.concatenate([page[layer] for page in keys], axis=1)[:, -200:] for layer in range(served.layers)]

    text = random_text(300)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(text[:first], source="first")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(text[first:], source="second")
        ours, logits = stored(mm), next_logits(mm, "and so on")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(text[:first], source="first")
        mm.read(text[first:], source="second")
        for one, other in zip(ours, stored(mm), strict=True):
            assert np.allclose(one, other, atol=1e-4)
        assert torch.allclose(logits, next_logits(mm, "and so on"), atol=1e-4)

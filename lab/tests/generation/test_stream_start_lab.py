"""A stream begins as the tokenizer begins every text, with its BOS: once, and in everybody's baseline too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import everlong
from everlong.text.prompt import start_ids
from everlong_lab.corpora.facts import make_facts
from everlong_lab.corpora.haystack import build_haystack
from everlong_lab.eval.baselines.base import ReadTexts
from everlong_lab.eval.baselines.full import FullAttention
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.ppl import full_attention_losses
from support import SMALL, TOLERANCE, byte_tokenizer, plain_logits
from support.stream_start import BEGIN, TEXT, model_and_tokenizer, open_model
from support.texts import paragraph_books


def test_perplexity_and_its_baseline_see_the_same() -> None:
    model, tokenizer = model_and_tokenizer()
    ids = tokenizer(TEXT)["input_ids"]
    expected = torch.nn.functional.cross_entropy(
        plain_logits(model, torch.tensor(ids))[:-1], torch.tensor(ids[1:]), reduction="none"
    )
    plain = ids[1:]
    baseline = full_attention_losses(model, plain[:400], plain[400:], start=start_ids(tokenizer))
    torch.testing.assert_close(baseline, expected[401:], atol=TOLERANCE, rtol=0)
    cut = full_attention_losses(model, plain[:400], plain[400:], 300, start=start_ids(tokenizer))
    window = torch.tensor([BEGIN, *plain[-299:]])
    of_window = torch.nn.functional.cross_entropy(plain_logits(model, window)[:-1], window[1:], reduction="none")
    torch.testing.assert_close(cut, of_window[-199:], atol=TOLERANCE, rtol=0)
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        alone = mm.perplexity(TEXT[:200], policy="window")
        torch.testing.assert_close(torch.tensor(alone.token_nll), expected[1:200], atol=TOLERANCE, rtol=0)
        mm.read(TEXT[:200])
        after = mm.perplexity(TEXT[200:300], policy="window")
        torch.testing.assert_close(torch.tensor(after.token_nll), expected[201:300], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chat", [False, True])
def test_baselines_of_plain_transformers_begin_with_it_once(chat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = model_and_tokenizer(chat=chat)
    prompts: list[list[int]] = []
    generate = model.generate

    def seen(**how: Any) -> Any:
        prompts.append(how["input_ids"][0].tolist())
        return generate(**how)

    monkeypatch.setattr(model, "generate", seen)
    answer_from_passage(model, tokenizer, "a passage", "a question?", 2)
    assert prompts[0][0] == BEGIN
    assert prompts[0].count(BEGIN) == 1
    haystack = build_haystack(paragraph_books(), tokenizer, [900], [], [])
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        full = FullAttention(window=700)
        full.prepare(ReadTexts(mm, haystack.parts))
        assert full._ids[0] == BEGIN
        assert full._ids.count(BEGIN) == 1


def test_a_haystacks_spans_are_those_of_the_stream() -> None:
    tokenizer = byte_tokenizer(begins=True)
    haystack = build_haystack(
        paragraph_books(),
        tokenizer,
        [2_000],
        make_facts(("pass-key", "uuid", "name"), 3, seed=0)[:3],
        [100, 900, 1_500],
    )
    with open_model() as mm:
        for part in haystack.parts:
            assert mm.frame.text_begin == part.begin
            mm.read(part.text, source=part.source)
            assert mm.stream_tokens == part.end
        for needle in haystack.needles:
            ids = mm.memory.core.blocks.token_ids(0, needle.begin, needle.end)
            assert tokenizer.decode(ids) == needle.fact.statement

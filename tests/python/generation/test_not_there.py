"""A memory that is unsure says so, and what is nearest, where it is to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import everlong
from everlong.generation.not_there import NOT_THERE
from support import SMALL, byte_tokenizer, random_text, tiny_model

KEY, ELSE = "Zq7#Kx9", "Wv3@Jy5"
CONFIG = SMALL.changed(search={"index": ("lexical",)}, answer={"when_unsure": "say"})


@pytest.fixture
def mm() -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=CONFIG) as made:
        made.read(f"{random_text(900)}. The key is {KEY}. {random_text(1100, seed=2)}", source="first")
        yield made


def test_it_says_so_where_it_is_unsure_alone(mm: everlong.MemoryModel) -> None:
    sure = mm.generate(KEY, max_new_tokens=200, remember=False, chat=False)
    unsure = mm.generate(ELSE, max_new_tokens=200, remember=False, chat=False)
    assert not sure.unsure
    assert unsure.unsure
    assert NOT_THERE not in sure.text
    assert unsure.text.startswith(f"{NOT_THERE} Nearest is: [first")
    assert unsure.finish_reason == "stop"
    assert unsure.recalled
    assert unsure.quoted == ()
    mm.config = CONFIG.changed(answer={"when_unsure": "answer"})
    assert NOT_THERE not in mm.generate(ELSE, max_new_tokens=200, remember=False, chat=False).text


def test_it_comes_as_every_answer_does(mm: everlong.MemoryModel) -> None:
    whole = mm.generate(ELSE, max_new_tokens=200, remember=False, chat=False).text
    assert "".join(mm.stream(ELSE, max_new_tokens=200, remember=False, chat=False)) == whole
    (cut,) = mm.answer_many([ELSE], max_new_tokens=12, chat=False)
    assert cut.text == whole[: len(cut.text)] == NOT_THERE[:12]
    assert cut.finish_reason == "length"
    for how in (
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [101, 111]},
        {"do_sample": True, "no_repeat_ngram_size": 2},
        {"min_new_tokens": 190},
        {"eos_token_id": 7},
    ):
        assert mm.generate(ELSE, max_new_tokens=200, remember=False, chat=False, **how).text == whole
    begin = mm.stream_tokens
    assert mm.generate(ELSE, max_new_tokens=200, chat=False, do_sample=True, temperature=2.0).text == whole
    assert mm.memory.blocks()
    assert mm.stream_tokens > begin + len(whole)

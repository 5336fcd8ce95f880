"""A model whose trigger ends blocks: the same ones in chunks of any length, as the probabilities of its states say."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.parts.trigger import Trigger
from everlong.parts.trigger.runtime import BoundaryPredictions, TriggerRuntime, blocks_of
from support import ROOMY, SMALL, byte_tokenizer, random_text
from support.parts.topic_blocks import a_model, a_pack, states_of  # noqa: F401  # fixtures

RULES = ROOMY.changed(archive={"least_tokens": 16, "cooldown_tokens": 8}, search={"index": ("lexical",)})

LEARNED = RULES.with_part(Trigger(mean_tokens=48))


def spans_of(mm: everlong.MemoryModel) -> list[tuple[int, int]]:
    return [block.span for block in mm.memory.blocks()]


def test_blocks_are_those_of_the_probabilities_of_a_plain_forward(model: Any, pack: pathlib.Path) -> None:
    text = random_text(600)
    with everlong.MemoryModel(model, byte_tokenizer(), config=LEARNED, pack=pack) as mm:
        mm.read(text)
        ends = mm.frame.parts.segmenter
        assert isinstance(ends, TriggerRuntime)
        said = ends.trigger.probabilities(states_of(model, mm.encode(text).tolist())).numpy()
        expected = list(blocks_of(BoundaryPredictions(said, []), LEARNED.os_config(), ends.threshold, ends.lookahead))
        assert spans_of(mm) == [*expected, (expected[-1][1], 600)]
        why = [event["ended_by"] for event in mm.trace() if event["what"] == "archive"]
        assert why.count("topic") > len(why) / 2
        assert np.mean([end - begin for begin, end in expected]) == pytest.approx(48, rel=0.3)  # of some ten blocks
        topics = [end - begin for (begin, end), by in zip(spans_of(mm), why, strict=True) if by == "topic"]
        assert min(topics) >= LEARNED.archive.least_tokens
        assert max(end - begin for begin, end in spans_of(mm)) <= LEARNED.archive.block_tokens


@pytest.mark.parametrize("chunk", [1, 50, 256, 512])
def test_blocks_are_the_same_in_chunks_of_any_length(model: Any, pack: pathlib.Path, chunk: int) -> None:
    found = []
    for size in (64, chunk):
        config = LEARNED.changed(frame={"chunk_tokens": size})
        with everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=pack) as mm:
            mm.read(random_text(560))
            found.append(spans_of(mm))
    assert found[0] == found[1]


def test_each_text_is_heard_from_its_beginning(model: Any, pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Also where a question came between, and in a process that comes later."""
    config = LEARNED.changed(frame={"tokens": 1400, "rolling_tokens": 1000})
    texts = [random_text(200, seed=seed) for seed in (2, 3, 2)]
    with everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=pack) as mm:
        for text in texts:
            mm.read(text, again=True)
        together = spans_of(mm)
    for text in texts:
        with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "memory", config=config, pack=pack) as mm:
            with mm.frame.branch():
                mm.frame.extend(mm.encode("a question"), "prompt")
            mm.read(text, again=True)
            apart = spans_of(mm)
    assert apart == together


def test_keys_and_values_do_not_depend_on_it(model: Any, pack: pathlib.Path) -> None:
    logits = []
    for config in (LEARNED, RULES):
        with everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=pack) as mm:
            logits.append(mm.frame.extend(mm.encode(random_text(500)), "read", logits=True))
    assert torch.equal(*logits)


def test_without_a_trigger_it_is_refused_before_there_is_a_folder(model: Any, tmp_path: pathlib.Path) -> None:
    for one in (None, "auto"):
        with pytest.raises(ValueError, match="trigger: nothing was trained for this model; `everlong train trigger`"):
            everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "memory", config=LEARNED, pack=one)
    assert not (tmp_path / "memory").exists()
    with pytest.raises(ValueError, match="trigger needs the model's keys and states"):
        SMALL.changed(archive={"least_tokens": 8}).with_part(Trigger(mean_tokens=64)).of_text_alone()

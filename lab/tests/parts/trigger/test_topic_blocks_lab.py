"""A model whose trigger ends blocks: the same ones in chunks of any length, as the probabilities of its states say."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong
import everlong_lab.parts.trigger.measure as topics
from everlong.parts.trigger.model import TRIGGER, TriggerNet
from everlong_lab.corpora.boundaries import dialogues, joined
from support import byte_tokenizer, tiny_model
from support.parts.topic_blocks import a_model, a_pack, states_of  # noqa: F401  # fixtures
from support.parts.trigger import LAYERS, drawn_pack
from support.texts import books_with_headings


def test_a_reading_for_the_figures_is_a_plain_forward(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    text = joined(books_with_headings(), 1, seed=0, split="test")[0]
    text = dataclasses.replace(text, text=text.text[:700], cuts=tuple(cut for cut in text.cuts if cut.at < 700))
    monkeypatch.setattr(topics, "_CHUNK_TOKENS", 300)
    read = topics.read_for_eval(model, tokenizer, text, LAYERS)
    with torch.no_grad():
        logits = model(read.ids[None]).logits[0]
    losses = torch.nn.functional.cross_entropy(logits[:-1], read.ids[1:], reduction="none")
    assert np.abs(read.losses[1:] - losses.double().numpy()).max() < 1e-4
    assert (read.states - states_of(model, read.ids.tolist())).abs().max() < 1e-4
    trigger = TriggerNet.of_part(drawn_pack(model).parts[TRIGGER])
    said = trigger.probabilities(read.states).numpy()
    scores = topics.trigger_scores(trigger, read)
    for place, score in zip(read.places, scores, strict=True):
        if place + trigger.settings.lookahead <= len(read.ids):
            assert 1 / (1 + np.exp(-score)) == pytest.approx(said[place + trigger.settings.lookahead - 1], abs=1e-5)


@pytest.mark.slow
def test_figures_of_every_method(model: Any, pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "dialogues", lambda part: dialogues(part)[:3])
    monkeypatch.setattr(topics, "shipped_books", list)
    monkeypatch.setattr(topics, "books_of", lambda files: books_with_headings())
    measuring = topics.Measuring(splices=1, means=(200,))
    report = topics.measure((model, byte_tokenizer()), measuring, pack=pack, config=everlong.MemoryConfig())
    assert set(report.figures) == {"dialogues", "splices"}
    for figures in report.figures.values():
        assert set(figures) == {"trigger", "TextTiling", "surprise", "equal lengths", "every paragraph"}
        assert all(0 <= value <= 1 for found in figures.values() for value in found.values())
    every = report.figures["splices"]["every paragraph"]["F1"]
    assert every == pytest.approx(
        2 * report.sets["splices"]["right"] / sum(report.sets["splices"][n] for n in ("right", "places"))
    )
    assert report.lengths["200"]["blocks"] > 0
    other = tiny_model("llama", num_hidden_layers=4, seed=5), byte_tokenizer()
    with pytest.raises(everlong.errors.EverlongError, match="no trigger"):
        topics.measure(other, measuring, pack="auto", config=everlong.MemoryConfig())

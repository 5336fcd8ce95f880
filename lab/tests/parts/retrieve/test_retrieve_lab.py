"""<RETRIEVE>: what it learns from, that it is said as a row of the output embeddings would say it, and who listens."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import roc_auc_score
from transformers.cache_utils import DynamicCache

import everlong_lab.parts.retrieve.measure as retrieving_eval
from everlong.data import Book, shipped_books
from everlong.models.low_rank import LowRankMaps
from everlong.models.pack import load_pack
from everlong.models.releases import cache_argument
from everlong.parts.retrieve.model import RETRIEVE
from everlong.parts.retrieve.runtime import RetrieveRuntime
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.blocks import SINK_TOKENS
from everlong_lab.corpora.frames import NEEDS, frame_texts
from everlong_lab.corpora.pairs import load_pairs
from everlong_lab.corpora.record import Record
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.retrieve.measure import _ScoredTurn, figures_of, run_retrieving, threshold_of
from everlong_lab.parts.retrieve.train import Training, fit, odds_of, train_on
from everlong_lab.training.run import Run
from support import byte_tokenizer, tiny_model
from support.parts.retrieve import drawn_part
from support.rng import no_global_draws

TOKENS = (96, 160)


def deep_model() -> Any:
    return tiny_model("llama", max_position_embeddings=8192)


def drawn_frames(count: int, split: Any = "train") -> list[Record]:
    books = [Book(book.name, book.text[:60_000]) for book in shipped_books()]
    return frame_texts(byte_tokenizer(), books, load_pairs(["fairytale"]), count=count, split=split, tokens=(800, 2000))


def test_a_frame_has_what_one_question_asks_for_and_not_what_the_other_does() -> None:
    tokenizer, pairs = byte_tokenizer(), load_pairs(["fairytale"])
    sections = {text.name: text for text in pairs.texts}
    asked_of = {question.words: question for question in pairs.questions}
    stories = books = 0
    for frame in drawn_frames(12):
        assert [asked.kind for asked in frame.questions] == list(NEEDS)
        text = tokenizer.decode(frame.ids[SINK_TOKENS:])
        evicted, resident, _ = (asked.words for asked in frame.questions)
        if frame.name in sections:
            stories += 1
            pieces = sections[frame.name].pieces
            own = [pieces[piece] for piece in asked_of[resident].pieces if asked_of[resident].words == resident]
            assert any(piece[-200:] in text for piece in own) or len(own) == 0
            other = asked_of[evicted]
            assert not all(pairs.texts[other.text].pieces[piece] in text for piece in other.pieces)
        else:
            books += 1
            assert evicted != resident
    assert stories == books == 6


def test_splits_share_no_story_and_no_dialogue() -> None:
    names = {split: {f.name for f in drawn_frames(8, split)[::2]} for split in ("train", "fit", "test")}
    assert not names["train"] & names["test"]
    assert not names["fit"] & (names["train"] | names["test"])


def test_it_is_said_as_by_a_model_with_one_row_more(tmp_path: pathlib.Path) -> None:
    """Of plain transformers: output embeddings with the row among them, one question at a time, the maps in weights."""
    model = deep_model()
    pack = drawn_part(model, 1.5)
    pack.save(tmp_path)
    found = RetrieveRuntime.of_part(load_pack(tmp_path).parts[RETRIEVE], model)
    assert found is not None
    frame = drawn_frames(1)[0]
    with torch.no_grad():
        odds = odds_of(model, byte_tokenizer(), found, frame)
    own = deep_model()
    maps = LowRankMaps.of_part(
        dataclasses.replace(
            pack.parts[RETRIEVE],
            tensors={
                n.removeprefix("maps."): t for n, t in pack.parts[RETRIEVE].tensors.items() if n.startswith("maps.")
            },
            settings=pack.parts[RETRIEVE].settings["maps"],
        )
    )
    cache = DynamicCache(config=own.config)
    with torch.no_grad():
        own(frame.ids[None], **{cache_argument(own): cache}, use_cache=True)
        for name, down, up in zip(maps.names, maps.down, maps.up, strict=True):
            own.get_submodule(name).weight += maps.settings.scale * up @ down
        row = pack.parts[RETRIEVE].tensors["row.weight"]
        for asked, expected in zip(frame.questions, odds.tolist(), strict=True):
            ids = build_prompt(byte_tokenizer(), asked.words).ids
            out = own(
                ids[None], **{cache_argument(own): copy.deepcopy(cache)}, use_cache=True, output_hidden_states=True
            )
            state = out.hidden_states[-1][0, -1]
            logits = torch.cat([out.logits[0, -1], state @ row.T + 1.5])
            p = float(logits.softmax(-1)[-1])
            assert np.log(p / (1 - p)) == pytest.approx(expected, abs=2e-3)
    # And nothing of it stays.
    with torch.no_grad():
        ids = frame.ids[None, :50]
        assert torch.equal(model(ids).logits, deep_model()(ids).logits)


@pytest.mark.slow
def test_it_learns_on_what_it_learns_from(tmp_path: pathlib.Path) -> None:
    model, frames = deep_model(), drawn_frames(2)
    both = [*frames, *(dataclasses.replace(frame, split="fit") for frame in frames)]
    training = Training(steps=30, batch=1, check_every=10, learning_rate=1e-2, threads=1, warmup=1)
    run = Run(model, byte_tokenizer(), tmp_path)
    with no_global_draws():
        losses = fit(run, both, training)[2].held_out
    assert min(losses) < 0.8 * losses[0]
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ValueError, match="none"):
        fit(run, frames, training)


@pytest.mark.slow
def test_training_goes_on_where_it_was_cut_short_bit_for_bit(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    frames = [*drawn_frames(2), *(dataclasses.replace(frame, split="fit") for frame in drawn_frames(2))]
    training = Training(steps=4, batch=1, check_every=2, threads=1)
    whole = train_on(Run(model, byte_tokenizer(), tmp_path / "whole"), frames, training)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(step: int, found: dict[str, float]) -> None:
        if step == 4:
            raise Stopped

    with pytest.raises(Stopped):
        train_on(Run(model, byte_tokenizer(), tmp_path / "cut", check=stop), frames, training)
    resumed = train_on(Run(model, byte_tokenizer(), tmp_path / "cut"), frames, training)
    for name, tensor in whole[RETRIEVE].tensors.items():
        assert torch.equal(tensor, resumed[RETRIEVE].tensors[name])


def test_figures_are_by_their_definitions() -> None:
    random = np.random.default_rng(0)
    scored = [_ScoredTurn(NEEDS[at % 3], float(random.integers(10))) for at in range(90)]
    found = figures_of(scored, 5.0)
    needed = np.asarray([one.need == "evicted" for one in scored])
    values = np.asarray([one.score for one in scored])
    assert found["AUC"] == pytest.approx(roc_auc_score(needed, values))
    assert found["recalled"] == pytest.approx((values[needed] >= 5).mean())
    assert found["false alarms"] == pytest.approx((values[~needed] >= 5).mean())
    best = max(figures_of(scored, at)["right"] for at in np.arange(-1, 11, 0.5))
    assert figures_of(scored, threshold_of(scored))["right"] == pytest.approx(best)


def test_always_and_never_are_right_half_of_the_time() -> None:
    model = deep_model()
    frames, others = drawn_frames(4, "test"), drawn_frames(4, "fit")
    report = run_retrieving((model, byte_tokenizer()), drawn_part(model), frames, others)
    assert report.said[retrieving_eval.ALWAYS]["right"] == 0.5
    assert report.said[retrieving_eval.ALWAYS]["false alarms"] == report.said[retrieving_eval.ALWAYS]["recalled"] == 1
    assert retrieving_eval.LEARNED in report.said
    # A question about what stands in the frame has its words.
    assert report.said[retrieving_eval.WORDS]["AUC"] > 0.5
    console = Console(record=True, width=160)
    print_report(report, console)
    assert "false alarms" in console.export_text()

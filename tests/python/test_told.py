"""Head A: blocks with questions that words alone do not decide, what is learned of them, and the controls."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import everlong.eval.explaining as explaining
import everlong.training.writer as training
from everlong.data import Book, shipped_books
from everlong.eval.explaining import Decided, auc, figures_of, print_explaining, run_explaining
from everlong.learned.latents import LatentSettings
from everlong.learned.pack import Pack
from everlong.learned.writer import PART, Writer, WriterConfig
from everlong.models.fingerprint import weights_fingerprint
from everlong.training.attended import BLOCK_TOKENS, SINK_TOKENS
from everlong.training.evicted import evicted_texts
from everlong.training.run import told_reads, train_writer
from everlong.training.told import KINDS, told_blocks, told_states
from everlong.training.writer import ToldRead, WriterTraining, fit_decision
from tiny_models import byte_tokenizer, tiny_model

LAYERS = (1, 2)


def deep_model() -> Any:
    return tiny_model("llama", num_hidden_layers=4, max_position_embeddings=8192)


def small_books() -> list[Book]:
    return [Book(book.name, book.text[:60_000]) for book in shipped_books()]


def test_each_question_meets_a_right_block_and_two_wrong_ones_in_the_same_text() -> None:
    tokenizer = byte_tokenizer()
    blocks = told_blocks(tokenizer, small_books(), texts=8, seed=3)
    assert len(blocks) == 8 * len(KINDS)
    assert [block.split for block in blocks].count("fit") == len(KINDS)
    for place in range(8):
        three = blocks[place * 3 : place * 3 + 3]
        for questions in zip(*(block.asked for block in three), strict=True):
            assert len({asked.question for asked in questions}) == 1
            assert sorted(asked.kind for asked in questions) == sorted(KINDS)
        for block in three:
            assert len(block.ids) == SINK_TOKENS + BLOCK_TOKENS
            text = tokenizer.decode(block.ids)
            for asked in block.asked:
                # A code or a meaning of its own stands where it is right, and nowhere else.
                assert (asked.answer in text) == (asked.kind == "right")
                assert asked.rationale().startswith("I retrieve" if asked.kind == "right" else "I do not retrieve")
                assert len({asked.rationale(kind) for kind in KINDS}) == 3


def test_states_are_the_model_s_and_kept(tmp_path: pathlib.Path) -> None:
    model, blocks = deep_model(), told_blocks(byte_tokenizer(), small_books(), texts=2)
    told: list[int] = []
    told_states(model, blocks[:4], LAYERS, tmp_path / "a", progress=lambda what, done, of: told.append(done))
    states = told_states(model, blocks[:4], LAYERS, tmp_path / "a", progress=lambda *said: told.append(-1))
    assert told == [1, 2, 3, 4]
    for block, own in zip(blocks, states, strict=False):
        with torch.no_grad():
            hidden = model(block.ids[None], output_hidden_states=True).hidden_states
        wide = torch.cat([hidden[layer][0, SINK_TOKENS:] for layer in LAYERS], dim=-1)
        assert (own.float() - wide).abs().max() < 3e-2


def test_the_decision_is_scikit_learn_s(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    states, right = torch.randn(90, 12), torch.arange(90) % 3 == 0
    states[right] += 0.5
    monkeypatch.setattr(training, "decided_states", lambda *given: (states, right))
    writer = Writer.untrained(WriterConfig(LatentSettings(LAYERS, 12, 12, width=8, heads=2, inner=8)))
    fit_decision(writer, None, [])
    found = writer.decision(states).detach().numpy()
    x, y = states.double().numpy(), right.numpy()
    x = (x - x.mean(0)) / x.std(0, ddof=1)
    weight = np.where(y, 0.5 / y.sum(), 0.5 / (~y).sum())
    own = LogisticRegression(C=1 / (2 * training._DECISION_RIDGE), tol=1e-10, max_iter=10_000)
    expected = own.fit(x, y, sample_weight=weight).decision_function(x)
    assert np.abs(found - expected).max() < 2e-2
    assert auc(found[y].tolist(), found[~y].tolist()) == pytest.approx(roc_auc_score(y, found))


def test_figures_are_by_their_definitions() -> None:
    ones = [
        Decided("right", 1.0, "right"),
        Decided("other", -1.0, "words"),
        Decided("words", 2.0, "words"),
        Decided("right", 3.0, "other"),
    ]
    found = figures_of(ones)
    assert (found["AUC, N1"], found["AUC, N2"]) == (1.0, 0.5)
    assert found["right decisions"] == (1.0 + 0.5) / 2
    assert found["right reasons"] == 0.5


def test_without_its_d_nothing_is_told_however_it_was_trained(tmp_path: pathlib.Path) -> None:
    """The shortcut: a question alone, or behind D of another text, decides exactly as one who guesses, for it meets one
    block of each kind.
    """
    model, tokenizer = deep_model(), byte_tokenizer()
    pack = train_writer(
        model,
        tokenizer,
        evicted_texts(tokenizer, small_books(), samples=8),
        told_blocks(tokenizer, small_books(), texts=8),
        work=tmp_path / "work",
        layers=LAYERS,
        settings={"width": 32, "heads": 2, "inner": 32},
        training=WriterTraining(steps=6, batch=2, check_every=3, threads=1, tokens=(8,), why=4.0, again=0.5, lora=2),
    )
    assert float(pack.parts[PART].tensors["lora.model.layers.0.self_attn.q_proj.up"].abs().sum()) > 0
    assert any("why" in entry for entry in pack.parts[PART].made["log"])
    assert float(Writer.of_part(pack.parts[PART]).decide.weight.abs().sum()) > 0
    report = run_explaining((model, tokenizer), pack, texts=2, work=tmp_path / "told", books=small_books())
    assert set(report.decided) == {
        explaining.DETAILS, explaining.POOLED, explaining.STRANGE, explaining.QUESTION,
    }  # fmt: skip
    for control in (explaining.QUESTION, explaining.STRANGE):
        found = report.decided[control]
        assert (found["AUC, N1"], found["AUC, N2"], found["right decisions"]) == (0.5, 0.5, 0.5)
        assert found["right reasons"] == pytest.approx(1 / 3)
    console = Console(record=True, width=160)
    print_explaining(report, console)
    assert "question alone" in console.export_text()


def small_pack(model: Any, told: Sequence[ToldRead]) -> Pack:
    """A writer that was never trained, but whose decision was fitted to what a model says behind its D."""
    size = model.config.hidden_size
    writer = Writer.untrained(WriterConfig(LatentSettings(LAYERS, size, size, width=32, heads=2, inner=32), tokens=64))
    fit_decision(writer, model, told)
    return Pack(weights_fingerprint(model), "", {PART: writer.part({})})


def decisions(model: Any, pack: Pack, told: Sequence[ToldRead], other: int) -> dict[str, list[float]]:
    """By kind, behind D of the block itself (`other` 0) or of one so many blocks on."""
    writer = Writer.of_part(pack.parts[PART])
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for at, one in enumerate(told):
        details = explaining._details(writer, model, told[(at // len(KINDS) * len(KINDS) + other) % len(told)])
        own = details if other else explaining._details(writer, model, one)
        for asked in one.block.asked:
            decided = explaining.decided(writer, model, byte_tokenizer(), one, asked, own)
            found[asked.kind].append(decided.decision)
    return found


def heeding_model() -> Any:
    """One to which it matters what is before a text."""
    model = deep_model()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.ndim == 2 else 1
    return model


def test_behind_its_d_a_block_is_told_from_the_others_and_behind_another_s_it_is_not(tmp_path: pathlib.Path) -> None:
    """On the blocks that the decision was fitted to: what D has of them is there, and it is in D alone."""
    model, tokenizer = heeding_model(), byte_tokenizer()
    told = told_reads(model, tokenizer, told_blocks(tokenizer, small_books(), texts=4), LAYERS, tmp_path)
    pack = small_pack(model, told)
    own, strange = (decisions(model, pack, told, other) for other in (0, len(KINDS)))
    assert auc(own["right"], own["other"] + own["words"]) > 0.9
    assert auc(strange["right"], strange["other"] + strange["words"]) == 0.5


def test_the_check_would_see_a_shortcut(tmp_path: pathlib.Path) -> None:
    """Questions in whose words stands which block they meet: the control that has no D is right, which none may be."""
    model, tokenizer = heeding_model(), byte_tokenizer()
    blocks = [
        dataclasses.replace(
            block,
            asked=tuple(
                dataclasses.replace(asked, question=f"{asked.question} {KINDS.index(asked.kind) * '!!!'}")
                for asked in block.asked
            ),
        )
        for block in told_blocks(tokenizer, small_books(), texts=4)
    ]
    told = told_reads(model, tokenizer, blocks, LAYERS, tmp_path)
    strange = decisions(model, small_pack(model, told), told, len(KINDS))
    assert auc(strange["right"], strange["other"] + strange["words"]) > 0.7

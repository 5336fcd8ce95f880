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

import everlong_lab.parts.writer.measure_decider as explaining
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack, pack_of
from everlong.models.soft_tokens import embedded
from everlong.parts.latents import LatentSettings
from everlong.parts.writer.decider import DeciderSettings
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.evicted import evicted_texts
from everlong_lab.corpora.fact_blocks import KINDS, fact_blocks, fact_stories, rationale
from everlong_lab.corpora.pairs import Pairs, Question, Split, Text
from everlong_lab.eval.statistics import auc
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.writer.measure_decider import Decision, by_words, figures_of, run_explaining
from everlong_lab.parts.writer.train import (
    FactStates,
    Training,
    decided_loss,
    misjudged,
    read_facts,
    train_on,
    verdicts_of,
)
from everlong_lab.training.fact_states import fact_states
from everlong_lab.training.run import Run
from support import byte_tokenizer, deep_model
from support.texts import starts_of_books

LAYERS = (1, 2)


def test_each_question_meets_a_right_block_and_two_wrong_ones_in_the_same_text() -> None:
    tokenizer = byte_tokenizer()
    blocks = fact_blocks(tokenizer, starts_of_books(), texts=8, seed=3)
    assert len(blocks) == 8 * len(KINDS)
    assert [block.split for block in blocks].count("fit") == len(KINDS)
    for place in range(8):
        three = blocks[place * 3 : place * 3 + 3]
        for questions in zip(*(block.questions for block in three), strict=True):
            assert len({asked.words for asked in questions}) == 1
            assert sorted(asked.kind for asked in questions) == sorted(KINDS)
        for block in three:
            assert len(block.ids) == SINK_TOKENS + BLOCK_TOKENS
            text = tokenizer.decode(block.ids)
            for asked in block.questions:
                # A code or a meaning of its own stands where it is right, and nowhere else.
                assert (asked.answers[0] in text) == (asked.kind == "right")
                assert rationale(asked).startswith("I retrieve" if asked.kind == "right" else "I do not retrieve")
                assert len({rationale(asked, kind) for kind in KINDS}) == 3


def drawn_story(name: str, split: Split, seed: int) -> tuple[Text, list[str]]:
    """A story of short sections, and a question to each that its words are in."""
    drawn = np.random.default_rng(seed)
    words = ["".join(drawn.choice(list("bdfgklmnprst"), 5)) for _ in range(90)]
    pieces = [" ".join(drawn.choice(words, 30)) for _ in range(16)]
    return Text(name, tuple(pieces), split, "fairytale"), [
        f"Where is {' '.join(piece.split()[3:6])}?" for piece in pieces
    ]


def drawn_stories(split: Split = "train") -> Pairs:
    texts, questions = [], []
    for number in range(4):
        text, asked = drawn_story(f"story {number}", split, number)
        texts.append(text)
        questions += [Question(words, number, (at,), answers=(f"answer {at}",)) for at, words in enumerate(asked)]
    return Pairs(tuple(texts), tuple(questions))


def test_each_block_of_a_story_answers_one_of_its_questions() -> None:
    tokenizer, pairs = byte_tokenizer(), drawn_stories()
    blocks = fact_stories(tokenizer, pairs, texts=6, splits=("train",), seed=2)
    assert len(blocks) == 6 * len(KINDS)
    assert len({block.name for block in blocks}) == 4
    sections = {question.words: pairs.texts[question.text].pieces[question.pieces[0]] for question in pairs.questions}
    for place in range(6):
        three = blocks[place * 3 : place * 3 + 3]
        assert len({block.name for block in three}) == 1
        texts = [tokenizer.decode(block.ids) for block in three]
        for number, questions in enumerate(zip(*(block.questions for block in three), strict=True)):
            asked = questions[0].words
            assert {one.words for one in questions} == {asked}
            assert sorted(one.kind for one in questions) == sorted(KINDS)
            assert questions[number].kind == "right"
            assert sections[asked] in texts[number]
            own = asked.lower().strip("?").split()
            shared = {
                one.kind: sum(word in text.lower().split() for word in own)
                for one, text in zip(questions, texts, strict=True)
            }
            # A word that the block's edge cuts is one only to who looks at words.
            assert shared["words"] + 2 >= shared["other"]
    with pytest.raises(ValueError, match="no story of test"):
        fact_stories(tokenizer, pairs, texts=1, splits=("test",))


def test_states_are_the_model_s_and_kept(tmp_path: pathlib.Path) -> None:
    model, blocks = deep_model(), fact_blocks(byte_tokenizer(), starts_of_books(), texts=2)
    told: list[int] = []
    fact_states(model, blocks[:4], LAYERS, tmp_path / "a", progress=lambda what, done, of: told.append(done))
    states = fact_states(model, blocks[:4], LAYERS, tmp_path / "a", progress=lambda *said: told.append(-1))
    assert told == [1, 2, 3, 4]
    for block, own in zip(blocks, states, strict=False):
        with torch.no_grad():
            hidden = model(block.ids[None], output_hidden_states=True).hidden_states
        wide = torch.cat([hidden[layer][0, SINK_TOKENS:] for layer in LAYERS], dim=-1)
        assert (own.float() - wide).abs().max() < 3e-2


def test_what_is_lost_by_a_decision_is_numpy_s(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    told = read_facts(model, tokenizer, fact_blocks(tokenizer, starts_of_books(), texts=2), LAYERS, tmp_path)
    writer = small_writer(model)
    details = torch.cat([explaining.details_of(writer, model, one) for one in told])
    lost = float(decided_loss(writer, model, told, details).detach())
    questions = [own.question for place in (0, 3) for own in told[place].exercises]
    with torch.no_grad():
        logits = verdicts_of(writer, model, questions, details).double().numpy()  # [6 blocks, 6 questions, 3]
        for block, question in ((0, 1), (4, 2)):  # padding and the others are nothing to it
            alone = verdicts_of(writer, model, [questions[question]], details[block : block + 1])[0, 0]
            assert np.abs(alone.double().numpy() - logits[block, question]).max() < 1e-4
    log_share = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    log_odds = log_share[..., 0] - np.log1p(-np.exp(log_share[..., 0]))
    entropies, chosen = [], []
    for place in range(2):
        for number, asked in enumerate(told[3 * place].block.questions):
            of = [told[3 * place + at].block.questions[number] for at in range(3)]
            assert {one.words for one in of} == {asked.words}
            column = 3 * place + number
            entropies += [-log_share[3 * place + at, column, KINDS.index(one.kind)] for at, one in enumerate(of)]
            right = 3 * place + [one.kind for one in of].index("right")
            chosen.append(np.log(np.exp(log_odds[:, column]).sum()) - log_odds[right, column])
    for place in range(2):
        three, own = told[3 * place : 3 * place + 3], log_odds[3 * place : 3 * place + 3, 3 * place : 3 * place + 3]
        kinds = [[asked.kind for asked in one.block.questions] for one in three]
        pairs = [
            own[at, number] >= own[[row[number] for row in kinds].index("right"), number]
            for number in range(3)
            for at in range(3)
            if kinds[at][number] != "right"
        ]
        found = misjudged(writer, model, three, details[3 * place : 3 * place + 3])
        assert found == pytest.approx(np.mean(pairs))
    assert lost == pytest.approx(np.mean(entropies) + np.mean(chosen), abs=1e-4)


def test_figures_are_by_their_definitions() -> None:
    ones = [
        Decision("right", 1.0, "right", "right"),
        Decision("other", -1.0, "other", "words"),
        Decision("words", 2.0, "words", "words"),
        Decision("right", 3.0, "words", "other"),
    ]
    found = figures_of(ones)
    assert (found["AUC, N1"], found["AUC, N2"]) == (1.0, 0.5)
    assert found["right decisions"] == (1.0 + 0.5) / 2
    assert (found["right kinds"], found["right reasons"]) == (0.75, 0.5)


def test_words_alone_tell_a_stranger_s_block_and_no_block_that_has_the_words(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    told = read_facts(model, tokenizer, fact_blocks(tokenizer, starts_of_books(), texts=6), LAYERS, tmp_path)
    ones = by_words(tokenizer, told)
    assert [one.kind for one in ones] == [asked.kind for one in told for asked in one.block.questions]
    found = figures_of(ones)
    assert found["AUC, N1"] > 0.5
    assert found["right decisions"] >= max(
        figures_of([dataclasses.replace(one, decision=d) for one in ones])["right decisions"] for d in (-1.0, 1.0)
    )


@pytest.mark.slow
def test_without_its_d_nothing_is_told_however_it_was_trained(tmp_path: pathlib.Path) -> None:
    """The shortcut: a question alone, or behind D of another text, decides exactly as one who guesses, for it meets one
    block of each kind.
    """
    model, tokenizer = deep_model(), byte_tokenizer()
    training = Training(
        layers=LAYERS, steps=6, batch=2, check_every=3, threads=1, tokens=(8,), why=4.0, again=0.5, lora=2, settling=6
    )
    parts = train_on(
        Run(model, tokenizer, tmp_path / "work"),
        evicted_texts(tokenizer, starts_of_books(), samples=8),
        training,
        [fact_blocks(tokenizer, starts_of_books(), texts=8)],
        settings={"width": 32, "heads": 2, "inner": 32},
    )
    pack = pack_of(model, parts)
    assert float(pack.parts[WRITER].tensors["lora.model.layers.0.self_attn.q_proj.up"].abs().sum()) > 0
    assert any("why" in entry for entry in pack.parts[WRITER].made["log"])
    decider = WriterNet.of_part(pack.parts[WRITER]).decider
    assert decider is not None
    assert float(decider.kinds.weight.abs().sum()) > 0
    blocks = fact_blocks(tokenizer, starts_of_books(), texts=2, split="test", seed=1)
    report = run_explaining((model, tokenizer), pack, blocks, "to generated blocks", work=tmp_path / "told")
    assert set(report.decided) == {
        explaining.DETAILS, explaining.POOLED, explaining.STRANGE, explaining.QUESTION, explaining.WORDS,
    }  # fmt: skip
    for control in (explaining.QUESTION, explaining.STRANGE):
        found = report.decided[control]
        assert (found["AUC, N1"], found["AUC, N2"], found["right decisions"]) == (0.5, 0.5, 0.5)
        assert found["right reasons"] == pytest.approx(1 / 3)
    console = Console(record=True, width=160)
    print_report(report, console)
    assert "question alone" in console.export_text()


def small_writer(model: Any) -> WriterNet:
    """A writer that was never trained, with a decision that was not, either."""
    size = model.config.hidden_size
    reader = LatentSettings(LAYERS, size, size, width=32, heads=2, inner=32)
    config = WriterSettings(reader, tokens=64, decider=DeciderSettings(size, width=32, heads=4, inner=32))
    writer = WriterNet.untrained(config)
    assert writer.decider is not None
    torch.nn.init.normal_(writer.decider.kinds.weight, std=0.1)
    return writer


def deciding_pack(model: Any, told: Sequence[FactStates]) -> Pack:
    """Its D are means of embeddings; the decision is trained on them, until it knows these blocks by heart."""
    writer = small_writer(model)
    details = torch.cat([explaining.details_of(writer, model, one) for one in told])
    assert writer.decider is not None
    optimizer = torch.optim.Adam(writer.decider.parameters(), lr=3e-3)
    questions = [own.question for one in told for own in one.exercises]  # each block's own, whatever they say
    blocks = torch.arange(len(told)).repeat_interleave(len(told[0].exercises))
    kinds = torch.tensor([KINDS.index(asked.kind) for one in told for asked in one.block.questions])
    # What `verdicts_of` gives for each question and its own block, without those of all other blocks.
    ids = torch.nn.utils.rnn.pad_sequence(questions, batch_first=True)
    asked = torch.arange(ids.shape[1]) < torch.tensor([len(one) for one in questions])[:, None]
    words = embedded(model, ids).detach()
    for _ in range(250):
        optimizer.zero_grad()
        logits = writer.verdicts(words, asked, details[blocks])
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, kinds))
        optimizer.step()
    return Pack(weights_fingerprint(model), "", {WRITER: writer.part({})})


def decisions(model: Any, pack: Pack, told: Sequence[FactStates], other: int) -> dict[str, list[float]]:
    """By kind, behind D of the block itself (`other` 0) or of one so many blocks on."""
    writer = WriterNet.of_part(pack.parts[WRITER])
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for at, one in enumerate(told):
        strange = told[(at // len(KINDS) * len(KINDS) + other) % len(told)]
        details = explaining.details_of(writer, model, strange if other else one)
        for asked, decided in zip(
            one.block.questions, explaining.decide(writer, model, byte_tokenizer(), one, details), strict=True
        ):
            assert decided.kind == asked.kind
            found[asked.kind].append(decided.decision)
    return found


@pytest.mark.slow
def test_behind_its_d_a_block_is_told_from_the_others_and_behind_another_s_it_is_not(tmp_path: pathlib.Path) -> None:
    """On the blocks that the decision was fitted to: what D has of them is there, and it is in D alone."""
    model, tokenizer = deep_model(), byte_tokenizer()
    told = read_facts(model, tokenizer, fact_blocks(tokenizer, starts_of_books(), texts=2), LAYERS, tmp_path)
    pack = deciding_pack(model, told)
    own, strange = (decisions(model, pack, told, other) for other in (0, len(KINDS)))
    assert auc(own["right"], own["other"] + own["words"]) > 0.9
    assert auc(strange["right"], strange["other"] + strange["words"]) == 0.5


@pytest.mark.slow
def test_the_check_would_see_a_shortcut(tmp_path: pathlib.Path) -> None:
    """Questions in whose words stands which block they meet: the control that has no D is right, which none may be."""
    model, tokenizer = deep_model(), byte_tokenizer()
    blocks = [
        dataclasses.replace(
            block,
            questions=tuple(
                dataclasses.replace(asked, words=f"{asked.words} {KINDS.index(asked.kind) * '!!!'}")
                for asked in block.questions
            ),
        )
        for block in fact_blocks(tokenizer, starts_of_books(), texts=2)
    ]
    told = read_facts(model, tokenizer, blocks, LAYERS, tmp_path)
    strange = decisions(model, deciding_pack(model, told), told, len(KINDS))
    assert auc(strange["right"], strange["other"] + strange["words"]) > 0.7

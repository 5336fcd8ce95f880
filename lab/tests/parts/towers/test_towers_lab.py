"""Towers of late interaction: their arithmetic against numpy in fp64, their pack, their training, their states."""

from __future__ import annotations

import dataclasses
import pathlib
import types
from typing import Any

import numpy as np
import pytest
import torch

from everlong.errors import EverlongError
from everlong.models.early_exit import early_exit_states
from everlong.models.pack import pack_of
from everlong.parts.towers.runtime import TowersRuntime, search_by
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.pairs import Pairs, Question, Text, load_pairs, split_of
from everlong_lab.parts.towers.train import TowerTrainer, train_on
from everlong_lab.parts.towers.train import Training as TowerTraining
from everlong_lab.training.run import Run
from everlong_lab.training.states import POOL_TOKENS, States, as_floats, cached_states
from support import byte_tokenizer, tiny_model
from support.parts.drawn_towers import LAYERS, SETTINGS, WIDTH, drawn_towers
from support.rng import no_global_draws


def drawn_pairs(texts: int = 60, seed: int = 0) -> tuple[Pairs, States]:
    """Two pieces a text; a question is the opposite of one of them, which only learned maps can know."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(8, WIDTH))
    passages, questions, pieces, words, asked = [], [], [], [], []
    row = asked_row = 0
    for number in range(texts):
        spans = []
        meant = rng.normal(size=(2, 8))
        for piece in range(2):
            length = int(rng.integers(6, 15))
            passages.append(meant[piece] @ spread + 0.5 * rng.normal(size=(length, WIDTH)))
            spans.append((row, row + length))
            row += length
        pieces.append(tuple(spans))
        right = int(rng.integers(2))
        questions.append(-(meant[right] @ spread)[None] + 0.5 * rng.normal(size=(5, WIDTH)))
        words.append((asked_row, asked_row + 5))
        asked_row += 5
        asked.append(Question(f"question {number}", number, (right,), "explicit"))
    told = tuple(Text(str(n), ("one", "two"), "fit" if n % 4 == 0 else "train", "drawn") for n in range(texts))

    def bits(rows: list[np.ndarray]) -> np.ndarray:
        return torch.from_numpy(np.concatenate(rows)).bfloat16().view(torch.int16).numpy().view(np.uint16)

    return Pairs(told, tuple(asked)), States(LAYERS, bits(passages), bits(questions), tuple(pieces), tuple(words))


def test_scores_are_those_of_numpy_in_fp64() -> None:
    towers, (pairs, states) = drawn_towers(), drawn_pairs()
    trainer = TowerTrainer(pairs, states, SETTINGS, TowerTraining())
    scores = trainer.scores(towers, [3, 5], [0, 7, 11])
    maps = {name: tensor.double().numpy() for name, tensor in towers.state_dict().items()}
    rows = [span for text in states.pieces for span in text]
    for row, question in enumerate([3, 5]):
        asked = as_floats(states.questions[slice(*states.words[question])]).double().numpy()
        asked = (asked - maps["center"]) * maps["scale"]
        weight = np.logaddexp(0, asked @ maps["importance.weight"].T + maps["importance.bias"])[:, 0]
        queries = asked @ maps["reader.weight"].T
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        for column, passage in enumerate([0, 7, 11]):
            pooled = as_floats(states.passages[slice(*rows[passage])]).double().numpy()
            if len(pooled) % 2:
                pooled = np.concatenate([pooled, pooled[-1:]])
            grouped = pooled.reshape(-1, 2, WIDTH).mean(1)  # group_tokens / POOL_TOKENS = 2
            vectors = ((grouped - maps["center"]) * maps["scale"]) @ maps["writer.weight"].T
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            expected = (weight / weight.sum()) @ (queries @ vectors.T).max(1)
            assert scores[row, column].item() == pytest.approx(expected, abs=1e-4)


def test_training_learns_what_it_is_shown_and_twice_the_same_bits() -> None:
    pairs, states = drawn_pairs()
    training = TowerTraining(steps=120, batch=16, negatives=8, mine_every=40, check_every=40, warmup=10)
    (first, _), (second, _) = (TowerTrainer(pairs, states, SETTINGS, training).train() for _ in range(2))
    trainer = TowerTrainer(pairs, states, SETTINGS, training)
    before, after = trainer.found(drawn_towers(), "fit"), trainer.found(first, "fit")
    assert after["@1"] > 0.8 > 0.3 > before["@1"]
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_training_that_was_cut_short_ends_as_one_that_was_not(tmp_path: pathlib.Path) -> None:
    pairs, states = drawn_pairs()
    training = TowerTraining(steps=60, batch=16, negatives=8, mine_every=200, check_every=20, warmup=10)
    whole, learned = TowerTrainer(pairs, states, SETTINGS, training).train()
    TowerTrainer(
        pairs, states, SETTINGS, dataclasses.replace(training, minutes=0.0), checkpoints=tmp_path
    ).train()  # ends behind its first step
    with no_global_draws():  # a checkpoint has the states of all generators
        went_on, relearned = TowerTrainer(pairs, states, SETTINGS, training, checkpoints=tmp_path).train()
    assert relearned.steps == learned.steps == 60
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, went_on.state_dict()[name]), name


def test_passages_that_were_mined_before_it_was_cut_short_are_trained_on(tmp_path: pathlib.Path) -> None:
    pairs, states = drawn_pairs()
    training = TowerTraining(steps=60, batch=16, negatives=8, mine_every=30, check_every=20, warmup=10)
    whole, _ = TowerTrainer(pairs, states, SETTINGS, training).train()

    def stop(step: int, found: dict[str, float]) -> None:
        if step == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TowerTrainer(pairs, states, SETTINGS, training, checkpoints=tmp_path, progress=stop).train()
    went_on, _ = TowerTrainer(pairs, states, SETTINGS, training, checkpoints=tmp_path).train()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, went_on.state_dict()[name]), name


def test_a_teacher_is_followed() -> None:
    """Where the right passages say nothing, only the teacher's similarities can be learned."""
    pairs, states = drawn_pairs()
    rng = np.random.default_rng(1)
    asked = rng.normal(size=(len(pairs.questions), 8)).astype(np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    taught = rng.normal(size=(2 * len(pairs.texts), 8)).astype(np.float32)
    taught /= np.linalg.norm(taught, axis=1, keepdims=True)
    training = TowerTraining(steps=40, batch=16, negatives=0, check_every=20, teacher_share=1.0)
    alone, _ = TowerTrainer(pairs, states, SETTINGS, training).train()
    led, _ = TowerTrainer(pairs, states, SETTINGS, training, (taught, asked)).train()
    assert not torch.equal(alone.writer.weight, led.writer.weight)


def small_pairs() -> Pairs:
    texts = [Text(f"story {n}", (f"The cat {n} sat.", f"A dog {n} ran far away."), "train", "own") for n in range(3)]
    texts += [Text("", (f"Passage number {n} is short.",), "fit" if n == 1 else "train", "own") for n in range(5)]
    asked = [Question(f"Who sat, {n}?", n, (0,)) for n in range(3)]
    asked += [Question(f"Which number, {n}?", 3 + n, (0,)) for n in range(5)]
    return Pairs(tuple(texts), tuple(asked))


def test_states_are_cached_and_go_on_where_they_were_cut_short(tmp_path: pathlib.Path) -> None:
    model, tokenizer, pairs = tiny_model(), byte_tokenizer(), small_pairs()
    whole = cached_states(model, tokenizer, pairs, LAYERS[:1], tmp_path / "whole")

    def stop(what: str, done: int, of: int) -> None:
        if what == "texts" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_states(model, tokenizer, pairs, LAYERS[:1], tmp_path / "cut", progress=stop)
    forwards: list[str] = []
    again = cached_states(
        model, tokenizer, pairs, LAYERS[:1], tmp_path / "cut", progress=lambda what, *_: forwards.append(what)
    )
    assert forwards.count("texts") == 4 - 2  # three stories and a run of short ones; two were there
    assert np.array_equal(whole.passages, again.passages)
    assert np.array_equal(whole.questions, again.questions)
    assert (whole.pieces, whole.words) == (again.pieces, again.words)
    assert [len(text) for text in whole.pieces] == [len(text.pieces) for text in pairs.texts]
    with pytest.raises(EverlongError, match="other seed"):
        cached_states(model, tokenizer, pairs, LAYERS[:1], tmp_path / "cut", seed=1)


def test_a_text_has_the_states_of_its_own_tokens(tmp_path: pathlib.Path) -> None:
    model, tokenizer, pairs = tiny_model(), byte_tokenizer(), small_pairs()
    states = cached_states(model, tokenizer, pairs, (1,), tmp_path)
    text = pairs.texts[1]
    ids = torch.tensor(
        tokenizer("".join(piece + "\n\n" for piece in text.pieces), add_special_tokens=False)["input_ids"]
    )
    expected = early_exit_states(model, ids, (1,))[1]
    first, last = states.pieces[1][0]
    got = as_floats(states.passages[first:last]).float()
    pooled = expected[: (len(expected) // POOL_TOKENS) * POOL_TOKENS].view(-1, POOL_TOKENS, expected.shape[-1]).mean(1)
    torch.testing.assert_close(got, pooled[: last - first], atol=0.02, rtol=0.02)


def test_a_question_has_the_states_of_its_own_turn(tmp_path: pathlib.Path) -> None:
    model, tokenizer, pairs = tiny_model(), byte_tokenizer(), small_pairs()
    states = cached_states(model, tokenizer, pairs, (1,), tmp_path, seed=3)  # by which they stand behind no text
    for question, (first, last) in zip(pairs.questions, states.words, strict=True):
        prompt = build_prompt(tokenizer, question.words)
        expected = early_exit_states(model, prompt.ids[: prompt.question.stop], (1,))[1][prompt.question]
        torch.testing.assert_close(as_floats(states.questions[first:last]).float(), expected, atol=0.02, rtol=0.02)


def test_the_command_s_way_from_pairs_to_a_pack(tmp_path: pathlib.Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    training = TowerTraining(layers=(1,), steps=4, batch=4, negatives=2, check_every=2)
    pack = pack_of(model, train_on(Run(model, tokenizer, tmp_path), small_pairs(), training))
    made = pack.parts["towers"].made
    assert made["data"] == {"own": 7}
    assert made["steps"] == 4
    meaning = TowersRuntime(pack, page_tokens=16)
    told: list[tuple[object, ...]] = []
    core: Any = types.SimpleNamespace(
        index=types.SimpleNamespace(set_meaning=lambda *what, **where: told.append((*what, where)))
    )
    search_by(meaning, core, 3, 1 << 20)
    assert told == [(meaning.id, 128, 4, {"device": 3, "device_bytes": 1 << 20})]
    ids = torch.arange(40)
    hidden = early_exit_states(model, ids, meaning.needs.hidden_layers)
    (tensor,) = meaning.write_block(None, (0, 40), ids, hidden).values()
    assert tensor.dtype == np.int8
    assert tensor.shape == (4 + 4 + 2, 128)


def test_shipped_sets_are_split_by_story() -> None:
    pairs = load_pairs()
    by_split = {split: {pairs.questions[at].text for at in pairs.of_split(split)} for split in ("train", "fit", "test")}
    assert not by_split["train"] & by_split["fit"]
    assert not by_split["train"] & by_split["test"]
    assert pairs.origins().keys() == {"fairytale", "squad", "natural"}
    for split in ("fit", "test"):
        assert {pairs.texts[text].origin for text in by_split[split]} == {"fairytale"}
    assert split_of("Snow-man") == pairs.texts[0].split
    for question in pairs.questions:
        assert all(0 <= piece < len(pairs.texts[question.text].pieces) for piece in question.pieces)


def test_a_line_that_is_no_pair_is_told_with_its_place(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "Who?", "passage": "Me."}\n{"question": "Who?"}\n')
    with pytest.raises(EverlongError, match=r"own\.jsonl, line 2"):
        load_pairs((), [file])
    with pytest.raises(EverlongError, match="no set"):
        load_pairs(("wikipedia",))
    file.write_text('{"question": "Who?", "passage": "Me."}\n')
    assert load_pairs((), [file]).questions[0].words == "Who?"

"""Towers over Detail Tokens: what they are trained on, what a block's vectors are made of, and their search."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.models.early_exit import early_exit_states
from everlong.models.pack import Pack, PackError, pack_of
from everlong.parts.late_interaction import quantize_int8
from everlong.parts.latents import LatentSettings
from everlong.parts.towers.model import TOWERS, LateTowers, groups_of
from everlong.parts.towers.runtime import TowersRuntime
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.pairs import Pairs, Question, Text, load_pairs, with_stories
from everlong_lab.parts.towers.details import DetailsOfPassages
from everlong_lab.parts.towers.train import Training, train_on
from everlong_lab.training.run import Run
from everlong_lab.training.states import as_floats, cached_states
from support import SMALL, byte_tokenizer, random_text, tiny_model

LAYERS = (1, 2)


def drawn_writer(model: Any) -> WriterNet:
    size = model.config.hidden_size
    writer = WriterNet.untrained(WriterSettings(LatentSettings(LAYERS, size, size, width=16, heads=2, inner=16)))
    with torch.no_grad():
        for parameter in writer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return writer


def drawn_pairs() -> Pairs:
    texts = [
        Text(f"{at}", (random_text(60 + at, seed=at), random_text(45, seed=at + 50)), "train", "own") for at in range(8)
    ]
    texts = [dataclasses.replace(text, split="fit") if at % 4 == 3 else text for at, text in enumerate(texts)]
    return Pairs(tuple(texts), tuple(Question(random_text(20, seed=at), at, (at % 2,)) for at in range(8)))


def drawn_pack(model: Any, work: pathlib.Path) -> Pack:
    training = Training(layers=(1,), details_tokens=8, steps=4, batch=4, negatives=2, check_every=2)
    writer = drawn_writer(model).part({})
    return pack_of(model, train_on(Run(model, byte_tokenizer(), work), drawn_pairs(), training, writer=writer))


def test_a_passage_is_the_writer_s_detail_tokens_of_it(tmp_path: pathlib.Path) -> None:
    model, tokenizer, pairs = tiny_model("llama", num_hidden_layers=4), byte_tokenizer(), drawn_pairs()
    writer = drawn_writer(model)
    states = cached_states(model, tokenizer, pairs, (1,), tmp_path, details=DetailsOfPassages("w", writer, 8))
    for number in (0, 5):
        pieces = [
            torch.tensor(tokenizer(piece + "\n\n", add_special_tokens=False)["input_ids"])
            for piece in pairs.texts[number].pieces
        ]
        with torch.no_grad():
            hidden = model(torch.cat(pieces)[None], output_hidden_states=True).hidden_states
        read = torch.cat([hidden[layer][0] for layer in LAYERS], dim=-1)
        own = read[len(pieces[0]) :]
        count = -(-len(pieces[1]) // 8)
        expected = writer.details(own, model.get_input_embeddings()(pieces[1]), count)
        first, last = states.pieces[number][1]
        assert last - first == count
        torch.testing.assert_close(as_floats(states.passages[first:last]).float(), expected, atol=0.02, rtol=0.02)


def test_vectors_of_blocks_are_those_of_their_details_and_are_searched(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    pack = drawn_pack(model, tmp_path / "work")
    settings = LateTowers.of_part(pack.parts[TOWERS]).settings
    assert (settings.details_size, settings.writer) == (model.config.hidden_size, pack.parts[WRITER].id)
    assert set(pack.parts[TOWERS].made["figures"]) == {"fit", "test"}
    pack.save(tmp_path / "pack")
    config = SMALL.changed(search={"index": "meaning"})
    with everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=tmp_path / "pack") as mm:
        mm.read(random_text(900))
        meaning = mm.frame.parts.get("towers")
        assert meaning is not None
        writer = WriterNet.of_part(pack.parts[WRITER])
        block = mm.memory.core.blocks.infos()[0]
        ids = torch.from_numpy(mm.memory.core.blocks.token_ids(0, block.begin, block.end)).long()
        hidden = early_exit_states(model, ids, LAYERS)  # the first block is read behind nothing
        count = groups_of(len(ids), mm.config.archive.page_tokens, 8)
        read = torch.cat([hidden[layer] for layer in LAYERS], dim=-1)
        with torch.no_grad():
            details = writer.details(read, model.get_input_embeddings()(ids), count)
        kept = mm.memory.core.blocks.tensors(block.id)[f"meaning.{meaning.id}"]
        expected = quantize_int8(meaning.towers.written(details)).numpy()
        assert kept.shape == expected.shape
        assert np.abs(kept.astype(int) - expected.astype(int)).max() <= 3
        inputs = mm.searcher.inputs(build_prompt(mm.tokenizer, random_text(60, seed=5)))
        assert len(mm.memory.core.search.rankings(5, **inputs)[0].pages) == 5


def test_towers_without_their_writer_are_refused(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    pack = drawn_pack(model, tmp_path)
    for parts in (
        {TOWERS: pack.parts[TOWERS]},
        {**pack.parts, WRITER: WriterNet.untrained(drawn_writer(model).settings).part({})},
    ):
        with pytest.raises(PackError, match="writer"):
            TowersRuntime(dataclasses.replace(pack, parts=parts), 16, model)


def test_fewer_stories_are_trained_on_and_all_that_are_held_out_stay() -> None:
    whole = load_pairs(["fairytale"])
    some = with_stories(whole, 5)
    assert sum(text.split == "train" for text in some.texts) == 5
    for split in ("fit", "test"):
        words = [[pairs.questions[at].words for at in pairs.of_split(split)] for pairs in (whole, some)]
        assert words[0] == words[1]
    for question in some.questions[:200]:
        text = next(text for text in whole.texts if text.name == some.texts[question.text].name)
        assert some.texts[question.text] == text

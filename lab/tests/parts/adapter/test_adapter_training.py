"""What an adapter is trained on and by: passages where they are said to stand, own answers, exact losses."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from everlong.frame.offers import Offers
from everlong.frame.parts import Parts
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import pack_of
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.pairs import Pairs, Question, Text
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.parts.adapter.answers import Example, TeacherAnswer, read_examples, taught_answers
from everlong_lab.parts.adapter.train import AdapterTrainer, train_on
from everlong_lab.parts.adapter.train import Training as AdapterTraining
from everlong_lab.training.run import Run
from support import SMALL, byte_tokenizer, random_text, tiny_model

ADAPTER = "adapter"  # what a pack has it by
CONFIG = SMALL.changed(search={"index": ("lexical",)}, answer={"recall_mode": "kv"})
TRAINING = AdapterTraining(rank=4, steps=6, batch=2, held_out=4, check_every=3, warmup=1, learning_rate=2e-3)


def words(seed: int, count: int) -> str:
    letters = random_text(count * 5, seed=seed)
    return " ".join(letters[at : at + 4] for at in range(0, len(letters), 5))


def pairs() -> Pairs:
    """Six stories of four sections, a question to each section, and passages to be planted."""
    texts = [
        Text(f"story {at}", tuple(words(10 * at + piece, 30) for piece in range(4)), "train", "fairytale")
        for at in range(6)
    ]
    texts += [Text(f"lone {at}", (words(500 + at, 12),), "train", "squad") for at in range(8)]
    texts += [Text("held", tuple(words(900 + piece, 30) for piece in range(3)), "test", "fairytale")]
    questions = []
    for number, text in enumerate(texts):
        for piece, said in enumerate(text.pieces):
            asked = said.split()
            questions.append(Question(f"{asked[1]} {asked[2]}?", number, (piece,)))
    return Pairs(tuple(texts), tuple(questions))


@pytest.fixture
def mm() -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG, pack=None) as mm:
        yield mm


def test_passages_stand_where_examples_say(mm: everlong.MemoryModel, tmp_path: Path) -> None:
    examples = read_examples(mm, pairs(), tokens=3000, seed=1)
    assert 3000 <= mm.stream_tokens < 3000 + 1200
    assert {len(one.source.split()) for one in examples} == {3}
    planted = [one for one in examples if len(one.passage) < 80]
    assert planted
    assert len(planted) < len(examples)
    for one in examples:
        ids = mm.memory.core.blocks.token_ids(0, *one.span).tolist()
        assert mm.tokenizer.decode(ids) == f"{one.passage}\n\n"
        assert one.words.removesuffix("?") in one.passage
        assert not one.passage.startswith(words(900, 30)[:20])
    before = mm.stream_tokens
    assert read_examples(mm, pairs(), tokens=3000, seed=1) == examples
    assert mm.stream_tokens == before


def test_answers_are_those_of_plain_transformers(tmp_path: Path) -> None:
    """One by one and without a batch; and what was answered is not answered again."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    asked = [Example(words(at, 2), words(at + 50, 5 + at), (0, 1), "one") for at in range(30)]
    taught = taught_answers(model, tokenizer, asked, tmp_path)
    for one, answer in zip(asked, taught, strict=True):
        assert tokenizer.decode(answer.ids, skip_special_tokens=True) == answer_from_passage(
            model, tokenizer, one.passage, one.words, 28
        )
        ids = tokenizer(f"{one.passage}\n\n{one.words}", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids + answer.ids[:-1].tolist()])).logits[0, len(ids) - 1 :]
        best = logits.log_softmax(-1).topk(16)
        torch.testing.assert_close(answer.log_probabilities, best.values, rtol=1e-3, atol=1e-3)
    again = taught_answers(None, tokenizer, asked, tmp_path)
    for one, other in zip(taught, again, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.log_probabilities, other.log_probabilities)


class Helps:
    """A part that has maps beside the model while it answers."""

    def __init__(self, attached: AttachedMaps) -> None:
        self._attached = attached

    def adapt(self, frame: Any) -> AbstractContextManager[None]:
        return self._attached.active()


def random_taught(count: int) -> list[TeacherAnswer]:
    generator = torch.Generator().manual_seed(2)
    taught = []
    for _ in range(count):
        scores = torch.randn(5, 257, generator=generator) * 3
        best = scores.log_softmax(-1).topk(16)
        taught.append(TeacherAnswer(scores.argmax(-1), best.indices, best.values))
    return taught


def test_the_loss_is_that_of_an_answer_from_the_memory(mm: everlong.MemoryModel) -> None:
    """Behind the frame itself, by the path that answers a user."""
    examples = read_examples(mm, pairs(), tokens=3000, seed=1)
    taught = random_taught(len(examples))
    trainer = AdapterTrainer(mm, examples, taught, TRAINING)
    adapter = LowRankMaps(MapSettings(4), mapped_layers(mm.model))
    for up in adapter.up:
        up.data.normal_(std=0.05)
    attached = AttachedMaps(adapter, mm.model)
    for at in (0, 5, len(examples) - 1):
        loss = trainer._loss(trainer._sample_question(at, random.Random(7)), at, attached)
        assert loss.requires_grad
        prompt = build_prompt(mm.tokenizer, examples[at].words)
        with mm.frame.branch():
            mm.frame.clear_recalled()
            tapped = mm.searcher.tap(prompt)
            drawn = random.Random(7)
            count = drawn.choice(TRAINING.groups)
            came: list[Offers] = []

            for _ in mm.frame.begin_prompt():
                found = mm.searcher.find(prompt, tapped=tapped)
                came.append(trainer._with_the_right_one(found, examples[at], count, drawn))
                mm.frame.bring_back(came[-1])
            begin, end = examples[at].span
            assert any(page.begin < end and begin < page.end for offer in came[0] for page in offer.pages)
            own = mm.frame.parts
            mm.frame.stream.parts = Parts({"adapter": Helps(attached)})
            ids = torch.cat([prompt.ids, taught[at].ids[:-1]])
            logits = mm.frame.extend(ids, "prompt", logits=True)[-len(taught[at].ids) :]
            mm.frame.stream.parts = own
        said = logits.log_softmax(-1).gather(-1, taught[at].tokens).double()
        wanted = taught[at].log_probabilities.double().log_softmax(-1)
        expected = (wanted.exp() * (wanted - said)).sum(-1).mean()
        torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-3, atol=1e-4)


def test_it_learns_and_a_run_that_was_cut_short_goes_on(mm: everlong.MemoryModel, tmp_path: Path) -> None:
    examples = read_examples(mm, pairs(), tokens=3000, seed=1)
    taught = taught_answers(mm.model, mm.tokenizer, examples, tmp_path / "answers")

    def trainer(training: AdapterTraining, name: str) -> AdapterTrainer:
        return AdapterTrainer(mm, examples, taught, training, checkpoints=tmp_path / name)

    whole, learned = trainer(TRAINING, "whole").train()
    assert [entry["step"] for entry in learned.log] == [0, 3, 6]
    assert min(entry["held out"] for entry in learned.log[1:]) < learned.log[0]["held out"]

    def stop(step: int, entry: dict[str, float]) -> None:
        if step == 6:
            raise KeyboardInterrupt

    cut = AdapterTrainer(mm, examples, taught, TRAINING, checkpoints=tmp_path / "cut", progress=stop)
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    again, relearned = trainer(TRAINING, "cut").train()
    assert relearned.steps == 6
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_too_few_questions_are_refused(mm: everlong.MemoryModel) -> None:
    examples = read_examples(mm, pairs(), tokens=300, seed=1)
    with pytest.raises(ValueError, match="too few to train on"):
        AdapterTrainer(mm, examples[:2], random_taught(2), TRAINING)


def test_a_pack_is_trained_and_used(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    training = dataclasses.replace(TRAINING, tokens=6000, steps=3)
    pack = pack_of(model, train_on(Run(model, tokenizer, tmp_path / "work"), pairs(), training))
    pack.save(tmp_path / "pack")
    made = pack.parts[ADAPTER].made
    assert made["data"] == ["fairytale", "squad"]
    assert made["steps"] == 3
    with everlong.MemoryModel(model, tokenizer, None, CONFIG, pack=tmp_path / "pack") as mm:
        assert mm.frame.parts.adapter is not None

"""Training of the encoder on a few made-up stories: its lessons, its scores, and that it goes on where it stopped."""

from __future__ import annotations

import math
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from everlong.parts.encoder.model import ENCODER, TextEncoder, WordPieces, learned_of, states_of
from everlong_lab.corpora.pairs import Pairs, Question, Text
from everlong_lab.parts.encoder import train
from everlong_lab.parts.encoder.lessons import LONGEST, Batch, Corpus, Lessons, Words
from everlong_lab.parts.encoder.train import EncoderTrainer, Training
from everlong_lab.training.run import Run
from support.parts.encoder import SETTINGS, drawn_part, tiny_bert
from support.texts import random_words


def pairs() -> Pairs:
    """Return two stories to train on, one that stops training, one to test, and passages of other sets."""
    texts, questions = [], []
    for number, split in enumerate(("train", "train", "fit", "test")):
        texts.append(
            Text(f"story {number}", tuple(random_words(120, 10 * number + at) for at in range(5)), split, "fairytale")
        )
        for at in range(5):
            questions.append(Question(texts[-1].pieces[at][30:70], number, (at,), ("explicit", "implicit")[at % 2]))
    for number in range(30):
        words = random_words(1600 if number == 0 else 90, 100 + number)
        texts.append(Text("", (words,), "train", "squad" if number % 2 else "natural"))
        answers = (words.split()[12],) if number % 2 == 0 else ()
        questions.append(Question(words[10:50], len(texts) - 1, (0,), answers=answers))
    return Pairs(tuple(texts), tuple(questions))


def corpus() -> Corpus:
    made, pieces = pairs(), WordPieces()
    return Corpus(
        made,
        [pieces.ids_of(text.pieces) for text in made.texts],
        pieces.ids_of([question.words for question in made.questions]),
        pieces.ids_of([question.answers[0] if question.answers else "" for question in made.questions]),
        pieces.ids_of([random_words(900, 7)]),
    )


def test_a_lesson_has_every_question_s_passage_and_wrong_ones_of_its_own_text() -> None:
    of = corpus()
    lessons = Lessons(of)
    known = [set(row) for rows in of.passages for row in rows]
    foreign = set(of.foreign[0])
    for seed in range(20):
        batch = lessons.drawn(np.random.default_rng(seed))
        assert batch.right.shape == (len(batch.questions), len(batch.passages))
        assert batch.right.any(axis=1).all()
        assert not batch.right.all(axis=1).any()
        for row in batch.passages:
            assert 0 < len(row) <= LONGEST
            own = set(row) - foreign
            assert any(len(own & words) >= 0.5 * len(own) for words in known)
    held_out = {tuple(row) for at in (2, 3) for row in of.passages[at]}
    drawn = [tuple(row) for row in lessons.drawn(np.random.default_rng(1)).passages]
    assert not held_out & set(drawn)


def test_a_long_passage_is_met_by_the_page_around_its_answer_or_whole() -> None:
    of = corpus()
    lessons = Lessons(of)
    at = next(at for at, question in enumerate(of.pairs.questions) if len(of.passages[question.text][0]) > 300)
    place, answer = (of.pairs.questions[at].text, 0), of.answers[at]
    sizes = set()
    for seed in range(40):
        row = lessons._surrounded(place, answer, np.random.default_rng(seed), around=False)
        sizes.add(len(row))
        if len(row) == 64:
            assert any(row[first : first + len(answer)] == answer for first in range(64 - len(answer) + 1))
    assert 64 in sizes
    assert max(sizes) == LONGEST


def test_pages_of_books_are_wrong_passages() -> None:
    of = corpus()
    batch = Lessons(of).drawn(np.random.default_rng(2))
    foreign = of.foreign[0]
    of_books = [
        at
        for at, row in enumerate(batch.passages)
        if len(row) == 64 and any(foreign[first : first + 64] == row for first in range(len(foreign)))
    ]
    assert len(of_books) >= 5
    assert not batch.right[:, of_books].any()


def test_words_are_scored_as_bm25_says() -> None:
    random = np.random.default_rng(0)
    passages = [random.integers(0, 12, random.integers(3, 30)).tolist() for _ in range(9)]
    question = [1, 2, 2, 40]
    mean = sum(map(len, passages)) / 9
    expected = []
    for row in passages:
        score = 0.0
        for piece in set(question):
            holding = sum(piece in other for other in passages)
            often = Counter(row)[piece]
            rare = math.log(1 + (9 - holding + 0.5) / (holding + 0.5))
            score += rare * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * len(row) / mean))
        expected.append(score)
    np.testing.assert_allclose(Words(passages).scores([question])[0], expected, rtol=1e-5)


def test_scores_are_sums_of_each_piece_s_best_product() -> None:
    of = corpus()
    trainer = EncoderTrainer(tiny_bert(), of, SETTINGS, Training())
    batch = Lessons(of).drawn(np.random.default_rng(3))
    small = Batch(batch.questions[:3], batch.passages[:4], batch.right[:3, :4])
    with torch.no_grad():
        found = trainer.scores(small)
        vectors = [trainer._written([row])[0] for row in small.passages]
        asked = [trainer._question_vectors([row])[0] for row in small.questions]
    expected = torch.tensor([[float((q @ v.T).amax(dim=1).sum()) for v in vectors] for q in asked])
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)  # padding moves 16 bits a little


def test_sentences_are_mapped_to_where_they_were_before_training() -> None:
    of, bert, part = corpus(), tiny_bert(), drawn_part()
    trainer = EncoderTrainer(bert, of, SETTINGS, Training())
    trainer.learner.maps.load_state_dict(learned_of(part, 32)[0].state_dict())
    with torch.no_grad():
        for up in trainer.learner.maps.up:
            up *= 5
    found = trainer.fit_sentences(seed=0)
    assert found["fitted to"] > 100
    assert 0.2 < found["explained"] < 1
    texts = [row for rows in of.passages[:2] for row in rows]  # of those that are trained on
    unit = torch.nn.functional.normalize
    with torch.no_grad():
        with trainer._attached.active():
            trained = torch.stack([states_of(bert, [row[:20]], WordPieces())[0].mean(dim=1)[0] for row in texts])
        own = torch.stack([states_of(bert, [row[:20]], WordPieces())[0].mean(dim=1)[0] for row in texts])
        said = trainer.learner.heads.sentence_vectors(unit(trained, dim=-1))
    before, after = ((unit(one, dim=-1) * unit(own, dim=-1)).sum(dim=-1).mean() for one in (trained, said))
    assert after > before


@pytest.mark.slow
def test_it_learns_and_goes_on_where_it_stopped(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_corpus", lambda training, pieces: corpus())
    monkeypatch.setattr(train, "EncoderSettings", lambda rank: SETTINGS)

    def trained(folder: str, steps: int, **more: Any) -> Any:
        training = Training(steps=12, check_every=4, warmup=2, learning_rate=5e-3, threads=1)
        run = Run(tiny_bert(), None, tmp_path / folder)
        if steps < 12:
            training = Training(**{**vars(training), "minutes": 0.0})  # ends behind its first step
        return train.train(run, training)[ENCODER]

    whole = trained("whole", 12)
    first = trained("cut", 1)
    assert first.made["steps"] == 1
    again = trained("cut", 12)
    assert again.made["steps"] == 12
    assert again.id == whole.id
    log = whole.made["log"]
    assert log[-1]["loss"] < log[1]["loss"]
    assert set(whole.made["figures"]) == {"fit", "test", "sentences"}
    assert whole.made["training"]["seed"] == 0
    encoder = TextEncoder.of_part(whole, tiny_bert())
    assert encoder.states([np.asarray([2000, 2001])])[0].shape == (2, 32)

"""The trigger: its arithmetic against numpy in fp64, as a stream and whole, its pack, its training, its thresholds."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong._core as _core
from everlong.data import shipped_books
from everlong.errors import EverlongError
from everlong.models.early_exit import early_exit_states
from everlong.models.pack import load_pack, pack_of
from everlong.parts.trigger.model import TRIGGER
from everlong.parts.trigger.runtime import (
    TriggerRuntime,
)
from everlong_lab.corpora.boundaries import CutText, author_of, dialogues, joined, plain, trigger_texts
from everlong_lab.parts.trigger.train import Training as TriggerTraining
from everlong_lab.parts.trigger.train import fit, train_on
from everlong_lab.training.read_states import ReadStates, ReadText, read_states, tokens_of
from everlong_lab.training.run import Run
from support import byte_tokenizer, tiny_model
from support.parts.trigger import LAYERS, SETTINGS, SIZE
from support.rng import no_global_draws
from support.texts import books_with_headings

WIDTH = len(LAYERS) * SIZE


def test_splices_say_where_other_books_begin() -> None:
    texts = joined(books_with_headings(), 12, seed=3)
    assert {text.split for text in texts} == {"train", "fit"}
    by_split: dict[str, set[str]] = {"train": set(), "fit": set()}
    kinds = set()
    for text in texts:
        by_split[text.split] |= {name.partition("--")[0] for name in text.sources}
        for cut in text.cuts:
            kinds.add(cut.kind)
            before, behind = text.text[: cut.at].rstrip().split("\n\n")[-1], text.text[cut.at :].split("\n\n")[0]
            if cut.kind in ("splice", "author"):
                own, other = before.split()[0], behind.split()[0]
                assert own != other
                assert (own[:3] == other[:3]) == (cut.kind == "author")
            elif cut.kind == "chapter":
                assert behind == "CHAPTER VII"
            else:
                assert before.split()[0] == behind.split()[0] or "title" in before
        assert sum(cut.kind in ("splice", "author") for cut in text.cuts) == 5
    assert kinds == {"splice", "author", "chapter", "paragraph"}
    assert not by_split["train"] & by_split["fit"]
    assert joined(books_with_headings(), 12, seed=3) == texts
    with pytest.raises(ValueError, match="two authors"):
        joined(books_with_headings()[:2], 3, seed=0)


def test_dialogues_say_where_the_topic_shifts() -> None:
    train, dev = dialogues("train"), dialogues("dev")
    assert (len(train), len(dev)) == (300, 100)
    assert {text.split for text in train} == {"train", "fit"}
    assert {text.split for text in dev} == {"test"}
    assert not {text.text for text in train} & {text.text for text in dev}
    first = train[0]
    assert first.text.startswith("hey ! do you love cats ?\n")
    shift = next(cut for cut in first.cuts if cut.kind == "shift")
    assert first.text[shift.at :].startswith("yeah , i have a weakness for cats and vanilla ice cream")


def test_plain_text_is_of_books_that_are_held_out() -> None:
    books = books_with_headings()
    held_out = {name for text in joined(books, 12, seed=3) if text.split == "fit" for name in text.sources}
    for text in plain(books, 4, seed=1):
        assert text.origin == "book"
        assert set(text.sources) <= {book.name for book in books if author_of(book) in {n[:3] for n in held_out}}


def test_a_cut_stands_between_whole_tokens() -> None:
    text = joined(shipped_books(), 1, seed=0, split="test")[0]
    ids, cuts = tokens_of(byte_tokenizer(), text)
    for at, cut in zip(cuts, text.cuts, strict=True):
        assert byte_tokenizer().decode(ids[:at]).endswith(text.text[: cut.at][-20:])
        assert text.text[cut.at :].startswith(byte_tokenizer().decode(ids[at : at + 20]).rstrip("\ufffd"))


def drawn_states(seed: int = 0) -> ReadStates:
    """Topics are directions that tokens point to; where the text goes on, a paragraph ends all the same."""
    rng = np.random.default_rng(seed)
    rows: list[np.ndarray] = []
    texts = []
    begin = 0
    for number in range(24):
        cuts, kinds, own = [], [], []
        for topic in range(5):
            direction = rng.normal(size=WIDTH)
            for part in range(3):
                if topic or part:
                    cuts.append(sum(map(len, own)))
                    kinds.append("splice" if part == 0 else "paragraph")
                own.append(direction + rng.normal(size=(int(rng.integers(12, 30)), WIDTH)))
        states = np.concatenate(own)
        rows.append(states)
        cut_text = CutText(str(number), "", (), "splice", "fit" if number % 4 == 0 else "train", ())
        cut_text = dataclasses.replace(
            cut_text, cuts=tuple(everlong_cut(at, kind) for at, kind in zip(cuts, kinds, strict=True))
        )
        texts.append(ReadText(cut_text, torch.zeros(len(states)), tuple(cuts), (begin, begin + len(states))))
        begin += len(states)
    bits = torch.from_numpy(np.concatenate(rows)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return ReadStates(LAYERS, bits, tuple(texts))


def everlong_cut(at: int, kind: Any) -> Any:
    from everlong_lab.corpora.boundaries import Cut

    return Cut(at, kind)


def test_training_learns_what_it_is_shown_and_twice_the_same_bits() -> None:
    states, settings = drawn_states(), dataclasses.replace(SETTINGS, before_tokens=8, lookahead=8, units=16)
    training = TriggerTraining(steps=150, batch=128, dropout=0.1, threads=1, seed=4)
    with no_global_draws():
        (one, learned), (other, _) = fit(states, settings, training), fit(states, settings, training)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    kept = min(learned.log, key=lambda found: found["held out"])
    assert kept["splice"] > 0.85  # 1 in 3 places is one: 0.3 by chance
    assert learned.log[0]["held out"] > kept["held out"]
    with pytest.raises(ValueError, match="no places"):
        fit(dataclasses.replace(states, texts=states.texts[1:4]), settings, training)


@pytest.mark.slow
def test_states_are_cached_and_go_on_where_they_were_cut_short(tmp_path: pathlib.Path) -> None:
    model, tokenizer = tiny_model("llama", num_hidden_layers=4), byte_tokenizer()
    texts = joined(books_with_headings(), 3, seed=0)

    def stop(what: str, done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_states(model, tokenizer, texts, LAYERS, tmp_path, progress=stop)
    done: list[int] = []
    states = read_states(model, tokenizer, texts, LAYERS, tmp_path, progress=lambda _, at, of: done.append(at))
    assert done == [3]
    last = states.texts[-1]
    expected = early_exit_states(model, last.ids[:4096], LAYERS)
    first = torch.cat([expected[layer] for layer in LAYERS], dim=-1)
    assert (states.of(last)[:4096].float() - first).abs().max() <= 0.01 * first.abs().max()
    with pytest.raises(EverlongError, match="layers"):
        read_states(model, tokenizer, texts, (1,), tmp_path)
    with pytest.raises(EverlongError, match="texts"):
        read_states(model, tokenizer, texts[1:], LAYERS, tmp_path)


@pytest.mark.slow
def test_the_command_s_way_from_books_to_a_pack(tmp_path: pathlib.Path) -> None:
    model, tokenizer = tiny_model("llama", num_hidden_layers=4), byte_tokenizer()
    texts = trigger_texts(books_with_headings(), splices=8, with_dialogues=False, seed=0)
    training = TriggerTraining(steps=30, batch=64, threads=1)
    pack = pack_of(model, train_on(Run(model, tokenizer, tmp_path / "work"), texts, training))
    made = pack.parts[TRIGGER].made
    assert made["data"]["splice"] + made["data"]["author"] == 5 * 7
    assert set(made["figures"]) == {"fit", "train"}
    pack.save(tmp_path / "pack")
    ends = TriggerRuntime(load_pack(tmp_path / "pack"), _core.MemoryOsConfig(), 200)
    assert 0 < ends.threshold <= 2
    of_no_book = [text for text in texts if text.origin != "book"]
    with pytest.raises(ValueError, match="calibrated"):
        train_on(Run(model, tokenizer, tmp_path / "other"), of_no_book, training)

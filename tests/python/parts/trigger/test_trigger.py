"""The trigger: its arithmetic against numpy in fp64, as a stream and whole, its pack, its training, its thresholds."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong
import everlong._core as _core
from everlong.corpora.boundaries import CutText, author_of, dialogues, joined, plain, trigger_texts
from everlong.data import shipped_books
from everlong.errors import EverlongError
from everlong.models.pack import load_pack, pack_of
from everlong.models.shallow import shallow_states
from everlong.parts.towers.model import LateTowers, TowerSettings
from everlong.parts.trigger import Trigger
from everlong.parts.trigger.at_work import (
    LearnedTopicEnds,
    block_lengths,
    blocks_of,
    said_texts,
    threshold_for,
)
from everlong.parts.trigger.model import TRIGGER, TriggerNet, calibration_of
from everlong.parts.trigger.train import Training as TriggerTraining
from everlong.parts.trigger.train import fit, train_on
from everlong.training.read_states import ReadStates, ReadText, read_states, tokens_of
from everlong.training.run import Run
from support import byte_tokenizer, tiny_model
from support.draws import no_global_draws
from support.parts.trigger import LAYERS, SETTINGS, SIZE, drawn_pack, drawn_texts, drawn_trigger
from support.texts import books_with_headings

WIDTH = len(LAYERS) * SIZE


def said_by_numpy(trigger: TriggerNet, states: torch.Tensor) -> np.ndarray:
    """Place by place, as its definition says."""
    weights = {name: tensor.double().numpy() for name, tensor in trigger.state_dict().items()}
    normal = np.clip((states.double().numpy() - weights["center"]) * weights["scale"], -5, 5)
    before_tokens, lookahead = trigger.settings.before_tokens, trigger.settings.lookahead
    said = np.zeros(len(states))
    for read in range(1, len(states) + 1):
        place = read - lookahead
        if place < 1:
            continue
        step = normal[place:read].mean(0) - normal[max(0, place - before_tokens) : place].mean(0)
        looked_at = np.concatenate([normal[place - 1], normal[place], step, np.abs(step)])
        inner = weights["inner.weight"] @ looked_at + weights["inner.bias"]
        gelu = inner * 0.5 * (1 + np.asarray([math.erf(x / math.sqrt(2)) for x in inner]))
        said[read - 1] = 1 / (1 + np.exp(-(weights["outer.weight"] @ gelu + weights["outer.bias"])[0]))
    return said


@pytest.mark.parametrize("tokens", [1, 3, 4, 40])
def test_probabilities_are_those_of_numpy_in_fp64(tokens: int) -> None:
    trigger, states = drawn_trigger(), torch.randn(tokens, WIDTH)
    assert np.abs(trigger.said(states).numpy() - said_by_numpy(trigger, states)).max() < 1e-6


def test_no_later_token_changes_what_was_said() -> None:
    trigger = drawn_trigger()
    states = torch.randn(50, WIDTH)
    whole = trigger.said(states).numpy()
    for read in (3, 4, 20, 49):
        assert np.abs(trigger.said(states[:read]).numpy() - whole[:read]).max() < 1e-6
        other = torch.cat([states[:read], torch.randn(50 - read, WIDTH)])
        assert np.abs(trigger.said(other).numpy()[:read] - whole[:read]).max() < 1e-6
    # And of what lies further back than it looks, nothing.
    reach = SETTINGS.reach
    other = torch.cat([torch.randn(20, WIDTH), states[20:]])
    assert np.abs(trigger.said(other).numpy()[20 + reach :] - whole[20 + reach :]).max() < 1e-6


def test_a_stream_in_chunks_says_what_the_whole_does() -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    ends = LearnedTopicEnds(drawn_pack(model), _core.MemoryOsConfig(), 256)
    states = {layer: torch.randn(70, model.config.hidden_size) for layer in LAYERS}
    ids = torch.zeros(70, dtype=torch.int64)
    whole = ends.boundary_probabilities(ids, states, begins=True)
    assert (
        np.abs(whole - ends.trigger.said(torch.cat([states[layer] for layer in LAYERS], dim=-1)).numpy()).max() < 1e-6
    )
    for chunk in (1, 3, 64):
        said = [
            ends.boundary_probabilities(
                ids[at : at + chunk], {layer: rows[at : at + chunk] for layer, rows in states.items()}, begins=at == 0
            )
            for at in range(0, 70, chunk)
        ]
        assert np.abs(np.concatenate(said) - whole).max() < 1e-6
    # Where none begins the text goes on; where one does, nothing of the other is seen.
    assert np.abs(ends.boundary_probabilities(ids, states, begins=False)[:8] - whole[:8]).max() > 1e-3
    assert np.abs(ends.boundary_probabilities(ids, states, begins=True) - whole).max() < 1e-6


def test_a_pack_keeps_both_parts(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    torch.manual_seed(3)
    towers = LateTowers(TowerSettings(LAYERS, model.config.hidden_size, dimension=16))
    pack_of(model, {"towers": towers.part({"data": {}})}).save(tmp_path)
    bits = (tmp_path / "towers.safetensors").read_bytes()
    texts = drawn_texts()
    drawn_pack(model, texts).save(tmp_path)
    both = load_pack(tmp_path)
    assert set(both.parts) == {"towers", "trigger"}
    assert (tmp_path / "towers.safetensors").read_bytes() == bits
    again = said_texts(calibration_of(both.parts[TRIGGER]))
    assert [text.ends for text in again] == [text.ends for text in texts]
    assert all(np.array_equal(a.probabilities, b.probabilities) for a, b in zip(again, texts, strict=True))
    trigger, states = TriggerNet.of_part(both.parts[TRIGGER]), torch.randn(30, 2 * model.config.hidden_size)
    expected = drawn_pack(model, texts)
    assert torch.equal(trigger.said(states), TriggerNet.of_part(expected.parts[TRIGGER]).said(states))
    assert trigger.settings == TriggerNet.of_part(expected.parts[TRIGGER]).settings


@pytest.mark.parametrize("mean", [110, 128, 200, 350])
def test_thresholds_make_blocks_of_the_asked_length(mean: int) -> None:
    texts, unseen = drawn_texts(4, 6000), drawn_texts(4, 6000, seed=9)
    threshold = threshold_for(texts, _core.MemoryOsConfig(), 5, mean)
    for some in (texts, unseen):
        lengths = [n for text in some for n in block_lengths(text, _core.MemoryOsConfig(), threshold, 5)]
        assert np.mean(lengths) == pytest.approx(mean, rel=0.1)


def test_blocks_keep_to_the_rules() -> None:
    config = _core.MemoryOsConfig(block_tokens=200, least_tokens=40, cooldown_tokens=30)
    (text,) = drawn_texts(1, 5000)
    blocks = list(blocks_of(text, config, 0.4, 7))
    reaching = np.nonzero(text.probabilities >= 0.4)[0] + 1 - 7  # places
    by_topic = 0
    for begin, end in blocks:
        assert end - begin <= 200
        if end in reaching:
            by_topic += 1
            assert end - begin >= 40
            too_soon = [at for at in reaching if begin < at < begin + 40]
            last = max((at for at in too_soon), default=None)
            assert last is None or end >= min(too_soon) + 30
    assert by_topic > len(blocks) / 2
    assert [begin for begin, _ in blocks] == [0, *(end for _, end in blocks[:-1])]


def test_the_core_takes_one_probability_a_token_or_none() -> None:
    os = _core.MemoryOs(_core.MemoryOsConfig())
    with pytest.raises(ValueError, match="topic_probabilities"):
        os.observe(3, "read", [], np.zeros(2, dtype=np.float32))
    assert os.stream_end == 0
    assert os.observe(3, "read", [], np.zeros(3, dtype=np.float32)) == []
    with pytest.raises(ValueError, match="topic_threshold"):
        _core.MemoryOs(_core.MemoryOsConfig(topic_threshold=float("nan")))


# --- data


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


# --- training


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
    from everlong.corpora.boundaries import Cut

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
    expected = shallow_states(model, last.ids[:4096], LAYERS)
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
    ends = LearnedTopicEnds(load_pack(tmp_path / "pack"), _core.MemoryOsConfig(), 200)
    assert 0 < ends.threshold <= 2
    of_no_book = [text for text in texts if text.origin != "book"]
    with pytest.raises(ValueError, match="calibrated"):
        train_on(Run(model, tokenizer, tmp_path / "other"), of_no_book, training)


def test_settings_that_look_at_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TriggerNet(dataclasses.replace(SETTINGS, lookahead=0))
    with pytest.raises(ValueError, match=r"trigger\.mean_tokens"):
        everlong.MemoryConfig(parts=(Trigger(mean_tokens=600),))
    with pytest.raises(TypeError, match="segmenter"):
        everlong.MemoryConfig(segmenter="other")

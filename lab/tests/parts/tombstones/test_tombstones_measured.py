"""What the evaluation of tombstones plans, chooses and counts, beside scikit-learn and plain text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from everlong.data import Book
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import load_pack, pack_folder_of
from everlong.parts.tombstones.model import TOMBSTONES, TombstoneHeads
from everlong.parts.tombstones.runtime import tombstone_scores
from everlong.text.encoding import decode_text, encode
from everlong_lab.corpora.needs import needs_text
from everlong_lab.eval.statistics import auc
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.tombstones.measure import (
    FALSE_ALARMS,
    Measuring,
    Sample,
    choose_heads,
    chosen_and_measured,
    paired_auc,
    report_of,
    samples_of,
    store_heads,
)
from support import byte_tokenizer, random_text, tiny_model
from support.parts.kv_writer import drawn_writer, pack_with


@given(
    need=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    others=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
)
def test_auc_is_scikit_learns(need: list[int], others: list[int]) -> None:
    expected = sklearn.metrics.roc_auc_score([1] * len(need) + [0] * len(others), [*need, *others])
    assert auc(np.array(need, float), np.array(others, float)) == pytest.approx(expected)


def test_two_numbers_of_the_same_samples_are_compared_pair_by_pair() -> None:
    random = np.random.default_rng(1)
    need = np.arange(120) % 2 == 0
    own = random.normal(size=120) + 0.5 * need
    less, low, high = paired_auc(own, own - 3.0, need)
    assert (less, low, high) == (0.0, 0.0, 0.0)
    worse = own + random.normal(size=120) * 0.3 - 0.8 * need
    less, low, high = paired_auc(own, worse, need)
    expected = sklearn.metrics.roc_auc_score(need, own) - sklearn.metrics.roc_auc_score(need, worse)
    assert less == pytest.approx(expected)
    assert 0 < low < less < high


def test_a_text_says_what_its_cues_need() -> None:
    tokenizer = byte_tokenizer()
    book = encode(tokenizer, random_text(9000))
    text = needs_text(tokenizer, book, np.random.default_rng(0), old=5000, new=1500, facts=10, behind=4)
    assert len(text.cues) == 15
    plain = book.tolist()
    spans = [cue.fact for cue in text.cues if cue.fact is not None]
    assert spans == sorted(spans)
    for cue, (begin, end) in zip(text.cues, spans, strict=True):
        said = decode_text(tokenizer, text.ids[begin:end].tolist())
        beginning = decode_text(tokenizer, cue.ids.tolist())
        assert said.startswith(beginning.rstrip())
        assert len(beginning) < len(said.rstrip()) - 1  # what is to be known comes behind it
    sizes = np.cumsum([0, *(end - begin for begin, end in spans[:-1])])
    assert sum(begin - before < 5000 for (begin, _), before in zip(spans, sizes, strict=True)) == 10
    left = [token for at, token in enumerate(text.ids.tolist()) if not any(a <= at < b for a, b in spans)]
    assert len(left) == 6500
    first = next(at for at in range(len(plain)) if plain[at : at + 6500] == left)
    behind = [token for piece in text.behind for token in piece.ids.tolist()]
    assert behind == plain[first + 6500 : first + 6500 + len(behind)]
    assert [len(piece.ids) for piece in text.behind] == [14] * 4
    with pytest.raises(ValueError, match="expected 6,557 or more"):
        needs_text(tokenizer, book[:6000], np.random.default_rng(0), old=5000, new=1500, facts=10, behind=4)


def samples_like(seed: int, told_by: int) -> list[Sample]:
    """12 heads, 5 tombstones; head `told_by` looks at the right one where something is needed."""
    random = np.random.default_rng(seed)
    out = []
    for at in range(80):
        need = at % 2 == 0
        mass = random.normal(-8, 1, (6, 12, 5))
        right = int(random.integers(0, 5))
        if need:
            mass[4, told_by, right] += 9
        kind = "need" if need else ("book", "in the frame")[at // 2 % 2]
        entropy, surprise = random.uniform(size=6), random.uniform(size=5)
        out.append(Sample(kind, mass.astype(np.float16), entropy, surprise, (right,) if need else ()))  # type: ignore[arg-type]
    return out


def test_the_head_that_tells_is_chosen_and_the_others_are_chance() -> None:
    heads = choose_heads(samples_like(0, told_by=7), query_heads=3, count=1)
    assert heads.heads == ((2, 1),)
    report = report_of(heads, samples_like(1, told_by=7), 3, {})
    assert (report.needs, report.others) == (40, 40)
    by_name = {told.by: told for told in report.told}
    assert by_name["tombstones"].auc > 0.95
    assert by_name["tombstones"].low <= by_name["tombstones"].auc <= by_name["tombstones"].high
    assert by_name["surprise"].low < 0.5 < by_name["surprise"].high
    assert by_name["tombstones"].recalled.rate > 0.8
    assert by_name["tombstones"].recalled_book.rate > 0.8
    assert by_name["entropy"].recalled.rate < 0.3
    assert report.right.rate > 0.9
    assert report.chance_right == pytest.approx(0.2)
    assert report.false_alarms.rate <= 4 * FALSE_ALARMS
    elsewhere = report_of(heads, samples_like(1, told_by=3), 3, {})
    assert elsewhere.told[0].low < 0.5 < elsewhere.told[0].high


def test_a_score_of_the_report_is_the_one_that_a_frame_wakes_by() -> None:
    samples = samples_like(2, told_by=4)
    heads = choose_heads(samples, query_heads=3, count=4)
    columns = [layer * 3 + head for layer, head in heads.heads]
    weights = torch.tensor(heads.weights, dtype=torch.float64)
    masses = [torch.from_numpy(sample.log_mass[:, columns]).double().exp() for sample in samples]
    highest = [float(tombstone_scores(mass, weights, heads.bias).max()) for mass in masses]
    report = report_of(dataclasses.replace(heads, threshold=sorted(highest)[40]), samples, 3, {})
    assert report.recalled.right + report.false_alarms.right in (39, 40, 41)


def test_a_run_goes_on_where_it_was_and_its_heads_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    model, tokenizer = tiny_model(max_position_embeddings=2048), byte_tokenizer()
    config = Measuring(documents=1, calibration=1, tombstones=6, facts=6, old_tokens=2600, pieces=3, heads=2)
    config = dataclasses.replace(config, work=tmp_path / "work")
    books = [Book("a--one", random_text(9000)), Book("a--two", random_text(9000, seed=2))]
    monkeypatch.setattr("everlong_lab.parts.tombstones.measure.shipped_books", lambda: books)
    heads, report = chosen_and_measured((model, tokenizer), config)
    assert report.needs > 0
    assert report.others >= 3
    assert all(layer < model.config.num_hidden_layers for layer, _ in heads.heads)
    monkeypatch.setattr(
        "everlong_lab.parts.tombstones.measure.samples_of", lambda *given: pytest.fail("was heard already")
    )
    again, same = chosen_and_measured((model, tokenizer), config)
    assert (again, same) == (heads, report)
    pack = load_pack(store_heads(model, heads, report))
    assert TombstoneHeads.of_part(pack.parts[TOMBSTONES]) == dataclasses.replace(
        heads, weights=tuple(np.float32(heads.weights).tolist())
    )


@pytest.mark.slow
def test_tombstones_by_the_writer_are_heard_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same texts go on in the same ways, and what is attended to is another thing."""
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    model, tokenizer = tiny_model(max_position_embeddings=2048), byte_tokenizer()
    pack_with(pack_folder_of(weights_fingerprint(model)), model, drawn_writer(model))
    config = Measuring(tombstones=6, facts=6, old_tokens=2600, pieces=3)
    book = Book("a--one", random_text(9000))
    means = samples_of((model, tokenizer), config, book, 0)
    written = samples_of((model, tokenizer), dataclasses.replace(config, kv_writer=True), book, 0)
    assert [(one.kind, one.right) for one in written] == [(one.kind, one.right) for one in means]
    assert all(np.isfinite(one.log_mass).all() for one in written)
    assert any(np.abs(one.log_mass - other.log_mass).max() > 0.1 for one, other in zip(written, means, strict=True))
    books = [book, Book("a--two", random_text(9000, seed=2))]
    monkeypatch.setattr("everlong_lab.parts.tombstones.measure.shipped_books", lambda: books)
    small = dataclasses.replace(config, documents=1, calibration=1, heads=2, kv_writer=True)
    small = dataclasses.replace(small, work=tmp_path / "written", beside=tmp_path / "means")
    _, report = chosen_and_measured((model, tokenizer), small)
    means_alone = dataclasses.replace(small, kv_writer=False, work=tmp_path / "means", beside=None)
    _, alone = chosen_and_measured((model, tokenizer), means_alone)
    beside = report.beside
    assert beside is not None
    assert (beside.writer, beside.told, beside.right) == (False, alone.told[0], alone.right)
    assert beside.less == pytest.approx(report.told[0].auc - alone.told[0].auc)
    assert beside.low <= beside.less <= beside.high
    console = Console(record=True, width=200)
    print_report(report, console)
    assert "tombstones that are means on the same texts" in console.export_text()

"""A model with a pack: blocks come with their vectors, older ones get them, and what is found is what numpy finds."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.errors import ModelMismatchError
from everlong.models.fingerprint import weights_fingerprint
from everlong.parts.late_interaction import quantize_int8
from everlong.parts.towers.model import means
from everlong.text.prompt import build_prompt
from support import ROOMY, SMALL, byte_tokenizer, random_text, tiny_model
from support.parts.towers import LAYERS, drawn_pack

CONFIG = SMALL.changed(search={"index": ("lexical", "meaning")})


@pytest.fixture
def model() -> Any:
    return tiny_model("llama", num_hidden_layers=4)


@pytest.fixture
def pack(model: Any, tmp_path: pathlib.Path) -> pathlib.Path:
    drawn_pack(model).save(tmp_path / "pack")
    return tmp_path / "pack"


@pytest.fixture
def mm(model: Any, pack: pathlib.Path) -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(model, byte_tokenizer(), config=CONFIG, pack=pack) as opened:
        yield opened


def tensors_of(mm: everlong.MemoryModel) -> dict[tuple[int, int], np.ndarray]:
    meaning = mm.frame.parts.get("towers")
    assert meaning is not None
    found = {}
    for block in mm.memory.blocks():
        found[block.span] = mm.memory.core.blocks.tensors(block.id)[f"meaning.{meaning.id}"]
    return found


def test_blocks_come_with_the_vectors_of_their_own_states(model: Any, pack: pathlib.Path) -> None:
    text = random_text(500)
    with everlong.MemoryModel(
        model, byte_tokenizer(), config=ROOMY.changed(search={"index": "meaning"}), pack=pack
    ) as mm:
        mm.read(text)
        meaning = mm.frame.parts.get("towers")
        assert meaning is not None
        assert mm.memory.core.index.blocks_without_meaning() == []
        with torch.no_grad():
            whole = model(mm.encode(text)[None], output_hidden_states=True).hidden_states
        states = torch.cat([whole[layer][0] for layer in LAYERS], dim=-1)
        for (begin, end), kept in tensors_of(mm).items():
            expected = quantize_int8(
                meaning.towers.written(means(states[begin:end], mm.config.archive.page_tokens, 4))
            ).numpy()
            assert kept.shape == expected.shape
            assert np.abs(kept.astype(int) - expected.astype(int)).max() <= 2  # rounding of what differs by 1e-6


def test_found_is_what_numpy_finds_in_the_stored_vectors(mm: everlong.MemoryModel) -> None:
    mm.read(random_text(3000))
    mm.config = mm.config.changed(search={"index": ("meaning",)})
    inputs = mm.searcher.inputs(build_prompt(mm.tokenizer, random_text(60, seed=5)))
    rankings = mm.memory.core.search.rankings(10, **inputs)
    assert [ranking.granularity for ranking in rankings] == ["page", "group"]
    query = inputs["meaning_query"].astype(np.float64)
    assert np.linalg.norm(query, axis=1).sum() == pytest.approx(1, abs=1e-3)
    scores = {}
    for (begin, end), kept in tensors_of(mm).items():
        vectors = kept.astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        row = 0
        for first in range(begin, end, mm.config.archive.page_tokens):
            count = -(-(min(first + mm.config.archive.page_tokens, end) - first) // 4)
            scores[first] = (query @ vectors[row : row + count].T).max(1).sum()
            row += count
    best = sorted(scores, key=lambda first: -scores[first])[:10]
    ranking = rankings[0]
    assert len(ranking.pages) == 10
    for page, score in zip(ranking.pages, ranking.scores, strict=True):
        assert score == pytest.approx(scores[page.begin], abs=0.01)  # the question is int8 there
    assert ranking.pages[0].begin in best[:3]


def test_an_older_memory_gets_its_vectors_without_being_read_again(
    model: Any, pack: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, text = tmp_path / "memory", random_text(1500)
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config=CONFIG, pack=None) as before:
        before.read(text)
        assert before.frame.parts.get("towers") is None
        assert before.recall(text[300:360])  # found by words alone
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config=CONFIG, pack=pack) as after:
        after.searcher.settle()
        assert after.memory.core.index.blocks_without_meaning() == []
        late = tensors_of(after)
        assert after.stream_tokens == 1500
    assert "not saved" not in caplog.text
    with everlong.MemoryModel(model, byte_tokenizer(), config=CONFIG, pack=pack) as read_with:
        read_with.read(text)
        at_once = tensors_of(read_with)
    assert late.keys() == at_once.keys()
    for span, vectors in late.items():  # of another context before them: alike, not equal
        one, other = (np.asarray(v, dtype=np.float64) for v in (vectors, at_once[span]))
        cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
        assert np.median(cosine) > 0.9


def test_vectors_stay_with_the_memory_and_go_with_the_block(
    model: Any, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "memory"
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config=CONFIG, pack=pack) as mm:
        mm.read(random_text(900), source="one")
        mm.read(random_text(900, seed=2), source="two")
        kept = tensors_of(mm)
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config=CONFIG, pack=pack) as mm:
        assert mm.memory.core.index.blocks_without_meaning() == []
        assert tensors_of(mm).keys() == kept.keys()
        mm.config = mm.config.changed(search={"index": ("meaning",)})
        assert {hit.source for hit in mm.recall("anything at all")} <= {"one", "two"}
        mm.memory.forget(source="one")
        assert {hit.source for hit in mm.recall("anything at all")} == {"two"}


def test_a_pack_of_another_model_is_refused_before_there_is_a_folder(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = tiny_model("llama", num_hidden_layers=4, seed=9)
    with pytest.raises(ModelMismatchError, match="trained for"):
        everlong.MemoryModel(other, byte_tokenizer(), tmp_path / "memory", config=CONFIG, pack=pack)
    assert not (tmp_path / "memory").exists()


def test_vectors_of_an_earlier_pack_are_not_searched(model: Any, pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "memory"
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config=CONFIG, pack=pack) as mm:
        mm.read(random_text(900))
        first = mm.frame.parts.get("towers")
    drawn_pack(model, seed=3).save(tmp_path / "other")
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config=CONFIG, pack=tmp_path / "other") as mm:
        second = mm.frame.parts.get("towers")
        assert first is not None
        assert second is not None
        assert first.id != second.id
        mm.searcher.settle()
        block = mm.memory.blocks()[0]
        assert set(mm.memory.core.blocks.tensors(block.id)) == {f"meaning.{first.id}", f"meaning.{second.id}"}


def test_a_memory_is_written_the_same_with_and_without_a_pack(model: Any, pack: pathlib.Path) -> None:
    text, read = random_text(1200), []
    for one in (pack, None):
        with everlong.MemoryModel(model, byte_tokenizer(), config=CONFIG, pack=one) as mm:
            mm.read(text)
            pages = mm.memory.core.blocks.pages()
            out = np.zeros(sum(mm.memory.core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
            mm.memory.core.blocks.read_pages(pages, out)
            read.append(out)
    assert np.array_equal(*read)
    assert weights_fingerprint(model) == drawn_pack(model).model

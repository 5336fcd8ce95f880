"""The part "meaning" through the binding: vectors that come with blocks or later, against numpy in fp64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everlong
import everlong._core as _core
from support.meaning import DIM, GROUP, LENGTHS, NO_TOKENS, PACK, PAGE, TENSOR, codes_for, new_memory, vectors_of


def pages_by_numpy(codes: list[Any], rows: Any) -> list[tuple[float, int]]:
    """Score alone and first token of every page that has vectors, best first."""
    scale = np.abs(rows).max(1, keepdims=True) / 127
    rounded = np.rint(rows / scale).astype(np.float64)
    rounded *= np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(rounded, axis=1, keepdims=True)
    scored = []
    begin = 0
    for tokens, of_block in zip(LENGTHS, codes, strict=True):
        for first in range(0, tokens, PAGE):
            if of_block is None:
                continue
            of_page = of_block[first // GROUP : vectors_of(min(tokens, first + PAGE))].astype(np.float64)
            cosines = rounded @ (of_page / np.linalg.norm(of_page, axis=1, keepdims=True)).T
            scored.append((float(cosines.max(1).sum()), begin + first))
        begin += tokens
    return sorted(scored, reverse=True)


def found(memory: _core.Memory, rows: Any) -> list[int]:
    result = memory.search.find(
        token_ids=NO_TOKENS,
        meaning_query=rows,
        kinds=["meaning"],
        max_groups=100,
        neighbours=0,
        token_budget=1 << 20,
        least_share=0,
    )
    assert all(group.found_by == ["meaning"] for group in result.groups)
    return [page.begin for group in result.groups for page in group.pages]


def test_finds_what_numpy_finds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes: list[Any] = [codes_for(tokens, rng) for tokens in LENGTHS]
    codes[3] = None
    memory = new_memory(tmp_path / "m", codes)
    assert memory.index.blocks_without_meaning() == []
    memory.index.set_meaning(PACK, DIM, GROUP)
    assert memory.index.blocks_without_meaning() == [4]
    for of_block in (codes[0], codes[4], codes[6]):
        # What a page says itself, and a little more: it is best alone and with its neighbours.
        rows = of_block[-4:].astype(np.float32) * rng.uniform(0.5, 2, (4, 1)).astype(np.float32)
        expected = pages_by_numpy(codes, rows)
        got = found(memory, rows)
        assert set(got) == {begin for _, begin in expected}
        best = memory.search.find(token_ids=NO_TOKENS, meaning_query=rows, kinds=["meaning"], neighbours=0).groups[0]
        assert expected[0][1] in [page.begin for page in best.pages]
    memory.close()
    with pytest.raises(everlong.errors.ClosedError):
        memory.index.blocks_without_meaning()


def test_vectors_come_later_and_are_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    codes = [codes_for(tokens, rng) for tokens in LENGTHS]
    memory = new_memory(tmp_path / "m", [None] * len(LENGTHS))
    rows = codes[4][:3].astype(np.float32)
    memory.index.set_meaning(PACK, DIM, GROUP)
    assert memory.index.blocks_without_meaning() == list(range(1, len(LENGTHS) + 1))
    assert found(memory, rows) == []
    for block, of_block in enumerate(codes, start=1):
        memory.blocks.put_tensors(block, {TENSOR: of_block, "other": np.ones(3, dtype=np.float32)})
    assert memory.index.blocks_without_meaning() == []
    pages = set(found(memory, rows))
    assert pages == {begin for _, begin in pages_by_numpy(codes, rows)}
    assert set(memory.blocks.tensors(2)) == {TENSOR, "other"}
    memory.blocks.forget([5])
    assert len(found(memory, rows)) == len(pages) - 3
    memory.close()

    memory = _core.Memory.open(str(tmp_path / "m"))
    memory.index.set_meaning(PACK, DIM, GROUP)
    assert memory.index.blocks_without_meaning() == []
    assert len(found(memory, rows)) == len(pages) - 3
    memory.index.set_meaning("another", DIM, GROUP)
    assert len(memory.index.blocks_without_meaning()) == len(LENGTHS) - 1
    assert found(memory, rows) == []
    for none in (None, ""):
        memory.index.set_meaning(PACK, DIM, GROUP)
        memory.index.set_meaning(none)
        assert memory.index.blocks_without_meaning() == []
        with pytest.raises(ValueError, match="no vectors of meaning"):
            found(memory, rows)
    memory.close()


def test_nonsense_is_refused() -> None:
    rng = np.random.default_rng(2)
    codes: list[Any] = [codes_for(tokens, rng) for tokens in LENGTHS]
    memory = new_memory(None, codes)
    for wrong in (("x" * 121, DIM, GROUP), (PACK, 0, GROUP), (PACK, DIM, 0), (PACK, 1 << 20, GROUP)):
        with pytest.raises(ValueError, match="expected 1 to"):
            memory.index.set_meaning(*wrong)
    memory.index.set_meaning(PACK, DIM, GROUP)
    rows = np.ones((2, DIM), dtype=np.float32)
    for query in (rows * np.nan, rows[:, 1:].copy(), np.ones((DIM, 2), dtype=np.float32)):
        with pytest.raises(ValueError, match="meaning_query"):
            found(memory, query)
    with pytest.raises((TypeError, ValueError), match="meaning_query"):
        found(memory, rows.reshape(-1))
    for tensor in (codes[0][1:], codes[0].astype(np.float32), codes[0].reshape(-1)):
        with pytest.raises(ValueError, match=TENSOR):
            memory.blocks.put_tensors(1, {TENSOR: np.ascontiguousarray(tensor)})
    assert (memory.blocks.tensors(1)[TENSOR] == codes[0]).all()
    with pytest.raises(everlong.errors.EverlongError):
        memory.blocks.put_tensors(99, {TENSOR: codes[0]})
    memory.close()


def test_two_kinds_stand_side_by_side_with_vectors_of_their_own() -> None:
    rng = np.random.default_rng(7)
    meaning, encoder = ([codes_for(tokens, rng) for tokens in LENGTHS] for _ in range(2))
    memory = new_memory(None, meaning)
    memory.index.set_meaning(PACK, DIM, GROUP)
    memory.index.set_meaning("another", DIM, GROUP, part="encoder")
    blocks = list(range(1, len(LENGTHS) + 1))
    assert memory.index.blocks_without_meaning() == []
    assert memory.index.blocks_without_meaning("encoder") == blocks
    for block, codes in zip(blocks, encoder, strict=True):
        memory.blocks.put_tensors(block, {"encoder.another": codes})
    assert memory.index.blocks_without_meaning("encoder") == []
    rows = rng.standard_normal((5, DIM)).astype(np.float32)
    asked = {"meaning_query": rows, "encoder_query": rows[:3]}
    rankings = memory.search.rankings(100, token_ids=NO_TOKENS, kinds=["meaning", "encoder"], **asked)
    by_name = {(one.part, one.granularity): one for one in rankings}
    assert len(by_name) == 4
    for name, codes, own in (("meaning", meaning, rows), ("encoder", encoder, rows[:3])):
        expected, ranking = pages_by_numpy(codes, own), by_name[name, "page"]
        assert [page.begin for page in ranking.pages] == [begin for _, begin in expected]
        np.testing.assert_allclose(ranking.scores, [score for score, _ in expected], atol=1e-4)
    both = memory.search.find(token_ids=NO_TOKENS, kinds=["meaning", "encoder"], **asked)
    assert {part for group in both.groups for part in group.found_by} == {"meaning", "encoder"}
    assert {"meaning, page", "encoder, page", "encoder, group"} <= set(both.signs)
    memory.index.set_meaning(None)
    with pytest.raises(ValueError, match="meaning_query is given, expected none"):
        memory.search.find(token_ids=NO_TOKENS, kinds=["meaning"], meaning_query=rows)
    assert memory.search.find(token_ids=NO_TOKENS, kinds=["encoder"], encoder_query=rows).groups
    with pytest.raises(ValueError, match=r"encoder_query: shape \[5, 15\], expected \[rows, dimension\] = \[5, 16\]"):
        memory.search.find(token_ids=NO_TOKENS, kinds=["encoder"], encoder_query=rows[:, 1:].copy())
    with pytest.raises(ValueError, match="expected meaning or encoder"):
        memory.index.set_meaning(PACK, DIM, GROUP, part="lexical")


def test_a_page_alone_also_scores_its_nearest_sentence_and_its_passage() -> None:
    rng = np.random.default_rng(11)
    codes = [codes_for(tokens, rng) for tokens in LENGTHS]
    width, every = 24, 2 * GROUP
    counts = [sum(-(-min(PAGE, tokens - at) // every) for at in range(0, tokens, PAGE)) for tokens in LENGTHS]
    sentences = [rng.integers(-127, 128, (count, width)).astype(np.int8) for count in counts]
    passages = [rng.integers(-127, 128, (-(-tokens // PAGE), width)).astype(np.int8) for tokens in LENGTHS]
    memory = new_memory(None, [None] * len(LENGTHS))
    memory.index.set_meaning("both", DIM, GROUP, part="encoder", sentence_dimension=width, sentence_tokens=every)
    blocks = range(1, len(LENGTHS) + 1)
    for block, of_block in zip(blocks, codes, strict=True):
        memory.blocks.put_tensors(block, {"encoder.both": of_block})
    assert memory.index.blocks_without_meaning("encoder") == list(blocks)  # what they have is searched already
    rows = rng.standard_normal((5, DIM)).astype(np.float32)
    asked = rng.standard_normal((1, width)).astype(np.float32)
    asked *= 2 / np.linalg.norm(asked)

    def scores(**more: Any) -> dict[str, dict[int, float]]:
        rankings = memory.search.rankings(100, token_ids=NO_TOKENS, kinds=["encoder"], encoder_query=rows, **more)
        return {
            one.granularity: {page.begin: score for page, score in zip(one.pages, one.scores, strict=True)}
            for one in rankings
        }

    def cosines(own: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        unit: np.ndarray[Any, Any] = own / np.linalg.norm(own, axis=1, keepdims=True)
        return unit.astype(np.float64) @ asked[0]

    before = scores()
    assert scores(sentence_query=asked) == before
    for block in blocks:
        if block != 4:
            memory.blocks.put_tensors(block, {"sentence.both": sentences[block - 1]})
        if block != 2:
            memory.blocks.put_tensors(block, {"passage.both": passages[block - 1]})
    assert memory.index.blocks_without_meaning("encoder") == [2, 4]
    assert scores() == before
    after = scores(sentence_query=asked)
    assert after["group"] == before["group"]
    begin = 0
    for block, tokens in zip(blocks, LENGTHS, strict=True):
        at = 0
        for page, first in enumerate(range(0, tokens, PAGE)):
            count = -(-min(PAGE, tokens - first) // every)
            gained = after["page"][begin + first] - before["page"][begin + first]
            of_sentence = 0 if block == 4 else cosines(sentences[block - 1][at : at + count]).max()
            of_passage = of_sentence if block == 2 else cosines(passages[block - 1][page : page + 1])[0]
            assert gained == pytest.approx(of_sentence + of_passage, abs=0.06)  # the question is int8 there
            at += count
        begin += tokens
    with pytest.raises(ValueError, match=r"sentence_query: shape \[1, 16\], expected \[rows, dimension\] = \[1, 24\]"):
        scores(sentence_query=rows[:1])
    with pytest.raises(ValueError, match=r"sentence\.both"):
        memory.blocks.put_tensors(4, {"sentence.both": sentences[3][1:]})
    with pytest.raises(ValueError, match=r"passage\.both"):
        memory.blocks.put_tensors(2, {"passage.both": passages[1][1:]})
    with pytest.raises(ValueError, match="sentence_tokens is 0"):
        memory.index.set_meaning("both", DIM, GROUP, part="encoder", sentence_dimension=width)
    memory.blocks.forget([5])
    gone = sum(LENGTHS[:4])
    assert not any(gone <= begin < gone + LENGTHS[4] for begin in scores(sentence_query=asked)["page"])
    memory.close()

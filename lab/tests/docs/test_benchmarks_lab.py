"""What the benchmarks share with the package still fits it: they run, on a tiny model, in seconds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.data import Book
from everlong.parts.writer import Writer
from everlong_lab.parts.towers.measure import Asked, planted_facts, to_answer
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.parts.kv_writer import drawn_writer, pack_with

CONFIG = TINY_MEMORY.changed(search={"index": ("heads", "lexical")})

NUMBERS = "".join(f"The number of {number:04d} is {number * 7919 % 10_000:04d}. " for number in range(300))


def test_answers_are_kept_as_they_come_and_a_run_goes_on(folder: Path, tmp_path: Path) -> None:
    import recall_modes

    from everlong_lab.eval.answers import AnswerFile
    from everlong_lab.parts.towers.measure_answers import ToAnswer

    kinds = ["explicit"] * 3 + ["implicit"] * 2
    asked = [ToAnswer(f"The number of {at:04d} is", kind, (), ("it",)) for at, kind in enumerate(kinds)]
    assert [one.kind for one in recall_modes.in_turns(asked)] == [*(["explicit", "implicit"] * 2), "explicit"]
    with everlong.Memory.open(folder) as memory:
        memory.fork(tmp_path / "fork").close()
    base = CONFIG.with_part(Writer(tokens=4))
    options = argparse.Namespace(modes=["kv", "detail"], pack=None)
    file = tmp_path / "answers.jsonl"
    model = (tiny_model(), byte_tokenizer())
    for some in (asked[:2], asked):
        kept = AnswerFile(file, {"count": 3})
        recall_modes.ask(model, base, options, {str(tmp_path / "fork"): some}, kept)
        assert len(kept.rows) == 2 * len(some)
        assert len({(row["mode"], row["words"]) for row in kept.rows}) == len(kept.rows)
    assert all(0 < row["slots"] <= base.frame.recalled_tokens for row in kept.rows)


@pytest.mark.slow
def test_chosen_tokens_answer_in_every_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kept_answers as bench

    model = (tiny_model(), byte_tokenizer())
    pack = pack_with(tmp_path / "pack", model[0], drawn_writer(model[0]))
    base = TINY_MEMORY.changed(frame={"kept_tokens": 64})
    monkeypatch.setattr("everlong.data.shipped_books", lambda: [Book("numbers", NUMBERS)])
    scores, slots = bench.ask_zones(
        model,
        bench.zone_arms(base),
        1,
        1500,
        2,
        lambda *known: None,
        pack,
    )
    assert set(scores) == set(slots) == set(bench.PARTS)
    assert all(len(by_kind["fact"]) == 2 for by_kind in scores.values())
    assert slots[bench.NO_ZONE] == [0, 0]
    assert min(slots[bench.WRITTEN]) > 30
    assert len(list(bench.rows_of(scores, slots))) == 2 + 4 + 3

    arms = bench.recalled_arms(base)
    with everlong.MemoryModel(*model, tmp_path / "m", arms[bench.WRITTEN], pack=pack) as mm:
        mm.read(NUMBERS[:2000])
    (question,) = to_answer([Asked(planted_facts(development=False)[0].question, "fact", ())], development=False)
    found: Any = {}
    back: dict[str, list[int]] = {}
    with bench.opened_arms(model, tmp_path / "m", arms, pack) as memories:
        chosen = {arm: mm.memory.core.blocks.tensor(2, "kept.tokens").tolist() for arm, mm in memories.items()}
        for arm, mm in memories.items():
            bench.ask(mm, arm, question, found, back)
            begin, end = mm.memory.blocks()[1].span
            length = end - begin
    newest = sorted(chosen[bench.NEWEST])
    assert newest == list(range(length - len(newest), length))
    assert chosen[bench.KEPT] == chosen[bench.WRITTEN] != chosen[bench.NEWEST]
    assert {len(by_kind["fact"]) for by_kind in found.values()} == {1}
    assert 0 < back[bench.KEPT][0] == back[bench.WRITTEN][0] < back[bench.PAGES][0]

"""What the benchmarks share with the package still fits it: they run, on a tiny model, in seconds."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong import ops
from everlong.data import Book
from everlong.parts.writer import Writer
from everlong_lab.parts.towers.measure import QuestionMeasured, planted_facts, to_answer
from support import REPOSITORY, TINY_MEMORY, byte_tokenizer, tiny_model
from support.parts.kv_writer import drawn_writer, pack_with

CONFIG = TINY_MEMORY.changed(search={"index": ("heads", "lexical")})
LAYERS, KV_HEADS, DIM, PAGE = 3, 2, 16, CONFIG.archive.page_tokens  # of tiny_model
NUMBERS = "".join(f"The number of {number:04d} is {number * 7919 % 10_000:04d}. " for number in range(300))


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On the path, and off it again with what was imported from there."""
    folder = REPOSITORY / "benchmarks"
    if not folder.exists():
        pytest.skip("no benchmarks beside these tests")
    monkeypatch.syspath_prepend(str(folder))
    yield
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.fixture(name="folder")
def a_memory(tmp_path: Path) -> Path:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIG) as mm:
        mm.read(NUMBERS)
        mm.calibrate()
    return tmp_path / "m"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "keys"),
    [
        ("read", "--tokens 512 --rounds 2", {"span_tokens", "everlong_tokens_per_second", "ratio", "grown_ratio"}),
        ("decode", "--sizes 9000 10000 --tokens 2 --rounds 2", {"cpu", "torch", "rows"}),
        ("recall", "--sizes 9000 --rounds 1", {"cpu", "threads", "costs"}),
        (
            "tombstones",
            "--tombstones 2 --heads 3 --layers 2 --tokens 2 --rounds 1",
            {"cpu", "torch", "on", "off", "ratio"},
        ),
        ("kv_codecs", "--contexts 1 --tokens 128 --after 8 --rounds 1", {"cpu", "torch", "layers", "codecs"}),
        ("batch", "--rows 2 --context 100 --new-tokens 2 --questions 0", {"cpu", "rows", "decoding", "transformers"}),
        ("forks", "--forks 2 --context 800 --tokens 2", {"cpu", "frame_bytes", "shared", "copied"}),
        ("ram", "--sizes 9000", {"cpu", "frame_bytes", "host_bytes", "sizes"}),
        ("blocks", "--blocks 1600", {"open_s", "open_cpu_s", "open_resident_mb", "index_mb", "append_us", "forget_ms"}),
        ("rerank", "--tokens 6000 --candidates 9 --rounds 1", {"cpu", "archive", "text", "ratio", "correlation"}),
    ],
)
def test_a_script_prints_what_the_package_measures(
    script: str, options: str, keys: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(script)
    monkeypatch.setattr(module, "load", lambda *_, **__: (tiny_model(), byte_tokenizer()), raising=False)
    monkeypatch.setattr(sys, "argv", [script, *options.split(), "--json"])
    module.main()
    assert keys <= set(json.loads(capsys.readouterr().out))
    monkeypatch.setattr(sys, "argv", [script, *options.split()])
    module.main()
    assert len(capsys.readouterr().out.splitlines()) >= 3


def exact_masses(asked: Any) -> np.ndarray[Any, Any]:
    """The mass of every page for every question, over the archived keys in fp64; all there is adds up to 1."""
    pages = asked.core.blocks.pages()
    keys = []
    for page in pages:
        tokens = page.end - page.begin
        payload = np.zeros(asked.core.page_bytes(tokens), dtype=np.uint8)
        asked.core.blocks.read_pages([page], payload)
        k, _ = ops.decode_kv(
            torch.from_numpy(payload), LAYERS, KV_HEADS, tokens, DIM, PAGE, CONFIG.archive.codec, torch.float
        )
        keys.append(k[:, :, max(0, CONFIG.frame.sink_tokens - page.begin) :].double().numpy())
    rows = []
    for ids, queries in asked.questions:
        weights = asked.core.search.idf(ids).astype(np.float64)
        mass = np.zeros(len(pages))
        for head, (layer, _, kv_head) in enumerate(asked.heads):
            scores = [np.exp(queries[:, head] @ of_page[layer, kv_head].T / DIM**0.5).sum(1) for of_page in keys]
            mass += weights @ (np.stack(scores, 1) / np.sum(scores, 0)[:, None])
        rows.append(mass / mass.sum())
    return np.stack(rows)


@pytest.mark.slow
def test_a_memory_is_asked_by_its_heads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import heads_keys
    import two_levels

    monkeypatch.setattr(two_levels, "load", lambda _: (tiny_model(), byte_tokenizer()))
    levels = two_levels.measure(folder, 60)
    assert levels["questions"] > 0
    assert 0 < levels["kept"] <= 1
    keys = heads_keys.measure(folder, 60)["keys"]
    for in_bytes in ("int8", "e4m3"):
        assert keys[in_bytes]["token_bytes"] < keys["bf16"]["token_bytes"]
        assert keys[in_bytes]["best"] > 0.9
        assert keys[in_bytes]["first"] > 0.8
        assert keys[in_bytes]["mass"] < 2e-3
    # bf16, which these are compared with, against the definition.
    with two_levels.asked_memory(folder, 60) as asked:
        asked.core.index.set_retrieval_heads(asked.heads, two_levels.NEVER, "bf16")
        exact = exact_masses(asked)
        np.testing.assert_allclose(heads_keys.masses(asked), exact.max(1), rtol=1e-3)
        begins = np.array([page.begin for page in asked.core.blocks.pages()])
        there = []
        for mass, question in zip(exact, asked.questions, strict=True):
            best = two_levels.rank(asked.core, asked.pages, *question).best
            there.append(np.isin(begins[np.argsort(-mass)[: two_levels.BEST]], list(best)).mean())
        assert np.mean(there) > 0.95


def test_however_many_questions_are_wanted_each_is_asked_once() -> None:
    import two_levels

    assert len(two_levels.questions_of(98)) == 98
    every = two_levels.questions_of(10_000)
    assert len(set(every)) == len(every) > len(two_levels.questions_of(200))


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


def test_a_zone_fits_a_model_of_a_small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    import anchors

    monkeypatch.setattr(anchors, "shipped_books", lambda: [Book("numbers", NUMBERS)])
    zones = ["off", "8 anchors of 32"]
    scored = anchors.perplexities(tiny_model(), byte_tokenizer(), zones, range(1), 1536, 64, 0)
    assert [each.zone for each in scored] == zones
    assert scored[0].perplexity > 1
    assert scored[0].perplexity != scored[1].perplexity


def test_what_a_kept_zone_costs_is_measured_once_it_is_full() -> None:
    import kept

    model = tiny_model()
    frames = kept.configs(model, [96], None)
    assert list(frames) == ["without", "96 kept", "96 more slots"]
    ticks = itertools.count()
    memories = {name: everlong.MemoryModel(model, byte_tokenizer(), config=config) for name, config in frames.items()}
    ids = torch.arange(4000) % 250
    rows = kept.measure(memories, ids, 3000, 2, 256, 6, lambda: float(next(ticks)))
    for mm in memories.values():
        mm.close()
    assert [row.reading_ratio for row in rows] == [row.decoding_ratio for row in rows] == [1.0] * 3
    assert 90 < rows[1].resident_tokens - rows[0].resident_tokens <= 96
    assert (rows[0].spans_tokens, rows[2].spans_tokens) == (0, 0)
    assert rows[1].spans_tokens > 96 * 8 // 2


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
    (question,) = to_answer(
        [QuestionMeasured(planted_facts(development=False)[0].question, "fact", ())], development=False
    )
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


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_memcpy_copies_every_piece_on_all_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import memcpy

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    source, target = np.arange(30, dtype=np.uint8), np.zeros(30, dtype=np.uint8)
    order = np.random.default_rng(0).permutation(10)
    pieces = [(target.ctypes.data + 3 * at, source.ctypes.data + 3 * i, 3) for at, i in enumerate(order.tolist())]
    memcpy.memcpy(pieces)
    assert target.tolist() == source.reshape(10, 3)[order].ravel().tolist()


def test_a_store_and_its_anchors_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import store

    monkeypatch.setattr(store.os, "sync", lambda: None)
    benchmark = store.Benchmark(tmp_path, 1_500, rounds=2)
    assert benchmark.tokens == 1_024
    figures = {}
    for measure in (benchmark.append, benchmark.reopen, benchmark.read_ram, benchmark.read_disk):
        figures |= measure()
    assert all(value > 0 for value in figures.values())
    assert figures["payload_bytes"] == (tmp_path / "anchor.raw").stat().st_size == 2 * benchmark.block_bytes
    ran: list[str] = []
    store.medians({name: lambda name=name: ran.append(name) or float(len(ran)) for name in "ab"}, 3)
    assert ran == ["a", "b", "b", "a", "a", "b"]


def test_a_narrowed_question_keeps_its_block() -> None:
    module = importlib.import_module("tag_tree")
    report = module.measure(3000, 20)
    assert [row["kind"] for row in report["rows"]] == list(module.KINDS)
    assert all(row["inside"] == 1 for row in report["rows"])


def test_every_method_ranks_a_question(folder: Path) -> None:
    import index_recall

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, CONFIG) as mm:
        begin = len("".join(f"The number of {number:04d} is 0000. " for number in range(22)))
        question = index_recall.Question("What is the number of 0022?", False, (begin, begin + 29))
        (row,) = index_recall.ask(mm, [question], None)
        pages = len(mm.memory.core.blocks.pages())
    assert set(row["ranks"]) == {"heads + lexical", "heads", "lexical", "mean_pool", "random"}
    assert row["ranks"]["lexical"] > 0
    assert len(row["candidates"]["heads"]) == min(index_recall.CANDIDATES, pages)


def test_groups_of_a_ranking_are_those_of_the_index(folder: Path) -> None:
    import index_recall

    with everlong.Memory.open(folder) as memory:
        core, pages = memory.core, memory.core.blocks.pages()
        place = {page.begin: number for number, page in enumerate(pages)}
        for number in range(0, 280, 7):
            ids = core.blocks.token_ids(0, number * 29, number * 29 + 26)
            asked: dict[str, Any] = {"token_ids": ids, "kinds": ["lexical"]}
            hits = core.search.find(**asked, max_groups=256, neighbours=1, least_share=0, token_budget=1 << 40).groups
            scored = [
                (score, place[page.begin])
                for group in hits
                for page, score in zip(group.pages, group.page_scores, strict=True)
                if score > -math.inf  # a neighbour that nothing named
            ]
            scored.sort(key=lambda hit: (-hit[0], hit[1]))
            expected = index_recall.groups_of(pages, [page for _, page in scored], [score for score, _ in scored])
            found = core.search.find(**asked, max_groups=4, neighbours=1, token_budget=1 << 40).groups
            assert [(group.begin, group.end) for group in found] == expected


def test_questions_to_own_texts_are_scored_and_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import questions

    texts = {f"part {number}": NUMBERS[number * 2000 : (number + 1) * 2000] for number in range(5)}
    asked = [
        {"kind": "one", "question": "The number of 0061 is", "sources": ["part 1"], "answers": ["3059"]},
        {"kind": "none", "question": "The number of 0002 is", "sources": ["part 0"], "answers": ["no such number"]},
    ]
    (tmp_path / "q.json").write_text(json.dumps({"texts": texts, "questions": asked}), "utf-8")
    monkeypatch.setattr(questions, "load", lambda *_: (tiny_model(), byte_tokenizer()))
    monkeypatch.setattr(everlong, "MemoryConfig", lambda: CONFIG)
    arguments = ["questions.py", str(tmp_path / "m"), str(tmp_path / "q.json"), "--model", "tiny", "--tokens", "4"]
    monkeypatch.setattr(sys, "argv", arguments)
    questions.main()
    table = capsys.readouterr().out
    assert "| one | 1 | " in table
    assert "| none | 1 | 0 | 0 | 0 | 0 | 0 |" in table
    kept = tmp_path / "m" / "replies.json"
    rows = json.loads(kept.read_text("utf-8"))
    assert all(0 <= row[name] <= 1 for row in rows.values() for name in ("confidence", "confidence without"))

    rows["The number of 0061 is"] |= {"found": True, "right": True}
    kept.write_text(json.dumps(rows), "utf-8")
    questions.main()
    assert "| one | 1 | 1 | 1 | 0 | 1 | 0 |" in capsys.readouterr().out  # it was not asked again

    import answers_by_model

    picture = tmp_path / "models.svg"
    monkeypatch.setattr(sys, "argv", ["answers_by_model.py", str(picture), f"tiny={tmp_path / 'm'}"])
    answers_by_model.main()
    assert capsys.readouterr().out == "tiny | 2 | gold right 0 | found 1 | right 1\n"
    assert "<svg" in picture.read_text("utf-8")


def test_a_question_needs_all_its_sources_and_all_their_evidence(folder: Path) -> None:
    import questions

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, CONFIG) as mm:
        recalled = mm.recall("The number of 0061 is")
    text = recalled[0].text
    one = questions.Question("?", "kind", (recalled[0].source,), ("a", "B"), (text[2:9], text[4:12].upper()))
    assert one.found(recalled)
    assert one.right("b and A")
    assert not one.right("b")
    for other in ({"sources": (recalled[0].source, "another")}, {"evidence": ("nowhere",)}):
        assert not dataclasses.replace(one, **other).found(recalled)


def test_what_friends_are_asked_stands_in_their_sessions() -> None:
    import questions
    import sessions

    texts, asked = sessions.drawn(40, random.Random(1))
    lines = str.splitlines
    for one in asked:
        text = "".join(texts[source] for source in one["sources"])
        assert all(it in text for it in one["evidence"]), one
        if one["kind"] == "changed":
            who = next(name for name in sessions.FRIENDS if name in one["question"])
            what = "moved to" if "city" in one["question"] else "I changed my job"
            said = [name for name in texts if any(f"{who}: " in line and what in line for line in lines(texts[name]))]
            assert said == one["sources"]
    assert {one["kind"] for one in asked} == {"changed", "several", "who", "when"}
    some = questions.drawn([questions.Question("", one["kind"], (), (), ()) for one in asked], 4)
    assert len(some) == 16


def test_questions_on_this_code_are_true() -> None:
    import questions

    texts, asked = questions.given_questions(REPOSITORY / "benchmarks/code_questions.json", REPOSITORY / "cpp")
    assert len(asked) == 20
    for one in asked:
        assert all(answer in texts[one.sources[0]] for answer in one.answers), one

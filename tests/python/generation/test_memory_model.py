"""MemoryModel as its users meet it: reading, asking, closing, reopening, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import io
import itertools
import json
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import everlong
from everlong.config.answer import Policy
from everlong.frame.offers import Offers
from everlong.memory.where import parse_time, seconds
from everlong.models.model_interface import gpu_of
from everlong.models.releases import cache_argument
from support import SMALL, TINY_MEMORY, byte_tokenizer, changed, random_text, tiny_model
from support.processes import run_script
from support.traces import blocks_of

FACT = "Zq7#Kx9!Wv3@Jy5%"


def haystack_with_fact() -> str:
    """3,000 letters with 16 symbols in the middle that stand nowhere else."""
    text = random_text(3000)
    return text[:1200] + FACT + text[1200:]


@pytest.fixture
def mm():
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as opened:
        yield opened


def test_read_reports_what_is_in_the_memory(mm) -> None:
    report = mm.read(haystack_with_fact(), source="needle")
    stats = mm.memory.stats()
    assert report.tokens == stats.tokens == 3016 == mm.stream_tokens
    assert report.blocks == stats.blocks == len(mm.memory.blocks())
    spans = [block.span for block in mm.memory.blocks(source="needle")]
    assert spans[0][0] == 0
    assert spans[-1][1] == 3016
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


def test_frame_never_exceeds_its_budget(mm) -> None:
    bytes_before = mm.frame.cache.buffers.nbytes()
    mm.read(haystack_with_fact())
    assert mm.frame.cache.length <= SMALL.frame.tokens
    assert mm.frame.os.next_position() <= SMALL.frame.tokens
    assert mm.frame.cache.buffers.nbytes() == bytes_before


def test_words_that_stand_nowhere_else_are_found_and_cited(mm) -> None:
    mm.read(haystack_with_fact(), source="needle")
    found = mm.recall(f"what follows {FACT}?")
    assert FACT in found[0].text
    assert found[0].source == "needle"
    assert found[0].span[0] <= 1200
    assert found[0].span[1] >= 1216
    assert "lexical" in found[0].found_by
    assert FACT in found[0].passage
    assert found[0].passage in found[0].text
    assert len(found[0].passage) < len(found[0].text)
    answer = mm.generate(f"what follows {FACT}?", max_new_tokens=3, remember=False)
    assert FACT in answer.recalled[0].text
    assert mm.generate(FACT, max_new_tokens=3, remember=False, recall=False).recalled == ()


def test_recalled_pages_change_the_answer_and_enter_no_block(mm) -> None:
    mm.read(haystack_with_fact())
    with_memory = mm.generate(FACT, max_new_tokens=20, remember=False)
    alone = mm.generate(FACT, max_new_tokens=20, remember=False, recall=False)
    assert with_memory.text != alone.text
    mm.generate(FACT, max_new_tokens=20, remember=True)
    assert mm.stream_tokens == 3016 + len(FACT) + 20
    mm.frame.end_of_text()
    archived = mm.memory.core.blocks.token_ids(0, 3016, mm.stream_tokens)
    assert mm.tokenizer.decode(archived.tolist()[: len(FACT)]) == FACT
    assert mm.memory.stats().tokens == mm.stream_tokens


def test_forgotten_text_is_not_found() -> None:
    # By words alone: the heads of a random model point anywhere.
    config = SMALL.changed(search={"index": ("lexical",)})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(1500), source="kept")
        mm.read(haystack_with_fact(), source="needle")
        assert FACT in mm.recall(FACT)[0].text
        assert mm.memory.forget(source="needle") > 0
        assert all(FACT not in recall.text for recall in mm.recall(FACT))
        assert {block.source for block in mm.memory.blocks()} == {"kept"}


def test_a_question_keeps_to_where_it_is_asked() -> None:
    config = SMALL.changed(search={"index": ("lexical",)})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(haystack_with_fact(), source="old", tags=["letters", "2024"])
        mm.read(random_text(1500, seed=4) + FACT + random_text(900, seed=5), source="new", tags=["letters"])
        mm.read(random_text(1500, seed=6), source="newest")
        blocks = mm.memory.blocks()
        assert {block.source: block.tags for block in blocks} == {
            "old": ("letters", "2024"),
            "new": ("letters",),
            "newest": (),
        }
        first_new = next(block for block in blocks if block.source == "new").created_at
        for where, expected in [
            (everlong.Where(), {"old", "new", "newest"}),
            (everlong.Where(source="new"), {"new"}),
            (everlong.Where(source=["old", "newest"]), {"old", "newest"}),
            (everlong.Where(tags="letters"), {"old", "new"}),
            (everlong.Where(tags=["2024", "letters"]), {"old"}),
            (everlong.Where(before=first_new), {"old"}),
            (everlong.Where(after=first_new), {"new", "newest"}),
            (everlong.Where(after=datetime.timedelta(days=7), source="old"), {"old"}),
            (everlong.Where(before=datetime.timedelta(days=7)), set()),
            (everlong.Where(source="nowhere"), set()),
        ]:
            found = mm.recall(FACT, where=where)
            assert {recall.source for recall in found} <= expected, where
            assert bool(found) == bool(expected), where
            assert any(FACT in recall.text for recall in found) == bool(expected & {"old", "new"}), where
        answer = mm.generate(FACT, max_new_tokens=3, remember=False, where=everlong.Where(source="new"))
        assert {recall.source for recall in answer.recalled} == {"new"}
        list(mm.stream(FACT, max_new_tokens=3, remember=False, where=everlong.Where(source="nowhere")))
        assert mm.last_recalled == ()


@pytest.mark.parametrize("where", [None, "a", {"source": "a"}])
def test_what_is_no_where_is_refused_before_anything_is_done(mm, where: Any) -> None:
    for call in (mm.generate, mm.stream, mm.recall):
        with pytest.raises(TypeError, match="where is"):
            call("a", where=where)
    with pytest.raises(TypeError, match="where is"):
        mm.generate("a", recall=False, where=where)
    assert mm.stream_tokens == 0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"source": None}, TypeError),
        ({"source": [1]}, TypeError),
        ({"source": []}, ValueError),
        ({"tags": []}, ValueError),
        ({"tags": 7}, TypeError),
        ({"after": "7d"}, TypeError),
        ({"before": [1.0]}, TypeError),
    ],
    ids=repr,
)
def test_a_where_that_chooses_by_nothing_there_can_be_is_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        everlong.Where(**wrong)


def test_a_where_is_what_it_was_made_of() -> None:
    names = ["a", "b"]
    where = everlong.Where(source=iter(names), tags="work", after=datetime.date(2026, 11, 21))
    names.append("c")
    midnight = datetime.datetime(2026, 11, 21).timestamp()
    expected = {"sources": ["a", "b"], "tags": ["work"], "since": midnight, "before": None, "roles": []}
    expected |= {"happened_since": None, "happened_before": None, "newest_tags": []}
    assert where.core() == where.core() == expected
    assert hash(where) == hash(everlong.Where(("a", "b"), "work", datetime.date(2026, 11, 21)))


def test_times_are_typed_as_moments_or_as_ago() -> None:
    with pytest.raises(ValueError, match="longer ago"):
        parse_time("99999999999999d")
    assert parse_time("2d") == datetime.timedelta(days=2)
    assert parse_time("1.5h") == datetime.timedelta(hours=1.5)
    assert parse_time("2026-11-21T14:00+00:00") == datetime.datetime(2026, 11, 21, 14, tzinfo=datetime.UTC)
    assert parse_time("2026-11-21") == datetime.datetime(2026, 11, 21)
    assert seconds(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)) == 86400
    assert seconds(12.5) == 12.5
    with pytest.raises(ValueError, match="yesterday"):
        parse_time("yesterday")


def test_recent_policy_brings_back_the_newest_blocks() -> None:
    """Every `recent_every` generated tokens the newest blocks that left the frame come back."""
    config = SMALL.changed(answer={"policy": "recent", "recent_every": 32, "recent_blocks": 2})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(2000))
        answer = mm.generate("abc", max_new_tokens=70)
        restored = [event for event in mm.frame.os.trace() if event["what"] == "restore"]
        gone = [block for block in mm.memory.blocks() if block.span[1] <= mm.frame.os.rolling[0]]
        assert len(restored) == 2
        cited = {block for event in restored for block in blocks_of(event)}
        assert [recall.block_id for recall in answer.recalled] == sorted(cited)
        assert all(recall.text == mm.text(recall.block_id) for recall in answer.recalled)
        assert {recall.found_by for recall in answer.recalled} == {("recent",)}
        assert set(blocks_of(restored[-1])) <= {block.id for block in gone[-3:]}
        assert mm.frame.os.recalled_tokens > 0


def test_trace_tells_what_came_back_though_it_is_not_remembered() -> None:
    config = SMALL.changed(search={"index": ("lexical", "mean_pool")})  # queries are tapped, too
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        text = random_text(2000)
        mm.read(text)

        def decided() -> list[tuple[str, str | None, int | None]]:
            new = mm.trace()[len(before) :]
            assert mm.trace()[: len(before)] == before
            assert all(event["restored"] for event in new if event["what"] == "restore" and event["tokens"] > 0)
            return [
                (e["what"], e["trigger"], e["branched_at"]) for e in new if e["what"] in ("clear", "recall", "restore")
            ]

        remembered: list[tuple[str, str | None, int | None]] = [
            ("clear", None, None),
            ("recall", "prompt", None),
            ("restore", None, None),
        ]
        branched = [(what, trigger, 2000) for what, trigger, _ in remembered]
        before = mm.trace()
        answer = mm.generate(text[300:330], max_new_tokens=3, remember=False)
        assert decided() == branched
        (restored,) = [event for event in mm.trace()[len(before) :] if event["what"] == "restore"]
        assert {recall.block_id for recall in answer.recalled} <= set(blocks_of(restored))
        before = mm.trace()
        mm.recall(text[300:330])
        assert decided() == branched
        before = mm.trace()
        mm.perplexity(text[300:330], policy="recent")
        assert decided() == [("clear", None, 2000), ("restore", None, 2000)]
        before = mm.trace()
        pieces = mm.stream(text[300:330], max_new_tokens=3, remember=False)
        next(pieces)
        assert decided() == branched, "while it is being answered, too"
        pieces.close()
        assert decided() == branched
        before = mm.trace()
        mm.generate(text[300:330], max_new_tokens=3)
        assert decided() == remembered


def test_trace_tells_what_was_decided_before_an_answer_failed(mm, monkeypatch: pytest.MonkeyPatch) -> None:
    mm.read(random_text(2000))
    before = len(mm.trace())
    monkeypatch.setattr(mm.frame.zones.pages, "start", None)
    with pytest.raises(TypeError):
        mm.generate(random_text(30), max_new_tokens=3, remember=False)
    monkeypatch.undo()
    assert [e["trigger"] for e in mm.trace()[before:] if e["what"] == "recall"] == ["prompt"]
    assert mm.generate(random_text(30), max_new_tokens=3).tokens == 3


def test_perplexity_of_a_frame_that_holds_everything_is_the_plain_one(mm) -> None:
    text, rest = random_text(100), random_text(80, seed=2)
    mm.read(text)
    ids = torch.cat([mm.encode(text), mm.encode(rest)])
    with torch.no_grad():
        logits = mm.model(input_ids=ids[None]).logits[0, 100:-1]
    expected = torch.nn.functional.cross_entropy(logits, ids[101:])
    result = mm.perplexity(rest)
    assert result.tokens == 79
    assert result.nll == pytest.approx(float(expected), abs=1e-4)
    assert mm.memory.stats().tokens == 100


_OTHER_PROCESS = """
import sys
import everlong
from support import SMALL, byte_tokenizer, tiny_model
with everlong.MemoryModel(tiny_model("qwen3"), byte_tokenizer(), sys.argv[1], config=SMALL) as mm:
    answer = mm.generate(sys.argv[2], max_new_tokens=20, remember=False)
    print(repr((answer.text, [(r.span, r.source, r.text) for r in answer.recalled])))
"""


@pytest.mark.parametrize("codec", ["fp32", "e4m3", "e5m2", "int6", "k5v4"])
def test_memory_written_by_one_process_answers_in_another(tmp_path: Path, codec: str) -> None:
    config = SMALL.changed(archive={"codec": codec})
    with everlong.MemoryModel(tiny_model("qwen3"), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(haystack_with_fact(), source="needle")
        answer = mm.generate(FACT, max_new_tokens=20, remember=False)
    other = run_script(_OTHER_PROCESS, tmp_path / "m", FACT)
    assert other.returncode == 0, other.stderr
    text, recalled = eval(other.stdout)
    assert recalled == [(r.span, r.source, r.text) for r in answer.recalled]
    assert FACT in recalled[0][2]
    if codec == "fp32":
        assert text == answer.text


def test_reopened_memory_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Reading in two sessions leaves the same archive as reading in one."""
    text = haystack_with_fact()
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(text[:2000])
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        assert mm.stream_tokens == 2000
        mm.read(text[2000:])
        assert mm.memory.core.blocks.token_ids(0, 0, 3016).tolist() == mm.encode(text).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["recent", "periodic", "signal"])
def test_a_reopened_memory_recalls_when_it_would_have(tmp_path: Path, policy: Policy) -> None:
    config = SMALL.changed(
        search={"index": ("lexical",)},
        answer={"policy": policy, "recent_every": 32, "periodic_every": 32, "protect_tokens": 16},
    )

    def recalls(folder: Path, sessions: int, rounds: int) -> list[tuple[int, str]]:
        found = []
        for _ in range(sessions):
            with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=config) as mm:
                if mm.stream_tokens == 0:
                    mm.read(random_text(2000))
                for _ in range(rounds):
                    mm.generate(random_text(30), max_new_tokens=12)
                    mm.signal("retrieve")  # every second one waits for the end of the protection
                found += [(e["stream_position"], e["trigger"]) for e in mm.trace() if e["what"] == "recall"]
        return found

    expected = recalls(tmp_path / "one", 1, 7)
    assert len(expected) >= 2
    assert recalls(tmp_path / "seven", 7, 1) == expected


@pytest.mark.parametrize(
    "counts",
    [
        None,
        {},
        [],
        {"since_recent": -5, "since_periodic": 0, "since_restored": None, "signal_waits": False},
        {"since_recent": 0, "since_periodic": 10**30, "since_restored": -(10**30), "signal_waits": True},
        {"since_recent": "many", "since_periodic": 0.5, "since_restored": [], "signal_waits": None},
    ],
)
def test_a_memory_with_counts_that_are_none_is_opened(tmp_path: Path, counts: object) -> None:
    config = SMALL.changed(answer={"policy": "recent", "recent_every": 32})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(random_text(2000))
        stands = json.loads(mm.memory.core.manifest().attributes["frame"])
        assert stands["recall_counts"]["since_recent"] == 0
        del stands["recall_counts"]
        if counts is not None:
            stands["recall_counts"] = counts
    with everlong.Memory.open(tmp_path / "m") as memory:
        memory.core.set_attribute("frame", json.dumps(stands))
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, config=config) as mm:
            mm.generate("abc", max_new_tokens=33)
            assert [e["stream_position"] for e in mm.trace() if e["what"] == "recall"] == [2000 + 3 + 32]


def test_a_reopened_memory_passes_over_signals_as_long(tmp_path: Path) -> None:
    config = SMALL.changed(archive={"least_tokens": 40, "cooldown_tokens": 100})

    def spans(folder: Path, *, reopened: bool) -> list[tuple[int, int]]:
        mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=config)
        for text in (random_text(10), random_text(50)):
            if reopened:
                mm.close()
                mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=config)
            mm.frame.extend(mm.encode(text), "read")
            mm.signal("summarize")  # too soon for the first block, and then too soon after that
            mm.frame.extend(mm.encode("on"), "read")
            mm.frame.checkpoint()
        found = [block.span for block in mm.memory.blocks()]
        mm.close()
        return found

    assert spans(tmp_path / "one", reopened=False) == [(0, 12), (12, 64)]
    assert spans(tmp_path / "two", reopened=True) == [(0, 12), (12, 64)]


def other_tokenizer() -> transformers.PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["hello"])
    return tokenizer


def bytes_of(folder: Path) -> dict[str, bytes]:
    """By file; without what comes and goes with whoever has it open."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.endswith(("lock", "-wal", "-shm"))}


@pytest.mark.parametrize(
    ("model", "tokenizer", "named"),
    [
        (lambda: tiny_model("gemma3", "nested", seed=1), byte_tokenizer, "weights"),
        (lambda: tiny_model("gemma3", "nested proportional"), byte_tokenizer, "rope"),
        (lambda: tiny_model("gemma3", "nested"), other_tokenizer, "tokenizer"),
    ],
)
def test_another_model_is_refused_and_the_memory_untouched(tmp_path: Path, model, tokenizer, named: str) -> None:
    """One with heads, saved indexes and a frame with a state of its own."""
    folder = tmp_path / "m"
    text = random_text(900)
    with everlong.MemoryModel(tiny_model("gemma3", "nested"), byte_tokenizer(), folder, config=SMALL) as mm:
        mm.read(text)
        mm.calibrate()
        found = mm.recall(text[200:220])
    before = bytes_of(folder)
    assert {"manifest.json", "files/frame.safetensors", "index/heads"} < before.keys()
    assert any(name.startswith("segments/") for name in before)
    with pytest.raises(everlong.ModelMismatchError, match=named):
        everlong.MemoryModel(model(), tokenizer(), folder, config=SMALL)
    assert bytes_of(folder) == before
    with everlong.MemoryModel(tiny_model("gemma3", "nested"), byte_tokenizer(), folder, config=SMALL) as mm:
        assert mm.stream_tokens == 900
        assert mm.recall(text[200:220]) == found


def test_second_writer_is_refused(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(random_text(300))
        with pytest.raises(everlong.MemoryBusyError):
            everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL)


def test_calibration_is_kept_and_used(tmp_path: Path) -> None:
    text = "".join(random_text(64, seed=i) for i in range(100))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(text)
        assert mm.profile is None
        found = mm.recall(text[1000:1030])
        profile = mm.profile
        assert profile is not None
        assert len(set(profile.heads)) == SMALL.search.retrieval_heads
        assert 0 < profile.reciprocal_rank <= 1
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        assert mm.profile == profile
        assert [recall.span for recall in mm.recall(text[1000:1030])] == [recall.span for recall in found]


@pytest.mark.parametrize(
    ("computes_on", "most", "searched_on"), [("cpu", 1 << 20, None), ("cuda:3", 1 << 20, 3), ("cuda:3", 0, None)]
)
def test_heads_are_searched_where_the_model_computes(
    mm, monkeypatch: pytest.MonkeyPatch, computes_on: str, most: int, searched_on: int | None
) -> None:
    told: list[dict[str, object]] = []
    index = types.SimpleNamespace(set_retrieval_heads=lambda heads, **options: told.append({"heads": heads} | options))
    core = types.SimpleNamespace(index=index)
    profile = everlong.IndexProfile(((0, 1, 0),), query_distance=0, reciprocal_rank=1.0, pages=1, quotes=1, seed=0)
    with monkeypatch.context() as patched:
        patched.setattr(mm.searcher.heads, "_core", core)
        patched.setattr(mm.frame, "served", dataclasses.replace(mm.frame.served, device=torch.device(computes_on)))
        patched.setattr(mm, "config", mm.config.changed(search={"heads_device_bytes": most}))
        mm.searcher.heads._search_by(profile)
        assert gpu_of(mm.frame.served, most) == searched_on
    assert told == [{"heads": ((0, 1, 0),), "keys": "e4m3", "device": searched_on, "device_bytes": most}]


@pytest.mark.parametrize("codec", ["e4m3-plain", "e4m3", "int6"])
def test_keys_of_the_heads_in_bytes_find_the_same(codec: str, tmp_path: Path) -> None:
    text = "".join(random_text(64, seed=i) for i in range(100))
    of_codec = SMALL.changed(archive={"codec": codec}, search={"index": ("heads",)})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=of_codec) as mm:
        mm.read(text)
        mm.recall(text[1000:1030])
    found, taken = {}, {}
    for keys in ("bf16", "int8", "e4m3"):
        config = of_codec.changed(search={"heads_keys": keys})
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
            found[keys] = mm.recall(text[1000:1030])
            taken[keys] = mm.memory.stats().index_bytes
    assert found["bf16"]
    # Keys in a byte are nearly the same. In a plain archive, e4m3 has its codes and scales: nothing is rounded again.
    for keys, tolerance in (("e4m3", 1e-4 if codec == "e4m3-plain" else 0.05), ("int8", 1e-2)):
        assert [recall.span for recall in found[keys]] == [recall.span for recall in found["bf16"]]
        scores = [recall.score for recall in found["bf16"]]
        assert [recall.score for recall in found[keys]] == pytest.approx(scores, rel=tolerance)
    assert taken["int8"] == taken["e4m3"] < taken["bf16"]


def test_read_takes_files_and_pieces(mm, tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("some text of a book")
    mm.read(file)
    mm.read(iter(["first piece, ", "second piece"]), source="pieces")
    assert [block.source for block in mm.memory.blocks()] == ["book", "pieces"]
    assert mm.read("").tokens == 0


def test_a_batch_is_refused(mm) -> None:
    with pytest.raises(TypeError, match="one str"):
        mm.generate(["first question", "second question"])
    with pytest.raises(ValueError, match="num_return_sequences"):
        mm.generate("a", num_return_sequences=2, do_sample=True)
    ids = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="batch of 2"):
        mm.model(input_ids=ids, **{cache_argument(mm.model): mm.frame.cache})
    assert mm.stream_tokens == 0
    assert mm.generate("a", max_new_tokens=2).tokens == 2


def test_text_that_is_no_text_is_refused(mm) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        mm.read("half a character \ud83d")
    with pytest.raises(ValueError, match="surrogate"):
        mm.generate("half a character \ud83d")
    with pytest.raises(ValueError, match="not UTF-8"):
        mm.read(io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    for pieces in ([b"bytes"], io.BytesIO(b"bytes")):
        with pytest.raises(TypeError, match="the text is bytes, expected str"):
            mm.read(pieces)
    assert mm.stream_tokens == 0
    assert mm.read("").tokens == 0
    assert mm.generate("and on it goes", max_new_tokens=2).tokens == 2


def test_blocks_are_listed_by_when_they_were_read(mm) -> None:
    mm.read(random_text(300), source="old")
    mm.read(random_text(300, seed=2), source="new")
    first_new = mm.memory.blocks("new")[0].created_at
    assert {block.source for block in mm.memory.blocks(before=first_new)} == {"old"}
    assert {block.source for block in mm.memory.blocks(after=first_new)} == {"new"}
    assert mm.memory.blocks("old", after=first_new) == []
    assert len(mm.memory.blocks(after=datetime.timedelta(days=1))) == len(mm.memory.blocks())


def test_a_misspelt_policy_of_a_perplexity_is_told(mm) -> None:
    with pytest.raises(ValueError, match="policy is 'prompts', expected one of window, recent, prompt, random"):
        mm.perplexity("some text", policy="prompts")


def test_random_pages_of_a_perplexity_are_as_many_as_its_queries_find(mm, monkeypatch: pytest.MonkeyPatch) -> None:
    mm.read(random_text(3000))
    recalled: dict[str, list[set[tuple[int, int]]]] = {"prompt": [], "random": []}
    bring_back = mm.frame.bring_back
    for policy, pages_of in recalled.items():

        def noting(what, seen=pages_of) -> None:
            seen.append({(page.block, page.page) for offer in what for page in offer.pages})
            bring_back(what)

        monkeypatch.setattr(mm.frame, "bring_back", noting)
        mm.perplexity(random_text(40, seed=2), policy=policy)
    assert [len(pages) for pages in recalled["random"]] == [len(pages) for pages in recalled["prompt"]]
    assert recalled["prompt"][0]
    assert recalled["random"] != recalled["prompt"]


def test_perplexity_after_the_newest_text_was_forgotten(mm) -> None:
    mm.read(random_text(1500), source="note")
    mm.memory.forget(source="note")
    assert mm.perplexity(random_text(40, seed=2), policy="prompt").tokens == 40 - 1


@pytest.mark.parametrize(("kind", "rope"), [("gemma3", "nested"), ("qwen3_next", "partial")])
def test_a_memory_goes_on_in_another_dtype(tmp_path: Path, kind: str, rope: str) -> None:
    tokenizer = byte_tokenizer()
    config = SMALL.changed(search={"index": ("lexical",)})
    model = tiny_model(kind, rope)
    model.save_pretrained(tmp_path / "model")
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config) as mm:
        mm.read(random_text(700))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).eval()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config) as mm:
        assert mm.stream_tokens == 700
        mm.read(random_text(300, seed=2))
        mm.generate("and then?", max_new_tokens=4)
        own = mm.frame.cache.own.tensors()
        # Recurrent states stay as exact as the layers sum them in.
        assert all(
            t.dtype == torch.bfloat16
            for name, t in own.items()
            if not name.endswith("seen") and "recurrent" not in name
        )


def test_wrong_use_is_told(mm) -> None:
    with pytest.raises(ValueError, match="empty"):
        mm.generate("")
    with pytest.raises(ValueError, match="num_beams"):
        mm.generate("a", num_beams=2)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        mm.perplexity("a")
    with pytest.raises(ValueError, match="trained window"):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=everlong.MemoryConfig())
    mm.close()
    mm.close()
    with pytest.raises(everlong.ClosedError):
        mm.read("a")


def test_a_constructor_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tiny_model()
    made = []
    init = everlong.frame.frame.Frame.__init__

    def noted(frame: everlong.frame.frame.Frame, *arguments: object) -> None:
        init(frame, *arguments)
        made.append(weakref.ref(frame))

    def fail(core: object) -> None:
        raise RuntimeError("no profile")

    with monkeypatch.context() as patched:
        patched.setattr(everlong.frame.frame.Frame, "__init__", noted)
        patched.setattr(everlong.retrieval.retrieval_heads, "load_profile", fail)
        with pytest.raises(RuntimeError, match="no profile"):
            everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=SMALL)
    assert all(not module._forward_hooks for module in model.modules())
    gc.collect()
    assert [frame() for frame in made] == [None]
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        assert mm.read("and on it goes").tokens == 14


@pytest.mark.parametrize("wrong", [{"rolling_tokens": 5000}, {"frame_bytes": 10}, {"encoder": "nothing/there"}])
def test_a_config_that_is_refused_leaves_no_folder(
    wrong: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise everlong.EverlongError(f"no encoder {name}")

    monkeypatch.setattr("everlong.generation.opening.load_encoder", missing)
    config = changed(SMALL, codec="bf16", index=("lexical", "embedding"), **wrong)
    with pytest.raises((ValueError, everlong.EverlongError)):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config)
    assert not (tmp_path / "m").exists()


def test_one_tag_may_be_a_plain_text() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(100), tags="work")
        assert mm.memory.blocks()[0].tags == ("work",)


@pytest.mark.parametrize("recall", [None, "all", [1, 2]])
def test_what_is_no_page_is_refused_before_the_frame_is_touched(recall: Any) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
        mm.read("some text. " * 100)
        with pytest.raises(TypeError, match="no page"):
            mm.generate("text?", max_new_tokens=1, recall=recall)
        assert mm.generate("text?", max_new_tokens=1).tokens == 1


def test_what_was_found_may_be_named_to_be_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
        mm.read(haystack_with_fact())
        found = mm.recall(FACT)
        brought: list[tuple[int, int]] = []
        recall = mm.frame.recall

        def noting(pages: Any, *how: Any) -> None:
            brought.extend((page.begin, page.end) for page in pages)
            recall(pages, *how)

        monkeypatch.setattr(mm.frame, "recall", noting)
        mm.generate(FACT, max_new_tokens=1, recall=found)
    assert found
    assert {begin for begin, _ in brought} >= {one.span[0] for one in found}
    assert all(any(a <= begin and end <= b for a, b in (one.span for one in found)) for begin, end in brought)


def test_reading_keeps_no_row_of_logits_but_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[weakref.ref[torch.Tensor]] = []
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
        compute = mm.frame.zones.compute

        def watched(chunk: torch.Tensor, **how: bool) -> torch.Tensor:
            logits = compute(chunk, **how)
            rows.append(weakref.ref(logits))
            return logits

        monkeypatch.setattr(mm.frame.zones, "compute", watched)
        alive: list[int] = []
        mm.frame.extend(
            torch.zeros(40 * TINY_MEMORY.frame.chunk_tokens, dtype=torch.int64),
            "read",
            progress=lambda _: alive.append(sum(row() is not None for row in rows)),
        )
    assert len(rows) >= 40
    assert max(alive) <= 2


def test_a_search_is_as_decisive_as_a_question() -> None:
    config = TINY_MEMORY.changed(search={"index": ("heads", "lexical"), "groups": 3, "decisive": 1e-9})
    text = "".join(f"{number:04d} and so on, and so on. " for number in range(400))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text)
        mm.calibrate()
        for place in range(100, 3000, 300):
            question = text[place : place + 40]
            found = mm.recall(question, chat=False)
            mm.generate(question, max_new_tokens=1, remember=False, chat=False)
            assert found == mm.last_recalled
            if len(found) == 1:
                break
        else:
            pytest.fail("no question was decisive")


@pytest.mark.parametrize("decisive", [None, 1e-9])
def test_a_perplexity_brings_back_what_a_question_would(
    decisive: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that matters most is named, wherever the order puts it; where it is decisive it comes alone."""
    config = TINY_MEMORY.changed(search={"groups": 3, "neighbours": 0, "decisive": decisive}, answer={"order": "time"})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read("".join(f"{number:04d} and so on, and so on. " for number in range(400)))
        brought: list[Offers] = []
        groups: list[tuple[Any, ...]] = []
        find, bring_back = mm.searcher.find, mm.frame.bring_back

        def finding(*question: Any) -> Any:
            found = dataclasses.replace(find(*question), agreed=True, decisiveness=1.0)
            groups.append(found.offers)
            return found

        def noting(offers: Offers) -> None:
            brought.append(offers)
            bring_back(offers)

        monkeypatch.setattr(mm.searcher, "find", finding)
        monkeypatch.setattr(mm.frame, "bring_back", noting)
        mm.perplexity("0100 and so on, and so on.", policy="prompt")
    (offers,), (found,) = brought, groups
    assert len(found) > 1
    assert [offer.page for offer in offers if offer.best] == [found[0].page]
    expected = found[:1] if decisive else found
    assert {id(offer.pages) for offer in offers} == {id(group.pages) for group in expected}


@pytest.mark.parametrize(
    "changes",
    [{"recall_mode": "kv"}, {"policy": "off"}, {"recalled_tokens": 64}, {"index": ("embedding",)}, {"chunk_tokens": 7}],
    ids=repr,
)
def test_a_setting_that_stands_is_not_set_anew(mm, changes: dict[str, Any]) -> None:
    before = mm.config
    with pytest.raises(ValueError, match=next(iter(changes))):
        mm.config = changed(before, **changes)
    assert mm.config is before
    mm.config = before.changed(search={"groups": 1, "index": ("lexical",)}, answer={"order": "time"})
    assert mm.config.search.groups == 1


def test_a_config_that_cannot_be_is_refused_as_one() -> None:
    for changes, message in (({"frame_tokens": 0}, "frame_tokens"), ({"recent_blocks": 0}, "recent_blocks is 0")):
        with pytest.raises(ValueError, match=message):
            everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=changed(TINY_MEMORY, **changes))


def test_what_comes_back_during_an_answer_is_cited_behind_what_was_there_when_it_began() -> None:
    config = SMALL.changed(answer={"policy": ("prompt", "recent"), "recent_every": 32, "recent_blocks": 2})
    text = random_text(2000)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text)
        answer = mm.generate(text[200:230], max_new_tokens=70)
        restored = [blocks_of(event) for event in mm.frame.os.trace() if event["what"] == "restore"]
        found = [recall for recall in answer.recalled if recall.found_by != ("recent",)]
        newest = [recall for recall in answer.recalled if recall.found_by == ("recent",)]
        assert answer.recalled == (*found, *newest)
        assert found[0].block_id in restored[0]
        assert {recall.block_id for recall in newest} == {block for blocks in restored[1:] for block in blocks}


def test_a_question_is_read_once_while_nothing_has_left_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SMALL.changed(search={"index": ("lexical", "mean_pool")})  # by the question's queries, too
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(100))
        forwards: list[int] = []
        compute = mm.frame.zones.compute

        def counting(chunk, **how):
            forwards.append(len(chunk))
            return compute(chunk, **how)

        monkeypatch.setattr(mm.frame.zones, "compute", counting)
        mm.generate("what follows?", max_new_tokens=2)
        assert forwards == [13, 1, 1]
        mm.read(random_text(2000, seed=1))
        forwards.clear()
        mm.generate("what follows?", max_new_tokens=2)
        assert forwards.count(13) == 2

"""A question's where hides text that does not pass: the model attends to none of it, and nothing of it is shown."""

from __future__ import annotations

import dataclasses
import datetime
import random
import time
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import LogitsProcessorList

import everlong
from everlong import MemoryModel, Where
from everlong.frame.part import Needs, Offer, PartFindings
from everlong.parts.writer import Writer
from support import (
    TINY_MEMORY,
    TOLERANCE,
    byte_tokenizer,
    changed,
    next_logits,
    plain_logits,
    random_text,
    tiny_model,
    tiny_text_model,
)
from support.attention import seen_values
from support.examples import examples

DAY = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
LONG = TINY_MEMORY.changed(answer={"recalled_temperature": 1.0})
# Full attention, sliding windows, linear attention.
KINDS = [("llama", "default"), ("gemma3", "nested"), pytest.param("qwen3_next", "partial", marks=pytest.mark.slow)]
FRAMES: list[dict[str, Any]] = [
    {},
    {"prompt_rolling_tokens": 128},
    {"anchors": 2, "anchor_tokens": 16, "tombstones": 3},
    {"kept_tokens": 64, "recalled_tokens": 192},
    {"recall_mode": "text", "prompt_rolling_tokens": 200},
    {"policy": ("prompt", "recent"), "recent_every": 3, "quotes": 1},
    {"sink_tokens": 0, "recall_mode": "kv"},
]


@dataclasses.dataclass
class Told:
    """What the memory was given, as the test itself keeps it."""

    text: str
    begin: int
    end: int
    role: str
    source: str = ""
    tags: tuple[str, ...] = ()
    happened: datetime.datetime | None = None
    started: float = 0.0
    values: set[bytes] = dataclasses.field(default_factory=set)

    def passes(self, where: Where) -> bool:
        """A second opinion on what Where says."""

        def as_list(names: Any) -> list[str]:
            return [names] if isinstance(names, str) else list(names)

        moment = self.happened.timestamp() if self.happened else self.started
        first, last = where.happened or (0, float("inf"))
        return (
            (not as_list(where.source) or self.source in as_list(where.source))
            and set(as_list(where.tags)) <= set(self.tags)
            and (where.role is None or self.role in as_list(where.role))
            and (where.after is None or self.started >= where.after)
            and (where.before is None or self.started < where.before)
            and first <= moment < last
        )


def runs_of(told: list[Told]) -> list[str]:
    """Return the texts that stand without a gap, each run as one."""
    runs: list[str] = []
    end = None
    for one in told:
        if one.begin == end:
            runs[-1] += one.text
        else:
            runs.append(one.text)
        end = one.end
    return runs


def opened(kind: str, rope: str, **changes: Any) -> MemoryModel:
    model = tiny_text_model(kind) if rope == "text" else tiny_model(kind, rope)
    return MemoryModel(model, byte_tokenizer(), None, changed(LONG, **changes))


def tell(mm: MemoryModel, step: dict[str, Any], number: int) -> list[Told]:
    """Do a step, and say what the memory has of it."""
    begin, started = mm.stream_tokens, time.time()
    text = random_text(step["length"], seed=number)
    with seen_values() as seen:
        if step["read"]:
            happened = None if step["day"] is None else DAY + datetime.timedelta(days=step["day"])
            mm.read(text, source=step["source"], tags=step["tags"], happened=happened)
            told = [Told(text, begin, mm.stream_tokens, "read", step["source"], tuple(step["tags"]), happened)]
        else:
            answer = mm.generate(text[:40], max_new_tokens=5)
            asked = mm.stream_tokens - answer.tokens
            told = [
                Told(text[:40], begin, asked, "asked"),
                Told(answer.text, asked, mm.stream_tokens, "said"),
            ]
    for one in told:
        one.started, one.values = started, seen.written
    return told


STEP = st.fixed_dictionaries(
    {
        "read": st.integers(0, 3).map(bool),
        "source": st.sampled_from(["ann", "bob", "cid"]),
        "tags": st.sampled_from([[], ["red"], ["red", "blue"]]),
        "day": st.sampled_from([None, 0, 1, 2]),
        "length": st.sampled_from([30, 100, 260, 420]),
    }
)
WHERE = st.fixed_dictionaries(
    {},
    optional={
        "source": st.sampled_from(["ann", "bob", ("ann", "cid"), "nobody"]),
        "tags": st.sampled_from(["red", ("red", "blue")]),
        "role": st.sampled_from(["read", "asked", "said", ("asked", "said"), ("read", "said")]),
        "happened_after": st.just(DAY + datetime.timedelta(days=1)),
        "happened_before": st.just(DAY + datetime.timedelta(days=2)),
        "after": st.integers(0, 4),
        "before": st.integers(1, 5),
    },
)


def check(kind: str, rope: str, changes: dict[str, Any], steps: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    """Do the steps, and ask with and without the filter. `after` and `before` are steps."""
    with opened(kind, rope, **changes) as mm:
        told = [one for number, step in enumerate(steps) for one in tell(mm, step, number)]
        for moment in {"after", "before"} & fields.keys():
            place = fields[moment]
            fields = {**fields, moment: told[place].started if place < len(told) else time.time()}
        where = Where(**fields)
        passing = [one for one in told if one.passes(where)]
        hidden = set().union(*(one.values for one in told if one not in passing))
        hidden -= set().union(*(one.values for one in passing))
        for slot, (first, last, _) in enumerate(mm.frame.os.anchor_zone["tombstones"]):
            if any(one.begin < last and first < one.end for one in told if one not in passing):
                hidden |= {rows[0, slot].numpy().tobytes() for rows in mm.frame.cache.anchors.tombstone_v}
        question = random_text(30, seed=len(steps) // 2)
        before = mm.generate(question, max_new_tokens=8, remember=False)
        with seen_values() as seen:
            answer = mm.generate(question, max_new_tokens=8, remember=False, where=where)
            found = mm.recall(question, where=where)
        # The first layer's values are the same wherever a token stands.
        assert not seen.attended & (hidden - seen.written)
        for one in (*answer.recalled, *found):
            assert all(any(own.begin <= token < own.end for own in passing) for token in range(*one.span))
        # A sentence may go on in the next reading, where the first one ended without a stop.
        assert all(any(quote in run for run in runs_of(passing)) for quote in answer.quoted)
        # Everything is there again.
        assert mm.generate(question, max_new_tokens=8, remember=False) == before


@pytest.mark.parametrize(("kind", "rope"), [*KINDS, ("gpt2", "text")])
@given(data=st.data())
@examples(20)
def test_nothing_hidden_is_attended_to_or_shown(kind: str, rope: str, data: st.DataObject) -> None:
    of_text = [{"recall_mode": "text", "prompt_rolling_tokens": count} for count in (0, 99)]
    changes = data.draw(st.sampled_from(of_text if rope == "text" else FRAMES))
    check(kind, rope, changes, data.draw(st.lists(STEP, min_size=1, max_size=5)), data.draw(WHERE))


def step(source: str, length: int, **told: Any) -> dict[str, Any]:
    return {"read": source != "", "source": source, "tags": [], "day": None, "length": length, **told}


MIXED = [step("bob", 420), step("ann", 420), step("", 40), step("bob", 260, tags=["red"]), step("ann", 100, day=2)]


@pytest.mark.parametrize("fields", [{"source": "ann"}, {"role": ("read", "said")}, {"tags": "red"}], ids=str)
@pytest.mark.parametrize("changes", FRAMES, ids=str)
def test_nothing_hidden_is_attended_to_in_any_zone(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    check("llama", "default", changes, [*MIXED, step("", 40)], fields)


def narrowed_logits(mm: MemoryModel, question: str, where: Where) -> torch.Tensor:
    with mm.frame.branch():
        mm.frame.narrow(where)
        return mm.frame.extend(mm.encode(question), "prompt", logits=True)


OF_THREE = [("ann", 90), ("bob", 70), ("ann", 60)]


def read_three(mm: MemoryModel, first: str = "") -> tuple[torch.Tensor, torch.Tensor, int]:
    """Read texts of two. Return the stream's ids, and which of them are `first`'s, or bob's by default."""
    for number, (source, length) in enumerate(OF_THREE):
        mm.read(random_text(length, seed=number), source=source)
    ids = mm.frame.stream.read(0, mm.stream_tokens)
    of = torch.cat([torch.full((length,), source == (first or "bob")) for source, length in OF_THREE])
    return ids, of, mm.config.frame.sink_tokens


@pytest.mark.parametrize(("kind", "rope"), [*KINDS, ("gemma4", "nested proportional"), ("cohere2", "default")])
@pytest.mark.parametrize("source", ["ann", "bob", "nobody"])
def test_layers_with_own_state_compute_as_if_hidden_text_had_never_been(kind: str, rope: str, source: str) -> None:
    """The reference is a plain forward over sinks, what passes, and the question, at their positions in the frame."""
    with opened(kind, rope, recall_mode="text" if kind == "llama" else "auto") as mm:
        ids, passes, sinks = read_three(mm, source)
        question = mm.encode("who was it?")
        logits = narrowed_logits(mm, "who was it?", Where(source=source))
        places = torch.arange(len(ids))
        shown = passes & (places >= sinks)
        first = ids[:sinks] if bool(passes[:sinks].all()) else torch.full((sinks,), 256)  # <end>, where nothing begins
        whole = torch.cat([first, ids[shown], question])
        positions = torch.cat([places[:sinks], places[shown], len(ids) + torch.arange(len(question))])
        mask = torch.ones_like(whole)[None]  # without one, transformers takes a gap for the end of a sequence
        with torch.no_grad():
            expected = mm.model(
                input_ids=whole[None], position_ids=positions[None], attention_mask=mask, use_cache=False
            ).logits[0]
        assert (logits - expected[-len(question) :]).abs().max() <= TOLERANCE
        everything = plain_logits(mm.model, torch.cat([ids, question]))[-len(question) :]
        assert (logits - everything).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("smollm3", "default")])
@pytest.mark.parametrize("source", ["ann", "bob", "nobody"])
def test_of_full_attention_hidden_text_is_masked(kind: str, rope: str, source: str) -> None:
    """The reference is one plain forward of all with a mask. What passes was read over all that stood before it."""
    with opened(kind, rope) as mm:
        ids, passes, sinks = read_three(mm, source)
        question = mm.encode("who was it?")
        logits = narrowed_logits(mm, "who was it?", Where(source=source))
        places, asked = torch.arange(len(ids)), torch.arange(len(question))
        whole = torch.cat([ids, torch.full((sinks,), 256), question])
        positions = torch.cat([places, places[:sinks], len(ids) + asked])
        mask = torch.ones(len(whole), len(whole), dtype=torch.bool).tril()
        mask[len(ids) :, : len(ids)] = False
        mask[len(ids) + sinks :, : len(ids)] = passes
        if bool(passes[:sinks].all()):
            mask[len(ids) + sinks :, len(ids) : len(ids) + sinks] = False
        else:
            mask[len(ids) + sinks :, :sinks] = False
        bias = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        with torch.no_grad():
            out = mm.model(
                input_ids=whole[None], position_ids=positions[None], attention_mask=bias[None, None], use_cache=False
            )
        assert (logits - out.logits[0, -len(question) :]).abs().max() <= TOLERANCE


def with_pages_shuffled(text: str, seed: int) -> str:
    """Return a text of the same length, whose pages have the same letters: words count for as much in a search."""
    pages = [list(text[first : first + 64]) for first in range(0, len(text), 64)]
    for number, page in enumerate(pages):
        random.Random(seed + number).shuffle(page)
    return "".join(map("".join, pages))


class Recorder:
    """A logits processor that keeps what it sees."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.rows.append(scores[0].clone())
        return scores


# What comes back is read again, or it was computed by one layer alone: nothing of what stood beside it is in it.
ALONE: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama", "default", {"num_hidden_layers": 1}, {"recall_mode": "kv"}),
    ("llama", "default", {"num_hidden_layers": 1}, {**FRAMES[2], "prompt_rolling_tokens": 40, "rolling_tokens": 160}),
    ("llama", "default", {"num_hidden_layers": 1}, {"kept_tokens": 64, "recalled_tokens": 192, "recall_mode": "kept"}),
    ("llama", "default", {}, {"recall_mode": "text", "prompt_rolling_tokens": 128}),
    ("gemma3", "nested", {}, {"recall_mode": "text"}),
    ("qwen3_next", "partial", {}, {"recall_mode": "text"}),
    ("gpt2", "text", {}, {"recall_mode": "text"}),
    ("mamba", "text", {}, {"recall_mode": "text"}),
]


@pytest.mark.parametrize(("kind", "rope", "shape", "changes"), ALONE)
@given(seed=st.integers(0, 1000), lengths=st.lists(st.sampled_from([64, 192, 320, 448]), min_size=2, max_size=6))
@example(seed=2, lengths=[448, 320, 192, 64])
@example(seed=3, lengths=[64, 192])
@examples(8)
def test_an_answer_does_not_depend_on_hidden_text(
    kind: str, rope: str, shape: dict[str, Any], changes: dict[str, Any], seed: int, lengths: list[int]
) -> None:
    """Two memories differ in the hidden text alone. Logits, answer and what came back are the same."""
    model = tiny_text_model(kind) if rope == "text" else tiny_model(kind, rope, **shape)
    found: list[Any] = []
    for variant in (0, 1):
        with MemoryModel(model, byte_tokenizer(), None, changed(LONG, **changes)) as mm:
            for number, length in enumerate(lengths):
                text = random_text(length, seed=seed + number)
                source = "ann" if (seed + number) % 2 else "bob"
                mm.read(with_pages_shuffled(text, 7) if variant and source == "bob" else text, source=source)
            recorder = Recorder()
            how = {"max_new_tokens": 6, "remember": False, "where": Where(source="ann")}
            answer = mm.generate(
                random_text(40, seed=seed + 1), logits_processor=LogitsProcessorList([recorder]), **how
            )
            seen = [(one.span, one.text, one.score) for one in answer.recalled]
            found.append((answer.token_ids, seen, torch.stack(recorder.rows)))
    assert found[0][:2] == found[1][:2]
    assert (found[0][2] - found[1][2]).abs().max() <= TOLERANCE


def restored_in(mm: MemoryModel, since: int = 0) -> list[tuple[int, int]]:
    """Spans that came back, by the trace."""
    events = [event for event in mm.trace()[since:] if event["what"] == "restore"]
    return [(part["begin"], part["end"]) for event in events for part in event["restored"]]


def of_source(mm: MemoryModel, source: str) -> set[int]:
    return {token for block in mm.memory.blocks(source=source) for token in range(*block.span)}


def two_sources(mm: MemoryModel, texts: int = 6) -> None:
    for number in range(texts):
        source = "ann" if number % 2 else "bob"
        day = DAY if source == "bob" else DAY + datetime.timedelta(days=1)
        mm.read(random_text(300, seed=number), source=source, happened=day)


def test_pages_that_are_named_pass_the_filter_too() -> None:
    with opened("llama", "default") as mm:
        two_sources(mm)
        pages = [page for page in mm.memory.core.blocks.pages() if page.end < mm.frame.os.rolling[0]]
        named = [pages[-8:], mm.recall(random_text(40, seed=3))]
        for recall in named:
            since = len(mm.trace())
            mm.generate("who?", 2, recall=recall, remember=False, where=Where(source="ann"))
            back = {token for span in restored_in(mm, since) for token in range(*span)}
            assert back
            assert back <= of_source(mm, "ann")
        since = len(mm.trace())
        mm.generate("who?", 2, recall=pages[-8:], remember=False)
        assert {token for span in restored_in(mm, since) for token in range(*span)} & of_source(mm, "bob")


@pytest.mark.parametrize(
    "where",
    [Where(source="ann"), Where(happened_after=DAY + datetime.timedelta(hours=1)), Where(source="ann", role="read")],
)
@pytest.mark.parametrize("policy", ["recent", "periodic", "signal"])
def test_what_comes_back_during_an_answer_passes(policy: str, where: Where) -> None:
    changes = {"policy": policy, "recent_every": 3, "periodic_every": 3, "protect_tokens": 1, "recent_blocks": 3}
    with opened("llama", "default", **changes) as mm:
        two_sources(mm)
        since = len(mm.trace())
        for number, _ in enumerate(mm.stream(random_text(40, seed=4), 12, remember=False, where=where)):
            if policy == "signal" and number % 4 == 1:
                mm.signal("retrieve")
        back = {token for span in restored_in(mm, since) for token in range(*span)}
        assert back
        assert back <= of_source(mm, "ann")
        assert all(one.source == "ann" for one in mm.last_recalled)


@pytest.mark.parametrize(("kind", "rope"), KINDS)
def test_a_search_reads_its_question_behind_what_passes(kind: str, rope: str) -> None:
    with opened(kind, rope, index=("mean_pool", "lexical")) as mm:
        told = [one for number, own in enumerate(MIXED) for one in tell(mm, own, number)]
        hidden = set().union(*(one.values for one in told if one.source != "ann"))
        hidden -= set().union(*(one.values for one in told if one.source == "ann"))
        for where, there in ((Where(source="ann"), False), (Where(), True)):
            with seen_values() as seen:
                mm.recall("where was it?", where=where)
            assert bool(seen.attended & (hidden - seen.written)) == there


def test_blocks_that_are_offered_as_detail_tokens_pass() -> None:
    class OffersAll:
        needs = Needs()

        def retrieve(self, question: Any, hidden: Any) -> PartFindings:
            core = mm.memory.core
            pages = [core.blocks.pages_of(0, *block.span)[0] for block in mm.memory.blocks()[2:6]]
            return PartFindings(offers=[Offer(-0.5, page, ("all",), as_details=True) for page in pages])

    config = changed(LONG, recall_mode="both", parts=(Writer(), OffersAll()))
    with MemoryModel(tiny_model(), byte_tokenizer(), None, config, pack=None) as mm:
        two_sources(mm)
        for where in (Where(source="ann"), Where(happened_after=DAY + datetime.timedelta(hours=1))):
            details = [one for one in mm.recall(random_text(40, seed=3), where=where) if one.as_details]
            assert details
            assert {one.source for one in details} == {"ann"}


@pytest.mark.parametrize(("kind", "rope"), KINDS)
def test_forgotten_text_is_hidden_from_a_filtered_question(kind: str, rope: str) -> None:
    logits = []
    for word in ("figs", "pear"):
        with opened(kind, rope, recall_mode="text") as mm:
            mm.read("It begins here and so on.", source="ann")
            mm.read(f"Bob eats {word} and no other.", source="bob")
            mm.read("It ends here and so on.", source="ann")
            assert mm.memory.forget(source="bob") > 0
            logits.append(narrowed_logits(mm, "what is it?", Where(before=time.time() + 1)))
    assert torch.equal(*logits)


@pytest.mark.parametrize(("kind", "rope"), KINDS)
def test_a_turn_stays_where_it_passes(kind: str, rope: str) -> None:
    with opened(kind, rope) as mm:
        mm.read(random_text(200), source="book")
        mm.generate("Remember the word plum.", 6)
        everything = narrowed_logits(mm, "what word?", Where())
        for where in (Where(role=("read", "asked", "said")), Where(said_as_read=True), Where(before=time.time() + 1)):
            assert torch.equal(narrowed_logits(mm, "what word?", where), everything)
        hidden = [Where(source="book"), Where(role="read"), Where(role=("asked", "said")), Where(role=("read", "said"))]
        for where in hidden:
            assert (narrowed_logits(mm, "what word?", where) - everything).abs().max() > 100 * TOLERANCE
        assert torch.equal(narrowed_logits(mm, "what word?", Where()), everything)


@pytest.mark.parametrize(("kind", "rope"), [*KINDS, ("gpt2", "text")])
def test_a_filtered_question_leaves_no_trace_in_later_ones(
    kind: str, rope: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default index, whose heads the first question looks for."""
    changes = {"recall_mode": "text"} if rope == "text" else {"index": ("heads", "lexical")}
    answers = []
    for filtered in (True, False):
        monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / str(filtered)))
        with opened(kind, rope, **changes) as mm:
            two_sources(mm, texts=14)
            if filtered:
                for where in (Where(source="ann"), Where(source="nobody")):
                    mm.generate(random_text(300, seed=3), 20, remember=False, where=where)
                    mm.recall("where?", where=where)
            asked = [mm.generate(random_text(40, seed=3), 8, remember=False), mm.recall("where?")]
            answers.append([*asked, mm.profile, next_logits(mm, "and so?")])
            assert (mm.profile is None) == (rope == "text")
    assert answers[0][:3] == answers[1][:3]
    assert torch.equal(answers[0][3], answers[1][3])


@pytest.mark.parametrize("quotes", [0, 1])
def test_a_filtered_question_is_remembered_as_any_other(quotes: int) -> None:
    with opened("llama", "default", quotes=quotes) as mm:
        two_sources(mm)
        end = mm.stream_tokens
        answer = mm.generate("what was it?", 6, where=Where(source="ann"))
        blocks = [(block.role, block.span) for block in mm.memory.blocks() if block.span[0] >= end]
        assert blocks == [("asked", (end, end + 12)), ("said", (end + 12, end + 12 + answer.tokens))]
        assert not mm.frame.stream.visible
        assert mm.frame.cache.hidden is None
        pieces = "".join(mm.stream("what was it?", 6, remember=False, where=Where(source="ann")))
        assert pieces == mm.generate("what was it?", 6, remember=False, where=Where(source="ann")).text


def test_a_read_only_memory_hides_what_it_does_not_store(tmp_path: Any) -> None:
    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", LONG) as mm:
        mm.read(random_text(200), source="ann")
        before = narrowed_logits(mm, "and?", Where(source="ann"))
    with (
        everlong.Memory.open(tmp_path / "m", read_only=True) as memory,
        MemoryModel(tiny_model(), byte_tokenizer(), memory, LONG) as mm,
    ):
        mm.generate("Remember the word plum.", 6)
        assert (
            narrowed_logits(mm, "and?", Where(source="ann")) - before
        ).abs().max() > TOLERANCE  # it stands further on
        with seen_values() as hidden:
            mm.frame.extend(mm.encode("0123"), "prompt")
        with mm.frame.branch(), seen_values() as seen:
            mm.frame.narrow(Where(source="ann"))
            mm.frame.extend(mm.encode("and?"), "prompt")
        assert not seen.attended & (hidden.written - seen.written)


def test_the_frame_is_narrowed_in_a_branch_alone() -> None:
    with opened("llama", "default") as mm:
        mm.read(random_text(100), source="ann")
        length = mm.frame.cache.length
        mm.generate("who?", 2, remember=False, where=Where(source="bob"))
        assert mm.frame.cache.length == length
        with pytest.raises(everlong.errors.EverlongError, match=r"frame\.branch"):
            mm.frame.narrow(Where(source="bob"))
        mm.frame.narrow(Where())

"""The Time -> Tag tree: against a plain model, in a memory that is opened again, and what a question narrows by."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from typer.testing import CliRunner

import everlong
import everlong._core as _core
from everlong import Memory, MemoryConfig, MemoryModel, SearchConfig, Where
from everlong.cli.app import app
from everlong.memory.origins import happened_tag, key_tag
from everlong.retrieval.query_filters import filters_of, rarity_of
from everlong.retrieval.query_times import times_of
from everlong.text.keyphrases import Keyphrases, phrases_of
from support import TINY_MEMORY, byte_tokenizer, changed, tiny_model
from support.examples import examples

DAY = 86_400.0
TAGS = ("a", "b", "c", "d")
Plain = dict[int, tuple[float, int, frozenset[str]]]


def plainly(blocks: Plain, times: Sequence[tuple[float, float]], tags: Sequence[str]) -> tuple[str, list[int]]:
    """What is left where `most` cuts nothing."""
    timely = {id for id, (time, _, _) in blocks.items() if any(since <= time < before for since, before in times)}
    if not times:
        timely = set(blocks)
    wanted = set(tags)
    if not times and not wanted:
        return "nothing", []
    steps = [
        ("times_and_all_tags", {id for id in timely if wanted <= blocks[id][2]}),
        ("times_and_some_tags", {id for id in timely if wanted & blocks[id][2]}),
        ("times", timely if times else set()),
        ("tags", {id for id in blocks if wanted & blocks[id][2]}),
    ]
    for by, left in steps:
        if left:
            return by, sorted(left)
    return "nothing", []


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = _core.TagTree()
        self.blocks: Plain = {}
        self.newest = 0

    @rule(
        gap=st.integers(1, 3),
        time=st.floats(-1000 * DAY, 1000 * DAY),
        session=st.integers(0, 2),
        tags=st.lists(st.sampled_from(TAGS), max_size=4),
    )
    def add(self, gap: int, time: float, session: int, tags: list[str]) -> None:
        self.newest += gap
        self.tree.add(self.newest, time, session, tags)
        self.blocks[self.newest] = (time, session, frozenset(tags))

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        id = data.draw(st.integers(1, max(1, self.newest)))
        _, _, tags = self.blocks.pop(id, (0.0, 0, frozenset()))
        self.tree.forget(id, sorted(tags))

    @rule(
        times=st.lists(st.tuples(st.floats(-1000 * DAY, 1000 * DAY), st.floats(-10 * DAY, 600 * DAY)), max_size=2),
        tags=st.lists(st.sampled_from((*TAGS, "nobody's")), max_size=3),
    )
    def narrow(self, times: list[tuple[float, float]], tags: list[str]) -> None:
        ranges = [(since, since + length) for since, length in times]
        by, ids = self.tree.narrow(ranges, tags)
        assert (by, ids.tolist()) == plainly(self.blocks, ranges, tags)

    @invariant()
    def counts(self) -> None:
        assert len(self.tree) == len(self.blocks)
        for tag in TAGS:
            assert self.tree.blocks_with(tag) == sum(tag in tags for _, _, tags in self.blocks.values())
        days: dict[tuple[Any, ...], int] = {}
        for time, session, _ in self.blocks.values():
            date = datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(time / DAY))
            key = (date.year, date.month, date.day, session)
            days[key] = days.get(key, 0) + 1
        assert [(*key, count) for key, count in sorted(days.items())] == self.tree.buckets()


TestTree = TreeMachine.TestCase
TestTree.settings = examples(40, stateful_step_count=40)


@given(most=st.integers(1, 30))
@examples(20)
def test_of_too_many_those_with_the_rarest_tags_stay(most: int) -> None:
    tree = _core.TagTree()
    for id in range(1, 41):
        tree.add(id, id * DAY, 0, ["common", *(["rare"] if id % 10 == 0 else [])])
    by, ids = tree.narrow([], ["common", "rare"], most)
    assert by == "times_and_all_tags"
    assert ids.tolist() == [10, 20, 30, 40][-min(most, 4) :]
    _, ids = tree.narrow([(0, 100 * DAY)], ["common", "nobody's"], most)
    assert ids.tolist() == list(range(41 - most, 41))


def test_ids_ascend() -> None:
    tree = _core.TagTree()
    tree.add(5, 0, 0, [])
    with pytest.raises(ValueError, match="above 5"):
        tree.add(5, 0, 0, [])
    with pytest.raises(ValueError, match="at least 1"):
        tree.narrow([], ["a"], 0)


def test_keyphrases_are_what_is_frequent_here_and_rare_elsewhere() -> None:
    rarity = {"the": 0.1, "miller": 3.0, "wheel": 2.0, "anna": 2.5, "brook": 2.5, "and": 0.2, "saw": 1.0}
    tagger = Keyphrases(lambda words: [rarity.get(word, 0.5) for word in words], count=3)
    told = tagger.tags("The miller and the wheel. The miller's wheel, and Anna Brook saw the miller. Anna Brook!")
    assert told == ["anna brook", "miller", "wheel"]
    assert tagger.tags("") == []
    assert phrases_of("Anna's Brook") == ["anna", "brook", "anna brook"]


def test_times_of_a_question_are_days_weeks_months_and_years() -> None:
    pytest.importorskip("dateparser")
    now = datetime.datetime(2026, 11, 25, 12)

    def said(question: str) -> list[tuple[datetime.datetime, datetime.datetime]]:
        return [tuple(map(datetime.datetime.fromtimestamp, one)) for one in times_of(question, now)]  # type: ignore[misc]

    day = datetime.datetime
    assert said("What did we say last week?") == [(day(2026, 11, 16), day(2026, 11, 23))]
    assert said("What happened in March?") == [(day(2026, 3, 1), day(2026, 4, 1))]
    assert said("Who came on 3 May 2024?") == [(day(2024, 5, 3), day(2024, 5, 4))]
    assert said("What did I read yesterday about ships?") == [(day(2026, 11, 24), day(2026, 11, 25))]
    assert said("Which books came out in 2023?") == [(day(2023, 1, 1), day(2024, 1, 1))]
    assert said("Who is the owner of the chest?") == []


def test_a_question_without_times_and_tags_narrows_nothing() -> None:
    assert filters_of("?", ("tags",)) is None
    assert filters_of("Who is the owner?", ()) is None


MAY, JUNE = datetime.datetime(2024, 5, 3, 12), datetime.datetime(2024, 6, 7, 12)


def remembering(folder: Path | None, **changes: Any) -> MemoryModel:
    config = changed(TINY_MEMORY, index=("lexical",), **changes)
    return MemoryModel(tiny_model("llama"), byte_tokenizer(), folder, config)


def read_two(mm: MemoryModel) -> None:
    mm.read("The harvest was poor, and Anna Brook wept. " * 12, source="may", happened=MAY)
    mm.read("The harvest was rich, and Jonas Field sang. " * 12, source="june", happened=JUNE)
    mm.read("It rained all day long on the old roof. " * 12, source="now")


def test_what_happened_when_lasts_and_is_searched_by(tmp_path: Path) -> None:
    with remembering(tmp_path / "m", tagger="keyphrases") as mm:
        read_two(mm)
    with remembering(tmp_path / "m") as mm:
        of = {block.source: block for block in mm.memory.blocks()}
        assert of["may"].happened == MAY.astimezone(datetime.UTC)
        assert of["now"].happened is None
        assert of["may"].tags == ()
        assert any("anna brook" in block.keyphrases for block in mm.memory.blocks(source="may"))
        # Asked for a month everything else is left out, whatever the words say.
        found = mm.recall("Jonas Field sang", where=Where(happened_after=MAY, happened_before=JUNE))
        assert found
        assert {recall.source for recall in found} == {"may"}
        assert mm.recall("Jonas", where=Where(happened_before=datetime.datetime(2000, 1, 1))) == ()
        assert {block.source for block in mm.memory.blocks(where=Where(happened_after=JUNE))} == {"june", "now"}
        days = [bucket[:3] for bucket in mm.memory.core.graph.tag_buckets()]
        assert (2024, 5, 3) in days
        assert mm.memory.forget(source="may") > 0
        assert (2024, 5, 3) not in [bucket[:3] for bucket in mm.memory.core.graph.tag_buckets()]
        ids = np.array(byte_tokenizer()("harvest")["input_ids"], dtype=np.int32)
        narrow = _core.Narrow([(MAY.timestamp() - DAY, MAY.timestamp() + DAY)])
        soft = mm.memory.core.search.find(token_ids=ids, kinds=["lexical"], narrow=narrow)
        assert soft.narrowed_by == "nothing"
        assert soft.groups
        hard = _core.Narrow([(MAY.timestamp() - DAY, MAY.timestamp() + DAY)], soft=False)
        assert not mm.memory.core.search.find(token_ids=ids, kinds=["lexical"], narrow=hard).groups


def test_a_question_is_narrowed_by_its_own_tags() -> None:
    with remembering(None, narrow="tags") as mm:
        mm.read("The harvest was poor, and Anna Brook wept. " * 12, source="may")
        mm.read("It rained all day long on the old roof. " * 12, source="now", tags="weather")
        question = "How was the weather of the harvest?"
        assert {recall.source for recall in mm.recall(question)} == {"now"}
        mm.config = mm.config.changed(search={"narrow": ()})
        assert "may" in {recall.source for recall in mm.recall(question)}


def test_a_question_is_narrowed_by_its_own_times() -> None:
    pytest.importorskip("dateparser")
    with remembering(None, narrow="times") as mm:
        read_two(mm)
        found = mm.recall("How was the harvest in June 2024?")
        assert found
        assert {recall.source for recall in found} == {"june"}


def test_a_text_of_another_time_is_another_text() -> None:
    with remembering(None) as mm:
        text = "The harvest was poor. " * 20
        mm.read(text, happened=MAY)
        assert mm.read(text, happened=MAY).already > 0
        assert mm.read(text, happened=JUNE).already == 0


def test_tags_of_the_core_are_those_of_python() -> None:
    tree_time = happened_tag(12.5)
    assert tree_time == "everlong:happened=12.5"
    assert key_tag("x") == "everlong:key=x"
    with pytest.raises(ValueError, match="everlong's own"), remembering(None) as mm:
        mm.read("text", tags=[tree_time])


def test_words_of_a_memory_are_as_rare_as_their_rarest_token() -> None:
    with remembering(None) as mm:
        read_two(mm)
        tagger = Keyphrases(rarity_of(mm.memory.core, byte_tokenizer()))
        assert len(tagger.tags("The harvest was poor, and Anna Brook wept.")) > 0
    assert everlong.MemoryConfig().archive.tagger == "none"
    with pytest.raises(ValueError, match="narrow"):
        MemoryConfig(search=SearchConfig(narrow=("dates",)))  # type: ignore[arg-type]
    assert Memory is everlong.Memory


def test_the_command_line_says_when_it_happened_and_asks_by_it(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    memory = ["-d", str(tmp_path / "m")]
    tiny = [
        "frame.tokens=512",
        "frame.sink_tokens=4",
        "frame.recalled_tokens=128",
        "frame.rolling_tokens=128",
        "frame.evict_tokens=64",
        "archive.block_tokens=128",
    ]
    settings_of = [
        word for setting in (*tiny, "search.index=lexical", "frame.chunk_tokens=32") for word in ("--set", setting)
    ]
    for day, what in (("2024-05-03", "The harvest was poor. "), ("2024-06-07", "The harvest was rich. ")):
        (tmp_path / f"{day}.txt").write_text(what * 40)
        read = ["read", str(tmp_path / f"{day}.txt"), *memory, "--happened", day, "--model", str(tmp_path / "model")]
        done = CliRunner().invoke(app, [*read, *settings_of])
        assert done.exit_code == 0, done.output
    ask = ["ask", *memory, "How was the harvest?", "--happened-after", "2024-06-01", "--json", "--max-new-tokens", "2"]
    told = CliRunner().invoke(app, [*ask, *settings_of])
    assert told.exit_code == 0, told.output
    recalled = json.loads(told.stdout)["recalled"]
    assert recalled
    assert {one["source"] for one in recalled} == {"2024-06-07"}

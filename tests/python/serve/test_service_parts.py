"""Parts of a service that need no server: stop strings, fairness, bodies, filters."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.serve.bodies import Fields, depth_of, parsed_object
from everlong.serve.conversations import digests_of
from everlong.serve.fair_queue import FairQueue
from everlong.serve.fair_semaphore import FairSemaphore
from everlong.serve.request_parsing import answer_request_of
from everlong.serve.stop_strings import StopStrings
from everlong.service_data.errors import ApiError
from everlong.service_data.limits import Limits


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_an_answer_ends_before_the_first_stop_string_however_it_is_cut(text: str, stops: list[str], data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    taken = StopStrings(stops)
    said = "".join(map(taken.more, pieces)) + taken.rest()
    # The first place where one of them is complete, and of those that end there the longest.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert taken.stopped == bool(ends)
    if not ends:
        assert said == text
    else:
        assert text.startswith(said)
        assert not any(stop in said for stop in stops)
        assert any(text[len(said) :].startswith(stop) for stop in stops)


@dataclasses.dataclass(frozen=True)
class Waiting:
    key: str
    memory: str
    number: int


def test_keys_take_turns_and_each_its_memories() -> None:
    queue: FairQueue[Waiting] = FairQueue(100, 100)
    for number in range(6):
        queue.put(Waiting("many", f"m{number % 2}", number))
    queue.put(Waiting("few", "m0", 0))
    taken = [queue.take(wait=0) for _ in range(7)]
    assert [one.key for one in taken if one is not None][:3] == ["many", "few", "many"]
    of_many = [one for one in taken if one is not None and one.key == "many"]
    assert [one.memory for one in of_many] == ["m0", "m1"] * 3
    for memory in ("m0", "m1"):
        numbers = [one.number for one in of_many if one.memory == memory]
        assert numbers == sorted(numbers)
    assert queue.take(wait=0) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=40))
def test_the_queue_loses_nobody_and_lets_nobody_wait_behind_two_turns_of_another(asked: list[tuple[str, str]]) -> None:
    queue: FairQueue[Waiting] = FairQueue(1000, 1000)
    put = [Waiting(key, memory, number) for number, (key, memory) in enumerate(asked)]
    assert all(map(queue.put, put))
    taken = []
    while (one := queue.take(wait=0)) is not None:
        taken.append(one)
    assert sorted(taken, key=lambda one: one.number) == put
    for at, one in enumerate(taken):  # between two turns of a key, every other key that waits has exactly one
        later = next((n for n in range(at + 1, len(taken)) if taken[n].key == one.key), None)
        if later is not None:
            between = [other.key for other in taken[at + 1 : later]]
            assert len(between) == len(set(between))


def test_a_full_queue_and_a_full_line_refuse() -> None:
    queue: FairQueue[Waiting] = FairQueue(3, 2)
    assert [queue.put(Waiting("a", "m", n)) for n in range(3)] == [True, True, False]
    assert queue.put(Waiting("b", "m", 0))
    assert not queue.put(Waiting("c", "m", 0))
    assert len(queue.close()) == 3
    assert not queue.put(Waiting("d", "m", 0))


def test_places_are_handed_from_key_to_key() -> None:
    shares, turns = FairSemaphore(2, 1), collections.Counter[str]()
    at_once: collections.Counter[str] = collections.Counter()

    async def use(key: str, times: int) -> None:
        for _ in range(times):
            async with shares.acquire(key):
                at_once[key] += 1
                assert at_once[key] == 1
                assert at_once.total() <= 2
                await asyncio.sleep(0)
                at_once[key] -= 1
                turns[key] += 1

    async def load() -> None:
        greedy = [asyncio.create_task(use("greedy", 1000)) for _ in range(30)]
        more = [asyncio.create_task(use("more", 1000)) for _ in range(10)]
        await asyncio.sleep(0)
        cut = asyncio.create_task(use("cut", 1000))
        await asyncio.sleep(0)
        cut.cancel()
        await use("few", 50)
        assert turns["greedy"] < 300  # of 30,000
        for task in (*greedy, *more):
            task.cancel()
        await asyncio.gather(*greedy, *more, cut, return_exceptions=True)
        assert shares._active.total() == len(shares._waiting) == 0
        async with shares.acquire("after"), shares.acquire("those"):
            pass

    asyncio.run(load())


def test_who_was_taken_waits_in_front_again_and_who_waits_may_go() -> None:
    queue: FairQueue[Waiting] = FairQueue(2, 1)
    first, second = Waiting("a", "m", 0), Waiting("a", "m", 1)
    assert queue.put(first)
    assert not queue.has_capacity("a")
    assert not queue.put(second)
    assert queue.put(second, anyway=True)
    taken = queue.take(wait=0)
    assert taken is first
    assert queue.put(first, anyway=True, first=True)
    assert queue.remove(second)
    assert not queue.remove(second)
    assert [queue.take(wait=0), queue.take(wait=0)] == [first, None]
    assert (len(queue), queue.has_capacity("a")) == (0, True)


def test_who_waits_is_woken() -> None:
    queue: FairQueue[Waiting] = FairQueue(3, 3)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(queue.take(wait=60)))
    thread.start()
    queue.put(Waiting("a", "m", 0))
    thread.join(30)
    assert found == [Waiting("a", "m", 0)]


@given(
    st.recursive(
        st.none() | st.text('[]{}"\\ab', max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3),
    )
)
def test_depth_is_counted_outside_of_strings(value: Any) -> None:
    def depth(one: Any) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert depth_of(json.dumps(value).encode()) == depth(value)
    assert depth_of(json.dumps(value, ensure_ascii=False, indent=1).encode()) == depth(value)


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b'{"a": NaN}', b'{"a"', b"\xff", b'{"a": ' + b"[" * 100_000])
def test_bodies_that_are_no_objects_are_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parsed_object(body, 32)
    assert refused.value.status == 400


@pytest.mark.parametrize("value", [True, "1", float("nan"), 2.5, [1], {}])
def test_a_number_is_a_number(value: Any) -> None:
    with pytest.raises(ApiError):
        Fields({"n": value}).number("n", 0, 2)


def test_conversations_of_keys_and_memories_have_digests_of_their_own() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    digests = [digests_of("k", "m", turns), digests_of("l", "m", turns), digests_of("k", "n", turns)]
    digests.append(digests_of("k", "m", [{"role": "user", "content": "a]"}, turns[1]]))
    digests.append(digests_of("k", "m", [{"role": "system", "content": "a"}, turns[1]]))
    assert len({digest for of in digests for digest in of}) == 2 * len(digests)
    assert digests_of("k", "m", turns[:1]) == digests[0][:1]


@pytest.mark.parametrize("field", ["source", "tags"])
def test_a_filter_of_no_names_is_refused_and_one_that_is_not_given_leaves_nothing_out(field: str) -> None:
    def asked(told: dict[str, Any]) -> Any:
        return answer_request_of(
            Fields({"everlong": told}), "m", [{"role": "user", "content": "Who?"}], 1, Limits()
        ).where

    with pytest.raises(ApiError) as refused:
        asked({field: []})
    assert (refused.value.code, refused.value.param) == ("invalid_value", f"everlong.{field}")
    assert not asked({}).chooses
    assert not asked({field: None}).chooses
    assert getattr(asked({field: ["a", "b"]}), field) == ("a", "b")
    assert Fields({field: []}).texts(field, 9, empty=True) == ()  # of what is written: it has no tags

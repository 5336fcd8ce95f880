"""Threads that share a memory wait for their turns, and stops cut an answer wherever they stand."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.errors import MemoryBusyError
from everlong.integrations.exclusive import before_stops, exclusive, exclusive_calls, exclusive_pieces
from support.chatting import FACTS, chat_memory
from support.examples import examples


def test_calls_of_many_threads_are_made_one_after_the_other() -> None:
    with chat_memory() as mm, concurrent.futures.ThreadPoolExecutor(6) as pool:
        alone = [mm.find(fact, k=2) for fact in FACTS.values()]
        asked = [pool.submit(exclusive, lambda fact=fact: mm.find(fact, k=2)) for fact in list(FACTS.values()) * 4]
        assert [one.result() for one in asked] == alone * 4


def test_a_call_waits_for_a_streamed_answer_and_gives_up() -> None:
    with chat_memory() as mm:
        streamed = exclusive_pieces(lambda: mm.stream("pass key", max_new_tokens=8, chat=False, remember=False))
        next(streamed)
        refused: list[BaseException] = []

        def call() -> None:
            try:
                exclusive(lambda: mm.find("garden"), patience=0.02)
            except MemoryBusyError as error:
                refused.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert len(refused) == 1
        list(streamed)
        assert exclusive(lambda: mm.find("garden shed"))


def test_an_answer_that_another_call_of_its_thread_ends_is_not_taken_for_a_whole_one() -> None:
    with chat_memory() as mm:
        streamed = exclusive_pieces(lambda: mm.stream("pass key", max_new_tokens=8, chat=False, remember=False))
        next(streamed)
        mm.find("garden")
        with pytest.raises(MemoryBusyError, match="ended it"):
            next(streamed)


def test_a_call_from_within_another_one_does_not_wait_for_it() -> None:
    refused = []

    def progress(read: int, total: int | None) -> None:
        for wait in (lambda: exclusive(lambda: mm.find("garden")), exclusive_calls(mm).__enter__):
            with pytest.raises(MemoryBusyError):
                wait()
            refused.append(read)

    with chat_memory() as mm, pytest.MonkeyPatch.context() as patched:
        patched.setattr("everlong.integrations.exclusive.time.sleep", lambda seconds: pytest.fail("it waits"))
        mm.read("The shed stands behind the garden.", source="more", progress=progress)
        with exclusive_calls(mm):
            mm.read("The gate is green.", source="more", progress=progress)
    assert len(refused) >= 4


@examples(40)
@given(
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
)
def test_text_ends_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    places = [at for stop in stops if (at := whole.find(stop)) >= 0]
    assert "".join(before_stops(pieces, stops)) == whole[: min(places, default=len(whole))]


def test_nothing_is_said_that_a_stop_may_begin_with() -> None:
    said = ""
    for piece in before_stops(["one <", "st", "op> two"], ["<stop>"]):
        said += piece
        assert "<" not in said
    assert said == "one "

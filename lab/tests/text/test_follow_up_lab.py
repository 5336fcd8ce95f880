"""A question that goes on from the turn before is searched by what was said there, too; others are not."""

from __future__ import annotations

from everlong.text.follow_up import goes_on
from everlong_lab.corpora.follow_ups import conversations


def test_conversations_go_on_and_their_like_stand_alone() -> None:
    made = conversations(20)
    assert all(goes_on(one.second) and not goes_on(one.alone) for one in made)

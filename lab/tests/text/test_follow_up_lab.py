"""A question that goes on from the turn before is searched by what was said there, too; others are not."""

from __future__ import annotations

from everlong.text.follow_up import is_follow_up
from everlong_lab.corpora.follow_ups import conversations


def test_conversations_go_on_and_their_like_stand_alone() -> None:
    made = conversations(20)
    assert all(is_follow_up(one.second) and not is_follow_up(one.alone) for one in made)

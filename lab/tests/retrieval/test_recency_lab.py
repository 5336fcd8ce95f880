"""What was told last stands first, what is about another thing does not, and passages that disagree are less sure."""

from __future__ import annotations

from everlong_lab.corpora.superseded import superseded_facts


def test_superseded_facts_have_their_kinds() -> None:
    facts = superseded_facts(40)
    assert [sum(fact.standing == kind for fact in facts) for kind in ("superseded", "two things", "alone")] == [
        20,
        10,
        10,
    ]
    assert facts == superseded_facts(40)
    for fact in facts:
        assert any(fact.answer in one for one in fact.statements)
        assert fact.standing != "superseded" or fact.answer in fact.statements[1]

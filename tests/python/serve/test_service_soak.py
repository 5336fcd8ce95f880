"""A minute of twenty callers, with kill -9 between: nothing acknowledged is lost, nothing forgotten is seen."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from support import byte_tokenizer
from support.soak.oracle import Oracle, Text
from support.soak.run import soaked
from support.soak.words import secret, secrets_in


def sent(oracle: Oracle, memory: str, source: str = "notes") -> Text:
    """Return a text that was acknowledged and read."""
    text = oracle.send(Text(oracle.memories[memory], source, secret(Random(source + memory)), "handle"))
    oracle.accepted(text, settled=True)
    return text


@pytest.fixture
def oracle() -> Oracle:
    found = Oracle(["a", "b"])
    for memory in found.memories.values():
        memory.made += 2
        found.made(memory, ())
    return found


def test_secrets_are_found_as_text_and_as_token_ids() -> None:
    one, other = secret(Random(1)), secret(Random(2))
    ids = np.asarray(byte_tokenizer()(f"h {other}. ")["input_ids"], np.int32).tobytes()
    assert secrets_in(b"\0" + one.encode() + b"\0\1\2" + ids) == {one, other}
    assert secrets_in(one[:-1].encode() + b" " + ids[4 : 4 * len(other)]) == set()


def test_the_oracle_tells_what_may_not_be_seen(oracle: Oracle) -> None:
    text = sent(oracle, "a")
    data, begun = text.secret.encode(), time.monotonic()
    oracle.saw(data, begun, ["a"], "search", b"")
    assert not oracle.faults
    oracle.saw(data, begun, ["b"], "search of b", b"")
    assert set(oracle.fault_kinds) == {"another's text"}
    oracle.left(oracle.leave(text.memory, "notes", "a forget"), True)
    oracle.saw(data, begun, ["a"], "a search from before", b"")
    assert set(oracle.fault_kinds) == {"another's text"}
    oracle.saw(data, time.monotonic(), ["a"], "a later search", b"")
    oracle.left_on_disk(data, "a file")
    assert set(oracle.fault_kinds) == {"another's text", "forgotten text", "forgotten bytes"}


def test_the_oracle_tells_what_is_lost_and_lets_pass_what_may_be(oracle: Oracle) -> None:
    kept, unknown = sent(oracle, "a", "kept"), sent(oracle, "a", "unknown")
    oracle.left(oracle.leave(unknown.memory, "unknown", "a forget that was cut"), None)
    oracle.missing(b"", [unknown], "an export")
    assert not oracle.faults
    oracle.missing(b"", [kept, unknown], "an export")
    assert oracle.fault_kinds == {"lost": 1}
    # A text whose request overlapped with a removal is of the old memory, or of the new one.
    late = oracle.send(Text(kept.memory, "late", secret(Random(3)), "handle"))
    oracle.left(oracle.leave(kept.memory, None, "a removal"), True)
    oracle.accepted(late, settled=True)
    oracle.missing(b"", [kept, unknown, late], "an export")
    oracle.saw(late.secret.encode(), time.monotonic(), ["a"], "a search", b"")
    assert oracle.fault_kinds == {"lost": 1}
    oracle.saw(kept.secret.encode(), time.monotonic(), ["a"], "a search", b"")
    assert oracle.fault_kinds == {"lost": 1, "forgotten text": 1}


@pytest.mark.slow
def test_a_minute_of_everything_with_kills_between(tmp_path: Path) -> None:
    report = soaked(tmp_path / "soak", seed=1, seconds=60)
    told = "\n".join(report["faults"])
    assert not report["fault_kinds"], f"{report['fault_kinds']}\n{told}"
    assert report["kills"] >= 1
    assert report["ends"] >= 1
    assert min(report[name] for name in ("acknowledged", "forgotten")) >= 20

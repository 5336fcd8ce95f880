"""Settings of a memory, written as text."""

import dataclasses

import pytest

from everlong import MemoryConfig


def test_settings_written_as_text() -> None:
    written = [
        "groups=2",
        "recall_mode=text",
        "decisive=1e9",
        "index=heads,lexical",
        "host_bytes=1000",
        "page_tokens=128",
        "heads_keys=int8",
    ]
    expected = dataclasses.replace(
        MemoryConfig(),
        groups=2,
        recall_mode="text",
        decisive=1e9,
        index=("heads", "lexical"),
        host_bytes=1000,
        page_tokens=128,
        heads_keys="int8",
    )
    assert MemoryConfig().with_settings(written) == expected
    assert expected.with_settings(["host_bytes=none"]).host_bytes is None
    assert MemoryConfig().with_settings(["index=lexical"]).index == ("lexical",)
    assert MemoryConfig().with_settings(["policy=recent"]).policies == {"recent"}
    assert MemoryConfig().with_settings(["policy=prompt,signal"]).policies == {"prompt", "signal"}
    assert MemoryConfig().with_settings([]) == MemoryConfig()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("groups", "expected name=value"),
        ("nothing=1", "expected name=value with a name of frame_tokens"),
        ("groups=two", "a whole number"),
        ("decisive=much", "a number"),
        ("recall_mode=both", "one of kv, text, auto"),
        ("index=heads,words", "one of heads"),
        ("page_tokens=65", "one of 64, 128"),
        ("heads_keys=int4", "one of bf16, int8, e4m3"),
        ("policy=never", "one of prompt"),
    ],
)
def test_a_setting_that_there_is_not_is_said(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryConfig().with_settings([setting])

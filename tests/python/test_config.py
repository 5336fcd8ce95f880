"""Settings of a memory, written as text."""

import dataclasses
import json

import numpy as np
import pytest

from everlong import ArchiveConfig, MemoryConfig, MemoryModel, SearchConfig, UnsupportedModelError
from everlong.config import LEAST_WINDOW
from tiny_models import byte_tokenizer, tiny_model


def test_windows_that_are_too_short_for_a_memory_are_refused_with_the_least() -> None:
    for window in (LEAST_WINDOW, 300, 4095):
        fitting = MemoryConfig.fitting(window)
        with MemoryModel(tiny_model(max_position_embeddings=window), byte_tokenizer()) as mm:
            assert mm.config == fitting
            mm.read("some words " * 100)
            assert mm.generate("which words?", max_new_tokens=2).tokens == 2
    with pytest.raises(UnsupportedModelError, match=f"255 tokens is too short for a memory: {LEAST_WINDOW}"):
        MemoryModel(tiny_model(max_position_embeddings=LEAST_WINDOW - 1), byte_tokenizer())


def test_settings_written_as_text() -> None:
    written = [
        "groups=2",
        "recall_mode=text",
        "decisive=1e9",
        "index=heads,lexical",
        "host_bytes=1000",
        "page_tokens=128",
        "heads_keys=int8",
        "heads_device_bytes=0",
        "meaning_device_bytes=0",
    ]
    expected = MemoryConfig().changed(
        archive={"host_bytes": 1000, "page_tokens": 128},
        search={
            "groups": 2,
            "decisive": 1e9,
            "index": ("heads", "lexical"),
            "heads_keys": "int8",
            "heads_device_bytes": 0,
        },
        answer={"recall_mode": "text"},
        meaning_device_bytes=0,
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
        ("recall_mode=all", "one of kv, text, auto"),
        ("recall_mode=both", "details is 0, expected at least 1"),
        ("details=-1", "details is -1, expected at least 0"),
        ("index=heads,words", "one of heads"),
        ("page_tokens=65", "one of 64, 128"),
        ("heads_keys=int4", "one of bf16, int8, e4m3"),
        ("policy=never", "one of prompt"),
    ],
)
def test_a_setting_that_there_is_not_is_said(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryConfig().with_settings([setting])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("recall_mode", "txt", "recall_mode is 'txt', expected one of kv, text, auto"),
        ("order", "recency", "expected one of relevance, time"),
        ("embedding_index", "HNSW", "expected one of flat, hnsw, dnii"),
        ("codec", "fp8", "expected one of fp32, bf16, e4m3, e5m2"),
        ("page_tokens", 65, "expected one of 64, 128"),
        ("index", ("head",), "index is 'head', expected one of heads"),
        ("index", "head", "index is 'head', expected one of heads"),
        ("index", (), "index is empty, expected some of heads, lexical"),
        ("heads_keys", "int4", "heads_keys is 'int4', expected one of bf16, int8, e4m3"),
        ("policy", ("prompt", "never"), "policy is 'never', expected one of prompt"),
        ("groups", 0, "groups is 0, expected at least 1"),
        ("neighbours", -1, "neighbours is -1, expected at least 0"),
        ("chunk_tokens", 0, "chunk_tokens is 0"),
    ],
)
def test_a_value_that_there_is_not_is_said(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryConfig(**{field: value})


def test_one_part_of_an_index_needs_no_tuple() -> None:
    assert MemoryConfig(search=SearchConfig(index="lexical")) == MemoryConfig(search=SearchConfig(index=("lexical",)))
    assert MemoryConfig().with_settings(["index=lexical"]).index == ("lexical",)


class Salted:
    """Vectors of texts that another salt makes others."""

    name = "salted"

    def __init__(self, salt: float) -> None:
        self.salt = salt

    def encode(self, sentences: list[str]) -> np.ndarray:
        return np.array([[len(sentence), self.salt] for sentence in sentences])


def test_plain_values_are_those_of_the_fields() -> None:
    written = json.loads(json.dumps(MemoryConfig(search=SearchConfig(groups=2)).to_dict()))
    assert set(written) == {field.name for field in dataclasses.fields(MemoryConfig)}
    assert (written["groups"], written["index"], written["encoder"]) == (2, ["heads", "lexical", "meaning"], "minilm")


def test_plain_values_tell_encoders_apart() -> None:
    def written(salt: float) -> str:
        return json.dumps(MemoryConfig(search=SearchConfig(encoder=Salted(salt))).to_dict())

    assert "salted" in written(1)
    assert written(1) == written(1) != written(2)


def test_numbers_that_the_core_cannot_count_are_refused() -> None:
    for setting in ("groups=1000000000000", "neighbours=2147483648", "frame_tokens=99999999999999999999"):
        with pytest.raises(ValueError, match="expected at most 2,147,483,647"):
            MemoryConfig().with_settings([setting])
    with pytest.raises(ValueError, match="host_bytes is 99999999999999999999, expected at most"):
        MemoryConfig(archive=ArchiveConfig(host_bytes=99999999999999999999))

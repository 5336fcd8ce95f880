"""Settings of a memory, written as text."""

import dataclasses
import json
import re
from typing import Any, get_args

import numpy as np
import pytest

import everlong._core as _core
from everlong import (
    AnswerConfig,
    ArchiveConfig,
    FrameConfig,
    MemoryConfig,
    MemoryModel,
    SearchConfig,
    UnsupportedModelError,
    ops,
)
from everlong.config import LEAST_WINDOW
from everlong.config.settings import types_of
from everlong.parts.adapter import Adapter
from everlong.parts.encoder import Encoder
from everlong.parts.kv_writer import KvWriter
from everlong.parts.towers import Towers
from everlong.parts.trigger import Trigger
from everlong.parts.trimmer import Trimmer
from support import byte_tokenizer, tiny_model


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
        "search.groups=2",
        "answer.recall_mode=text",
        "search.decisive=1e9",
        "search.index=heads,lexical",
        "archive.host_bytes=1000",
        "archive.page_tokens=128",
        "search.heads_keys=int8",
        "search.heads_device_bytes=0",
        "towers.device_bytes=0",
        "trimmer.by=random",
    ]
    expected = MemoryConfig(
        search=SearchConfig(
            groups=2, decisive=1e9, index=("heads", "lexical"), heads_keys="int8", heads_device_bytes=0
        ),
        answer=AnswerConfig(recall_mode="text"),
        archive=ArchiveConfig(host_bytes=1000, page_tokens=128),
        parts=(Encoder(), Towers(device_bytes=0), KvWriter(), Adapter(), Trimmer(by="random")),
    )
    assert MemoryConfig().with_settings(written) == expected
    assert expected.with_settings(["archive.host_bytes=none"]).archive.host_bytes is None
    assert MemoryConfig().with_settings(["search.index=lexical"]).search.index == ("lexical",)
    assert MemoryConfig().with_settings(["answer.policy=recent"]).answer.policies == {"recent"}
    assert MemoryConfig().with_settings(["answer.policy=prompt,signal"]).answer.policies == {"prompt", "signal"}
    assert MemoryConfig().with_settings([]) == MemoryConfig()
    assert MemoryConfig().with_settings(["parts=none"]).parts == ()
    named = MemoryConfig().with_settings(["parts=towers,trimmer", "towers.device_bytes=1"])
    assert named.parts == (Towers(device_bytes=1), Trimmer())
    # Settings that stand together only with each other are taken together, in whatever order.
    both = MemoryConfig().with_settings(["answer.recall_mode=both", "writer.tokens=8"])
    assert (both.answer.recall_mode, both.detail_tokens) == ("both", 8)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("search.groups", "expected group.name=value"),
        ("groups=2", "expected group.name=value .* it is search.groups"),
        ("frame_tokens=2", "expected group.name=value .* it is frame.tokens"),
        ("nothing.here=1", "there is no part 'nothing': there are towers, "),
        ("parts=towers,nothing", "there is no part 'nothing'"),
        ("search.nothing=1", "search has no setting 'nothing': there are index, encoder"),
        ("search.grups=1", "search has no setting 'grups': is it 'groups'"),
        ("frame.groups=1", "frame has no setting 'groups': it is search.groups"),
        ("trimmer.groups=1", "trimmer has no setting 'groups': it is search.groups"),
        ("search.groups=two", "a whole number"),
        ("search.decisive=much", "a number"),
        ("answer.recall_mode=all", "one of kv, text, auto"),
        ("answer.recall_mode=both", "expected a part that writes them"),
        ("writer.tokens=-1", "tokens is -1, expected at least 1"),
        ("search.index=heads,nouns", "one of heads"),
        ("archive.page_tokens=65", "one of 64, 128"),
        ("search.heads_keys=int4", "one of bf16, int8, e4m3"),
        ("answer.policy=never", "one of prompt"),
        ("trimmer.by=newest", "one of learned, random, key_norm"),
        ("trigger.mean_tokens=9999", "trigger.mean_tokens is 9999, expected more than archive.least_tokens"),
    ],
)
def test_a_setting_that_there_is_not_is_said(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryConfig().with_settings([setting])


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        (MemoryConfig, "groups", "MemoryConfig has no setting 'groups': it is search.groups"),
        (MemoryConfig, "frame_tokens", "MemoryConfig has no setting 'frame_tokens': it is frame.tokens"),
        (MemoryConfig, "nothing", "MemoryConfig has no setting 'nothing': there are frame, archive, search, answer"),
        (FrameConfig, "groups", "FrameConfig has no setting 'groups': it is search.groups"),
        (SearchConfig, "mean_tokens", "SearchConfig has no setting 'mean_tokens': it is trigger.mean_tokens"),
        (Trimmer, "codec", "Trimmer has no setting 'codec': it is archive.codec"),
        (Trigger, "codec", "Trigger has no setting 'codec': it is archive.codec"),
        (AnswerConfig, "quote", "AnswerConfig has no setting 'quote': is it 'quotes'?"),
    ],
)
def test_a_setting_of_another_group_is_refused_with_the_place_where_it_lives(
    group: type[Any], name: str, message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        group(**{name: 1})


@pytest.mark.parametrize(
    ("group", "field", "value", "message"),
    [
        (AnswerConfig, "recall_mode", "txt", "recall_mode is 'txt', expected one of kv, text, auto"),
        (AnswerConfig, "order", "recency", "expected one of relevance, time"),
        (SearchConfig, "embedding_index", "HNSW", "expected one of flat, hnsw, dnii"),
        (ArchiveConfig, "codec", "fp8", "expected one of fp32, bf16, e4m3, e5m2"),
        (ArchiveConfig, "page_tokens", 65, "expected one of 64, 128"),
        (SearchConfig, "index", ("head",), "index is 'head', expected one of heads"),
        (SearchConfig, "index", "head", "index is 'head', expected one of heads"),
        (SearchConfig, "index", (), "index is empty, expected some of heads, lexical"),
        (SearchConfig, "heads_keys", "int4", "heads_keys is 'int4', expected one of bf16, int8, e4m3"),
        (AnswerConfig, "policy", ("prompt", "never"), "policy is 'never', expected one of prompt"),
        (SearchConfig, "groups", 0, "groups is 0, expected at least 1"),
        (SearchConfig, "neighbours", -1, "neighbours is -1, expected at least 0"),
        (FrameConfig, "chunk_tokens", 0, "chunk_tokens is 0"),
        (MemoryConfig, "parts", (Trimmer(), Trimmer(by="random")), "trimmer, trimmer: one of them is there twice"),
    ],
)
def test_a_value_that_there_is_not_is_said(group: type[Any], field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group(**{field: value})


def test_codecs_and_index_parts_are_those_of_the_core() -> None:
    archive, search = types_of(ArchiveConfig), types_of(SearchConfig)
    assert get_args(archive["codec"]) == ops.CODECS == tuple(codec.name for codec in _core.codecs())
    kinds = tuple(kind.name for kind in _core.index_kinds())
    assert get_args(get_args(search["index"])[0]) == kinds
    assert {MemoryConfig().archive.codec} < set(ops.CODECS)
    assert set(MemoryConfig().search.index) < set(kinds)


def test_at_the_top_there_are_few_names() -> None:
    assert len(dataclasses.fields(MemoryConfig)) <= 12


def test_one_part_of_an_index_needs_no_tuple() -> None:
    assert SearchConfig(index="lexical") == SearchConfig(index=("lexical",))
    assert MemoryConfig().with_settings(["search.index=lexical"]).search.index == ("lexical",)


def test_a_part_takes_the_place_of_the_one_of_its_name() -> None:
    config = MemoryConfig().with_part(Trimmer())
    assert config.parts[-1] == Trimmer()
    assert config.with_part(Trimmer(by="random")).parts == (*MemoryConfig().parts, Trimmer(by="random"))
    assert config.with_part(Towers(device_bytes=0)).parts[1] == Towers(device_bytes=0)


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
    for group in MemoryConfig.GROUPS:
        assert set(written[group]) == {field.name for field in dataclasses.fields(getattr(MemoryConfig(), group))}
    search = written["search"]
    assert (search["groups"], search["index"], search["encoder"]) == (
        2,
        ["heads", "words", "meaning", "encoder"],
        "minilm",
    )
    assert written["parts"]["kv_writer"] == {"kept": False, "tombstones": None}


def test_plain_values_tell_encoders_apart() -> None:
    def written(salt: float) -> str:
        return json.dumps(MemoryConfig(search=SearchConfig(encoder=Salted(salt))).to_dict())

    assert "salted" in written(1)
    assert written(1) == written(1) != written(2)


def test_numbers_that_the_core_cannot_count_are_refused() -> None:
    for setting in (
        "search.groups=1000000000000",
        "search.neighbours=2147483648",
        "frame.tokens=99999999999999999999",
    ):
        with pytest.raises(ValueError, match="expected at most 2,147,483,647"):
            MemoryConfig().with_settings([setting])
    with pytest.raises(ValueError, match="host_bytes is 99999999999999999999, expected at most"):
        MemoryConfig(archive=ArchiveConfig(host_bytes=99999999999999999999))

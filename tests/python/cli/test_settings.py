"""Settings as they are typed: files, name=value, lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlong import MemoryConfig
from everlong.cli.settings import memory_settings, parse_lengths


def test_settings_come_from_files_and_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    file.write_text(
        json.dumps(
            {
                "search": {"groups": 2, "index": ["heads", "lexical"], "decisive": 2.5},
                "archive": {"host_bytes": None},
                "parts": ["towers", "trimmer"],
                "trimmer": {"by": "random"},
            }
        )
    )
    config = MemoryConfig().with_settings(memory_settings([str(file), "answer.recall_mode=text"]))
    assert (config.search.groups, config.search.index, config.search.decisive) == (2, ("heads", "lexical"), 2.5)
    assert (config.archive.host_bytes, config.answer.recall_mode) == (None, "text")
    toml = tmp_path / "memory.toml"
    toml.write_text('search.groups = 3\n[answer]\npolicy = ["prompt", "recent"]\n')
    config = MemoryConfig().with_settings(memory_settings([str(toml)]))
    assert (config.search.groups, config.answer.policy) == (3, ("prompt", "recent"))


def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text("[1, 2]")
    with pytest.raises(ValueError, match="expected an object"):
        memory_settings([str(file)])
    with pytest.raises(FileNotFoundError):
        memory_settings([str(tmp_path / "none.json")])


def test_lengths_have_units_and_ascend() -> None:
    assert parse_lengths("128K,4k, 1M,1000") == (1_000, 4_096, 131_072, 1_048_576)
    assert parse_lengths("8192,8K") == (8_192,)
    for wrong in ("", "12G", "4K,", "-3", "1.5K"):
        with pytest.raises(ValueError, match="expected tokens such as"):
            parse_lengths(wrong)


def test_a_broken_file_of_settings_is_named(tmp_path: Path) -> None:
    for name in ("s.json", "s.toml"):
        (tmp_path / name).write_text("{groups", encoding="utf-8")
        with pytest.raises(ValueError, match=name):
            memory_settings([str(tmp_path / name)])

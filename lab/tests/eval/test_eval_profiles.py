"""What else ran on a machine decides nothing in an evaluation, and an evaluation nothing in what runs there next."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong import MemoryModel
from everlong.memory import Memory
from everlong.memory.fingerprint import Fingerprint
from everlong.retrieval import profile as profiles
from everlong_lab.eval import demo
from everlong_lab.eval.niah import NiahConfig, run_niah
from everlong_lab.eval.suite import SuiteConfig, run_suite
from support import TINY_MEMORY, WINDOW, byte_tokenizer, tiny_model

MODEL = (tiny_model(), byte_tokenizer())
MEMORY = TINY_MEMORY.changed(search={"index": ("heads", "lexical")})
HEADS = ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0))
OF_THE_MACHINE = everlong.IndexProfile(HEADS, WINDOW // 4, 0.9, 512, 12, 0)
NIAH = NiahConfig(tokens=6_000, lengths=(6_000,), facts_per_kind=1, kinds=("name",))


@pytest.fixture(name="prints")
def a_machine_that_knows_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fingerprint]:
    """It keeps what an untrained model finds in a tiny memory. Its profile is to be the same afterwards."""
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    with MemoryModel(*MODEL, None, MEMORY) as mm:
        prints = mm.searcher.prints
    profiles.save_model_profile(prints, OF_THE_MACHINE)
    with MemoryModel(*MODEL, None, MEMORY) as mm:
        assert mm.profile == OF_THE_MACHINE, "what is not evaluated begins with it"
    monkeypatch.setattr(profiles, "FEWEST_PAGES", 1)
    monkeypatch.setattr(profiles, "LEAST_RANK", 0)  # a model that nobody trained finds little
    (file,) = (tmp_path / "cache" / "profiles").iterdir()
    before = file.read_bytes()
    yield prints
    assert list(file.parent.iterdir()) == [file]
    assert file.read_bytes() == before


@pytest.fixture(name="used")
def profiles_that_memories_begin_with(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    used: list[Any] = []

    def load(*how: Any, **more: Any) -> Any:
        used.append(profiles.load_model_profile(*how, **more))
        return used[-1]

    monkeypatch.setattr("everlong.retrieval.retrieval_heads.load_model_profile", load)
    return used


def profile_of(folder: Path) -> Any:
    with Memory.open(folder, read_only=True) as memory:
        return profiles.load_profile(memory.core)


@pytest.mark.usefixtures("prints")
def test_a_suite_finds_its_own_and_keeps_it_in_its_folder(tmp_path: Path, used: list[Any]) -> None:
    out = tmp_path / "out"
    config = SuiteConfig(suites=("passkey",), lengths=(6_000,), count=1)
    run_suite(MODEL, config, ("everlong",), out=out, memory_config=MEMORY)
    assert used == [None, None]
    (file,) = (out / "profiles").iterdir()
    found = everlong.IndexProfile.from_json(file.read_text())
    assert found == profile_of(out / "6000.everlong") != OF_THE_MACHINE


@pytest.mark.usefixtures("prints")
def test_a_needle_finds_its_own_and_keeps_it_where_it_keeps_memories(tmp_path: Path, used: list[Any]) -> None:
    keep = tmp_path / "keep"
    run_niah(MODEL, NIAH, memory_config=MEMORY, keep=keep)
    assert used == [None, None]
    (file,) = (keep / "profiles").iterdir()
    found = everlong.IndexProfile.from_json(file.read_text())
    (fork,) = keep.glob("[0-9]*.everlong")
    assert found == profile_of(fork) != OF_THE_MACHINE


@pytest.mark.usefixtures("prints")
def test_a_needle_that_keeps_nothing_leaves_nothing(used: list[Any]) -> None:
    run_niah(MODEL, NIAH, memory_config=MEMORY)
    assert used == [None]


def test_so_does_the_demo(tmp_path: Path, prints: Fingerprint, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def load(_: str) -> None:
        seen.append(profiles.load_model_profile(prints, heads=len(HEADS), query_distance=WINDOW // 4))
        profiles.save_model_profile(prints, dataclasses.replace(OF_THE_MACHINE, seed=1))
        raise InterruptedError

    monkeypatch.setattr(demo, "load", load)
    with pytest.raises(InterruptedError):
        demo.run_demo(tokens=1_000, out=tmp_path / "demo")
    assert seen == [None]

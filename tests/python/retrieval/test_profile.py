"""What calibration found: kept with a memory and for the model's next one, and never in the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.memory.fingerprint import Fingerprint
from everlong.models.profiles import profiles_in
from everlong.retrieval import profile as profiles
from support import SMALL, byte_tokenizer, random_text, tiny_model

PRINTS = Fingerprint("weights", "rope", "tokenizer")
PROFILE = everlong.IndexProfile(((0, 1, 0), (2, 3, 1)), 512, 0.9, 512, 12, 0)

TEXT = "".join(random_text(64, seed=i) for i in range(80))  # pages enough to tell heads apart


def calibrated(model: Any) -> tuple[Fingerprint, everlong.IndexProfile]:
    """What a memory of TEXT finds of the model, and of which it is."""
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        mm.read(TEXT)
        mm.recall(TEXT[1000:1030])
        assert mm.profile is not None
        return mm.searcher.prints, mm.profile


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(prints: Fingerprint = PRINTS, heads: int = 2, query_distance: int = 512) -> everlong.IndexProfile | None:
    return profiles.load_model_profile(prints, heads=heads, query_distance=query_distance)


def test_profile_of_a_model_comes_back_to_the_same_settings() -> None:
    assert load() is None
    profiles.save_model_profile(PRINTS, PROFILE)
    assert load() == PROFILE
    # The tokenizer decides nothing about heads; weights and RoPE do.
    assert load(dataclasses.replace(PRINTS, tokenizer="x")) == PROFILE
    assert load(dataclasses.replace(PRINTS, weights="x")) is None
    assert load(heads=3) is None
    assert load(query_distance=0) is None


def test_few_pages_and_unwritable_folders_leave_nothing(cache: Path) -> None:
    profiles.save_model_profile(PRINTS, dataclasses.replace(PROFILE, pages=profiles.FEWEST_PAGES - 1))
    profiles.save_model_profile(PRINTS, dataclasses.replace(PROFILE, reciprocal_rank=profiles.LEAST_RANK / 2))
    assert not cache.exists()
    cache.write_text("a file where the folder would be")
    profiles.save_model_profile(PRINTS, PROFILE)
    assert load() is None


def test_an_evaluation_neither_sees_nor_leaves_profiles_of_the_machine(cache: Path, tmp_path: Path) -> None:
    profiles.save_model_profile(PRINTS, PROFILE)
    found = dataclasses.replace(PROFILE, seed=1)
    for folder in (tmp_path / "run", None):
        with profiles_in(folder):
            assert load() is None
            profiles.save_model_profile(PRINTS, found)
            assert load() == found
        assert load() == PROFILE
    with profiles_in(tmp_path / "run"):
        assert load() == found
    assert len(list((cache / "profiles").iterdir())) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"heads": 3}', '{"heads": [[1, 2, 3]], "colour": 1}'])
def test_damaged_file_is_passed_over(cache: Path, text: str) -> None:
    profiles.save_model_profile(PRINTS, PROFILE)
    (file,) = (cache / "profiles").iterdir()
    file.write_text(text)
    assert load() is None


def test_heads_that_the_model_does_not_have_are_passed_over_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiles, "FEWEST_PAGES", 64)
    prints, found = calibrated(tiny_model())
    for heads in [((99, 0, 0), *found.heads[1:]), ((0, 0, 1), *found.heads[1:]), ((-1, 0, 0), *found.heads[1:])]:
        profiles.save_model_profile(prints, dataclasses.replace(found, heads=heads))
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
            assert mm.profile is None
            assert profiles.load_profile(mm.memory.core) is None
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(TEXT)
        profiles.store_profile(mm.memory.core, dataclasses.replace(found, heads=((99, 0, 0),)))
    (file,) = (cache / "profiles").iterdir()
    file.unlink()
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        assert mm.profile is None
        mm.recall(TEXT[1000:1030])
        assert mm.profile == found


def test_the_next_memory_of_a_model_needs_no_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiles, "FEWEST_PAGES", 64)
    _, found = calibrated(tiny_model())
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        assert mm.profile == found
        assert profiles.load_profile(mm.memory.core) == found
    with everlong.MemoryModel(tiny_model(seed=1), byte_tokenizer(), config=SMALL) as mm:
        assert mm.profile is None


def test_calibration_asks_what_the_template_takes(tmp_path: Path) -> None:
    """Whoever asks with `chat=False` or with variables of the template must not fail over the quotes of calibration."""
    for template in ("{{ messages[-1]['content'] }}", "{{ raise_exception('variable') }}"):
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = template
        with everlong.MemoryModel(tiny_model(), tokenizer, config=SMALL) as mm:
            mm.read(TEXT)
            assert mm.generate(TEXT[1000:1030], max_new_tokens=2, chat=False, remember=False).tokens == 2
            assert mm.profile is not None


def test_how_keys_are_kept_may_be_set_anew() -> None:
    sizes = []
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(TEXT)
        for keys in ("e4m3", "bf16", "e4m3"):
            mm.config = mm.config.changed(search={"heads_keys": keys})
            mm.recall(TEXT[1000:1030])
            sizes.append(mm.memory.stats().index_bytes)
    assert sizes[0] == sizes[2] < sizes[1]


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERLONG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    profiles.save_model_profile(PRINTS, PROFILE)
    assert load() is None


def test_heads_of_a_text_that_repeats_itself_serve_no_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    poor = dataclasses.replace(PROFILE, reciprocal_rank=profiles.LEAST_RANK / 2)
    with monkeypatch.context() as before:  # as an earlier release kept them
        before.setattr(profiles, "LEAST_RANK", 0)
        profiles.save_model_profile(PRINTS, poor)
        assert profiles.load_model_profile(PRINTS, heads=len(poor.heads), query_distance=poor.query_distance) == poor
    assert profiles.load_model_profile(PRINTS, heads=len(poor.heads), query_distance=poor.query_distance) is None

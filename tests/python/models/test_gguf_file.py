"""A GGUF file that is unpacked loads as transformers loads it, and the second time without being read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from everlong import MemoryModel
from everlong.models import load
from everlong.models.conversion_cache import entries
from everlong.models.gguf_reader import ModelFileError
from support.gguf_files import write_gguf

TEXT = "the thing in <|im_end|> the café"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(name="file")
def a_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def read_no_more(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(str(file), "float32")
    monkeypatch.setattr(gguf, "dequantize", lambda *_: pytest.fail("it was unpacked again"))


def plain(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """As transformers loads it, unpacked."""
    unpacked = transformers.GgufConfig(dequantize=True)
    named = {"gguf_file": file.name, "dtype": dtype, "quantization_config": unpacked}
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **named)
    return model, transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def assert_same(loaded: tuple[Any, Any], reference: tuple[Any, Any]) -> None:
    mine, theirs = (dict(one[0].state_dict()) for one in (loaded, reference))
    assert mine.keys() == theirs.keys()
    for name, weight in mine.items():
        assert weight.dtype == theirs[name].dtype
        assert torch.equal(weight, theirs[name]), name
    assert loaded[1](TEXT)["input_ids"] == reference[1](TEXT)["input_ids"]
    assert loaded[1].get_vocab() == reference[1].get_vocab()
    for named in ("eos_token_id", "bos_token_id", "rms_norm_eps", "rope_parameters", "tie_word_embeddings"):
        assert getattr(loaded[0].config, named) == getattr(reference[0].config, named)
    ids = torch.tensor([[5, 9, 3]])
    assert torch.equal(loaded[0](ids).logits, reference[0](ids).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_and_later_loads_are_what_the_file_holds(
    file: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    reference = plain(file, dtype)
    assert_same(load(str(file), dtype), reference)
    monkeypatch.setattr(gguf, "dequantize", lambda *_: pytest.fail("it was unpacked again"))
    assert_same(load(str(file), dtype), reference)
    assert_same(load(str(file.parent), dtype, gguf_file=file.name), reference)
    assert [entry.source for entry in entries()] == [str(file)]


@pytest.mark.usefixtures("read_no_more")
def test_auto_is_fp32(file: Path) -> None:
    assert load(str(file), "auto")[0].dtype == torch.float32


@pytest.mark.usefixtures("read_no_more")
def test_further_arguments_are_heeded(file: Path) -> None:
    assert load(str(file), "float32", attn_implementation="eager")[0].config._attn_implementation == "eager"
    assert load(str(file), "float32", quantization_config=None)[0].dtype == torch.float32


def test_a_file_that_changed_is_another_model(file: Path) -> None:
    load(str(file), "float32")
    write_gguf(file, seed=1)
    assert_same(load(str(file), "float32"), plain(file, torch.float32))


def test_what_is_to_stay_packed_is_not_converted(file: Path) -> None:
    load(str(file), "float32", quantization_config=transformers.GgufConfig())
    assert entries() == []


def test_another_config_is_heeded_and_not_kept(file: Path) -> None:
    config = plain(file, torch.float32)[0].config
    config.rms_norm_eps = 0.5
    assert load(str(file), "float32", config=config)[0].config.rms_norm_eps == 0.5
    assert load(str(file), "float32")[0].config.rms_norm_eps != 0.5


def test_a_cache_that_keeps_nothing_is_done_without(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE_GB", "0")
    assert_same(load(str(file), "float32"), plain(file, torch.float32))
    assert entries() == []


def test_a_broken_file_is_said_and_leaves_nothing(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])
    for dtype in (None, "float32"):
        with pytest.raises(ModelFileError, match=r"tiny\.gguf' is no whole GGUF file"):
            load(str(file), dtype)
    assert entries() == []


def test_a_memory_names_the_file_so_that_it_is_found_from_anywhere(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with MemoryModel(*load(file.name, "float32")) as mm:
        assert mm.memory.core.manifest().attributes["model"] == str(file)

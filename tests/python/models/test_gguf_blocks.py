"""A GGUF file whose matrices stay in its blocks computes what it computes unpacked, and serves like any model."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from everlong import MemoryModel
from everlong.data import shipped_books
from everlong.models import load, loading
from everlong.models.block_layers import BlockEmbedding, BlockLinear
from everlong.models.conversion_cache import entries
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.gguf_reader import GgufReader, ModelFileError
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from support.gguf_files import HALVES, Q, write_gguf

TEXT = "the thing in the café and the other thing"
WIDTH = 256


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(name="file", params=sorted(HALVES), ids=lambda format: format.name)
def a_file(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    return write_gguf(tmp_path / "tiny.gguf", format=request.param, width=WIDTH)


@pytest.fixture(name="one")
def one_file(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_gguf(tmp_path / "tiny.gguf", format=Q.Q4_K, width=WIDTH, tied=True)


@torch.inference_mode()
def logs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(ids).logits[0].double()
    return logits.log_softmax(-1)


def divergence(true: torch.Tensor, found: torch.Tensor) -> float:
    """Return the mean KL divergence of log-probabilities [T, V]."""
    return float((true.exp() * (true - found)).sum(-1).mean())


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear | torch.nn.Embedding)]


def test_it_computes_what_the_file_unpacked_computes(file: pathlib.Path) -> None:
    model, tokenizer = load(str(file))
    unpacked, _ = load(str(file), "float32")
    assert all(isinstance(layer, BlockLinear | BlockEmbedding) for layer in layers_of(model))
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    assert divergence(logs(unpacked, ids), logs(model, ids)) < 1e-3
    embedded = (each.get_input_embeddings()(ids) for each in (model, unpacked))
    assert torch.equal(*embedded)
    assert weights_fingerprint(model) == weights_fingerprint(unpacked)
    assert not model.training


def test_the_weights_are_the_file_s_own_bytes(one: pathlib.Path) -> None:
    model, _ = load(str(one))
    tensors = {tensor.name: tensor for tensor in GgufReader(one).tensors}
    assert np.array_equal(model.model.layers[1].mlp.down_proj.weight.numpy(), tensors["blk.1.ffn_down.weight"].data)
    assert model.lm_head.weight is model.model.embed_tokens.weight, "tied"
    queries, stored = model.model.layers[0].self_attn.q_proj.weight, tensors["blk.0.attn_q.weight"].data
    assert sorted(map(bytes, queries.numpy())) == sorted(map(bytes, stored)), "other rows"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.uint8, torch.float32}
    assert model.dtype == torch.float32


def test_nothing_is_timed_and_no_weight_is_kept(one: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_layer_seconds", lambda *_: pytest.fail("it was timed"))
    monkeypatch.setattr(gguf, "quantize", lambda *_: pytest.fail("it was quantized"))
    first, tokenizer = load(str(one))
    again, same = load(str(one.parent), gguf_file=one.name)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    assert torch.equal(logs(first, ids), logs(again, ids))
    assert same.get_vocab() == tokenizer.get_vocab()
    (entry,) = entries()
    assert entry.kind.startswith("tokenizer-")
    assert entry.bytes < one.stat().st_size


def test_files_with_the_same_metadata_share_a_tokenizer_and_no_weight(one: pathlib.Path) -> None:
    other = write_gguf(one.with_name("other.gguf"), seed=1, format=Q.Q4_K, width=WIDTH, tied=True)
    models = [load(str(file))[0] for file in (one, other)]
    assert len(entries()) == 1
    assert len({weights_fingerprint(model) for model in models}) == 2
    unpacked = [load(str(file), "float32")[0] for file in (one, other)]
    assert [weights_fingerprint(model) for model in unpacked] == [weights_fingerprint(model) for model in models]


def test_a_named_dtype_unpacks(one: pathlib.Path) -> None:
    for dtype in ("float32", "bfloat16", "auto"):
        assert not any(isinstance(layer, BlockLinear | BlockEmbedding) for layer in layers_of(load(str(one), dtype)[0]))


def test_a_copy_in_another_dtype_computes_in_it(one: pathlib.Path) -> None:
    model, tokenizer = load(str(one))
    half = copy.deepcopy(model).to(torch.bfloat16)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    assert half(ids).logits.dtype == torch.bfloat16
    assert divergence(logs(model, ids), logs(half, ids)) < 1e-2
    assert weights_fingerprint(half) == weights_fingerprint(model)


def test_adapters_lie_beside_the_layers(one: pathlib.Path) -> None:
    model, tokenizer = load(str(one))
    unpacked, _ = load(str(one), "float32")
    shapes = mapped_layers(model)
    assert shapes == mapped_layers(unpacked)
    maps = LowRankMaps(MapSettings(), shapes)
    for up in maps.up:
        torch.nn.init.normal_(up, std=0.02)
    maps.requires_grad_(requires_grad=False)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    before = logs(model, ids)
    with AttachedMaps(maps, model).active(), AttachedMaps(maps, unpacked).active():
        changed = logs(model, ids)
        assert divergence(logs(unpacked, ids), changed) < 1e-3
    assert divergence(before, changed) > 1e-3
    assert torch.equal(logs(model, ids), before)


def test_a_memory_goes_on_with_the_file_unpacked(one: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = "the thing in the other thing " * 40
    with MemoryModel(*load(str(one)), memory=tmp_path / "memory") as mm:
        tokens = mm.read(text).tokens
        assert mm.generate("thing?", max_new_tokens=4).tokens
    with MemoryModel(*load(str(one), "float32"), memory=tmp_path / "memory") as mm:
        assert mm.memory.stats().tokens >= tokens
        assert mm.generate("thing?", max_new_tokens=4).tokens


def with_value(file: pathlib.Path, key: str, value: int) -> pathlib.Path:
    """Write another number (uint32) of the metadata into a file."""
    content = file.read_bytes()
    at = content.index(key.encode()) + len(key) + 4
    file.write_bytes(content[:at] + value.to_bytes(4, "little") + content[at + 4 :])
    return file


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 2**31 - 1),
        ("llama.block_count", 0),
        ("llama.embedding_length", 2**31 - 1),
        ("llama.embedding_length", WIDTH // 2),
        ("llama.feed_forward_length", 2**31 - 1),
        ("llama.feed_forward_length", WIDTH),
        ("llama.attention.head_count_kv", 1),
        ("llama.vocab_size", 2**31 - 1),
    ],
)
def test_metadata_that_does_not_fit_the_tensors_is_refused(one: pathlib.Path, key: str, value: int) -> None:
    with pytest.raises(ModelFileError, match=r"tiny\.gguf"):
        load(str(with_value(one, key, value)))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_a_file_cut_short_is_refused(one: pathlib.Path, share: float) -> None:
    content = one.read_bytes()
    one.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError, match="no whole GGUF file"):
        load(str(one))


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("keeps", ["0", "1"])
def test_a_file_that_lacks_a_tensor_is_refused(
    one: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None, keeps: str
) -> None:
    """transformers would draw random numbers in its place."""
    monkeypatch.setenv("EVERLONG_CACHE_GB", keeps)
    data = one.read_bytes()
    for name, layer in {"blk.0.attn_q.weight": "q_proj", "blk.1.ffn_norm.weight": "post_attention_layernorm"}.items():
        assert name.encode() in data
        one.write_bytes(data.replace(name.encode(), name.replace("_", "-").encode()))
        with pytest.raises(ModelFileError, match=rf"no tensor for model\.layers\.[01]\.\S*{layer}"):
            load(str(one), dtype)
    assert not any(entry.kind.startswith(("float32", "bfloat16")) for entry in entries())
    one.write_bytes(data)
    load(str(one), dtype)


@pytest.mark.slow
def test_the_embedded_model_computes_the_file_s_numbers() -> None:
    model, tokenizer = load("smollm2")
    unpacked, _ = load("smollm2", "float32")
    ids = torch.tensor([tokenizer(shipped_books()[0].text[:4000])["input_ids"][:512]])
    assert divergence(logs(unpacked, ids), logs(model, ids)) < 1e-3

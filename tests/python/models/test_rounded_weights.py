"""A model whose matrices are rounded when it is loaded computes with the rounded numbers, and serves like any other."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import gguf
import pytest
import torch
import transformers

from everlong import EverlongError, MemoryModel, ModelMismatchError
from everlong.models import load
from everlong.models.block_layers import BlockEmbedding, BlockLinear
from everlong.models.rounded_weights import round_weights
from support import TINY_MEMORY, byte_tokenizer, tiny_model

Q = gguf.GGMLQuantizationType
TEXT = "The code of the vault is 7391, and the bell rings at noon."


def saved(folder: pathlib.Path, kind: str = "llama", **changes: Any) -> str:
    tiny_model(kind, "nested" if kind == "gemma3" else "default", **changes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def with_rounded_numbers(folder: str, format: Q) -> Any:
    """Load the model in plain transformers, with numbers that went through the package's own rounding and back."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                own = Q.Q8_0 if id(parameter) in embeddings else format
                codes = gguf.quants.quantize(parameter.float().numpy(), own)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(codes, own)))
    return model


@torch.inference_mode()
def logs(model: Any, tokenizer: Any) -> torch.Tensor:
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    logits: torch.Tensor = model(ids).logits[0].double()
    return logits.log_softmax(-1)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(("weights", "format"), [("int8", Q.Q8_0), ("int4", Q.Q4_1)])
@pytest.mark.parametrize("tied", [False, True])
def test_it_computes_with_the_rounded_numbers(
    tmp_path: pathlib.Path, kind: str, weights: str, format: Q, tied: bool
) -> None:
    folder = saved(tmp_path, kind, tie_word_embeddings=tied)
    model, tokenizer = load(folder, weights=weights)
    assert not model.training
    assert {type(module) for module in model.modules() if isinstance(module, torch.nn.Linear)} == {BlockLinear}
    assert isinstance(model.get_input_embeddings(), BlockEmbedding)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    true, found = logs(with_rounded_numbers(folder, format), tokenizer), logs(model, tokenizer)
    plain = logs(transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer)

    def distance(other: torch.Tensor) -> float:
        return float((true.exp() * (true - other)).sum(-1).mean())

    # Its rows of x are in 8 bits, whose error is far below that of other numbers.
    assert distance(found) < 0.02
    if weights == "int4":
        assert distance(found) < distance(plain) / 2


def test_a_matrix_without_whole_blocks_stays(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path, intermediate_size=72)
    model, tokenizer = load(folder, weights="int8")
    layer = model.model.layers[0].mlp
    assert (type(layer.gate_proj), type(layer.down_proj)) == (BlockLinear, torch.nn.Linear)
    assert layer.down_proj.weight.dtype == torch.float32
    assert torch.isfinite(logs(model, tokenizer)).all()


def test_a_memory_belongs_to_the_model_as_it_was_rounded(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path / "model", max_position_embeddings=4096)
    memory = tmp_path / "notes.everlong"
    with MemoryModel(*load(folder, weights="int4"), memory, TINY_MEMORY) as mm:
        mm.read(TEXT * 20)
        blocks = mm.memory.stats().blocks
        assert blocks > 0
    with MemoryModel(*load(folder, weights="int4"), memory, TINY_MEMORY) as mm:
        assert mm.memory.stats().blocks == blocks
        mm.generate("What is the code?", max_new_tokens=4)
    for other, said in (({"weights": "int8"}, "weights='int8'"), ({}, "no weights=")):
        hint = f"the memory's model was loaded with weights='int4', and this one with {said}"
        with pytest.raises(ModelMismatchError, match=hint):
            MemoryModel(*load(folder, **other), memory, TINY_MEMORY)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"weights": "int3"}, "weights is 'int3', expected one of int8, int4"),
        ({"weights": "int4", "dtype": "float32"}, "leave one out"),
        ({"weights": "int4", "device_map": "cuda:0"}, "computes on the CPU"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: pathlib.Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load(saved(tmp_path), **arguments)
    with pytest.raises(ValueError, match="has its own widths"):
        load("smollm2", weights="int4")


def test_a_model_of_experts_is_refused(tmp_path: pathlib.Path) -> None:
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=8,
    )
    with pytest.raises(ValueError, match="experts"):
        round_weights(transformers.MixtralForCausalLM(config).eval(), "int4")


def test_a_missing_package_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(EverlongError, match="pip install"):
        round_weights(tiny_model(), "int4")

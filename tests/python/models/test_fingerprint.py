"""Whose archived keys and values are whose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import everlong
from everlong.frame.model_setup import attach_model
from everlong.models.fingerprint import fingerprint
from support import SMALL, byte_tokenizer, random_text, tiny_model


class Adapted(torch.nn.Linear):
    """A layer as peft's are: all adapters' weights are there, some are at work."""

    active_adapters = ("a",)
    disable_adapters = False


def test_adapters_that_are_at_work_count() -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    served = attach_model(model, SMALL)

    def weights() -> str:
        return fingerprint(served, tokenizer).weights

    plain = weights()
    layer = model.model.layers[0].self_attn.q_proj
    layer.__class__ = Adapted
    seen = [plain, weights()]
    layer.active_adapters = ("b",)
    seen.append(weights())
    layer.disable_adapters = True
    seen.append(weights())
    assert len(set(seen)) == 4
    layer.active_adapters = ("a",)
    assert weights() == seen[-1], "none is at work, whichever is chosen"


@pytest.mark.parametrize("change", [{"active_adapters": ("b",)}, {"disable_adapters": True}])
def test_a_memory_is_of_the_adapters_that_it_was_begun_with(change: dict[str, object]) -> None:
    model = tiny_model()
    layer = model.model.layers[0].self_attn.q_proj
    layer.__class__ = Adapted
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        before = mm.stream_tokens, mm.memory.stats()
        was = {name: getattr(layer, name) for name in change}
        for name, value in change.items():
            setattr(layer, name, value)
        for call in (mm.read, mm.generate, mm.recall, mm.perplexity):
            with pytest.raises(everlong.ModelMismatchError, match="other adapters are at work"):
                call(random_text(200, seed=1))
        assert (mm.stream_tokens, mm.memory.stats()) == before
        for name, value in was.items():
            setattr(layer, name, value)
        assert mm.read(random_text(200, seed=1)).tokens == 200


class Coded(torch.Tensor):
    """Codes and one scale, as torchao's quantized weights are: it computes, and has no views and no elements."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Coded:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, device=codes.device)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        if function in (torch.ops.aten.view.default, torch.ops.aten.index.Tensor):
            raise NotImplementedError(f"{function} of {cls}")
        plain = [arg.codes * arg.scale if isinstance(arg, Coded) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


def test_weights_that_are_made_of_several_tensors_count_by_these(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    layer = model.model.layers[1].mlp.up_proj
    codes = (layer.weight.detach() * 100).round().to(torch.int8)

    def remembering(scale: float) -> everlong.MemoryModel:
        layer.weight = torch.nn.Parameter(Coded(codes, torch.tensor(scale)), requires_grad=False)
        return everlong.MemoryModel(model, tokenizer, tmp_path / "memory", SMALL)

    with remembering(0.01) as mm:
        mm.read(random_text(300))
    with pytest.raises(everlong.ModelMismatchError, match="weights"):
        remembering(0.02)
    codes += 1
    with pytest.raises(everlong.ModelMismatchError, match="weights"):
        remembering(0.01)
    codes -= 1
    with remembering(0.01) as mm:
        assert mm.stream_tokens == 300


def test_a_model_s_own_method_of_that_name_is_no_adapter() -> None:
    model = tiny_model()
    assert callable(model.active_adapters)
    assert fingerprint(attach_model(model, SMALL), byte_tokenizer()) == fingerprint(
        attach_model(model, SMALL), byte_tokenizer()
    )


def test_a_model_in_float16_is_told_apart_and_told_why(tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = 1e-9  # the first that is sampled, and nothing in float16
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read("some text")
    model.save_pretrained(tmp_path / "model")

    def loaded(dtype: torch.dtype) -> everlong.MemoryModel:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
        return everlong.MemoryModel(loaded, byte_tokenizer(), tmp_path / "m", config=SMALL)

    with loaded(torch.bfloat16) as mm:
        assert mm.stream_tokens == len("some text")
    with pytest.raises(everlong.ModelMismatchError, match=r"weights.*load it in bfloat16 or float32"):
        loaded(torch.float16)

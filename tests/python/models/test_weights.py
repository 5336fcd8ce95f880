"""Which weights a memory depends on, wherever a model keeps them, and what is said when they change under it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from everlong.models.fingerprint import weights_fingerprint
from support import SMALL, byte_tokenizer, random_text, tiny_model

# Of models as `valued` makes them, by the first release: its memories open.
KNOWN = {
    ("llama", "default"): "3f732f802b302f1282580a125645e48d60091f223e2ab4bb57d36161a02ee907",
    ("qwen3", "default"): "7c7ffa9f903c4781b26477758171875dce13e9a5b0cfb1a451f7f599877202ff",
    ("gemma3", "nested"): "2fe4cfa9f3cd05874069d9d0a8b2ca7970e2cfabf70565c4fdc5ab6bccabde24",
    ("gemma4", "nested proportional"): "3de429c332a5701eb35126cc9d7dff9c146b18583e02f0214bf0bc61803e9479",
    ("gpt_oss", "default"): "757ef7391c576b35f1945ebfa4f26a5d3b84d9b25b24169a735deaf99f871533",
    ("cohere2", "default"): "087e195966763435f29a881a9999966c0e33a0b53bde559f80541fdf15dbaae9",
}


@torch.no_grad()
def valued(kind: str, rope: str) -> Any:
    """A tiny model whose weights no generator of random numbers made."""
    model = tiny_model(kind, rope)
    for index, (_, weight) in enumerate(sorted(model.named_parameters())):
        values = (torch.arange(weight.numel()) * 37 + index * 11) % 127 - 63
        weight.copy_(values.reshape(weight.shape) / 64)
    return model


@pytest.mark.parametrize(("kind", "rope"), KNOWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fingerprint_of_a_model_stays_what_it_was(kind: str, rope: str, dtype: torch.dtype) -> None:
    assert weights_fingerprint(valued(kind, rope).to(dtype)) == KNOWN[kind, rope]


def codes_of(linear: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of 4 bits, eight in an int32 [out, in / 8], two scales a row and their zeros."""
    weight = linear.weight.detach()
    scales = weight.abs().amax(dim=1, keepdim=True) / 7
    codes = (weight / scales).round().to(torch.int32) + 8
    packed = (codes.unflatten(1, (-1, 8)) << _SHIFTS).sum(-1, dtype=torch.int32)
    return packed, scales.expand(-1, 2).contiguous(), torch.full((2, weight.shape[0]), 8, dtype=torch.int32)


_SHIFTS = 4 * torch.arange(8, dtype=torch.int32)


class Coded(torch.nn.Module):
    """A layer as AWQ's and GPTQ's are: its weights are buffers."""

    qweight: torch.Tensor
    scales: torch.Tensor
    qzeros: torch.Tensor

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        for name, tensor in zip(("qweight", "scales", "qzeros"), codes_of(linear), strict=True):
            self.register_buffer(name, tensor)
        self.register_buffer("bias", linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = ((self.qweight[..., None] >> _SHIFTS) & 15).flatten(1)
        weight = (codes - self.qzeros[0][:, None]) * self.scales[:, :1]
        return torch.nn.functional.linear(x, weight.to(x.dtype))


class Written(Coded):
    """As HQQ's are: the layer itself writes what a checkpoint holds of it, and what scales the codes is no buffer."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        codes, scales, zeros = codes_of(linear)
        self.W_q = torch.nn.Parameter(codes, requires_grad=False)
        self.meta = {"scale": scales, "zero": zeros}

    @property
    def qweight(self) -> torch.Tensor:
        return self.W_q

    @property
    def scales(self) -> torch.Tensor:
        return self.meta["scale"]

    @property
    def qzeros(self) -> torch.Tensor:
        return self.meta["zero"]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"W_q": self.W_q, **self.meta}


Layer = type[Coded]


def coded_model(layer: Layer = Coded) -> Any:
    """Of which every projection of every MLP is coded."""
    model = tiny_model()
    for block in model.model.layers:
        for name, linear in list(block.mlp.named_children()):
            if isinstance(linear, torch.nn.Linear):
                setattr(block.mlp, name, layer(linear))
    return model.eval()


@pytest.mark.parametrize("layer", [Coded, Written])
@pytest.mark.parametrize("part", ["qweight", "scales", "qzeros"])
def test_weights_that_are_no_parameters_are_told_apart(tmp_path: Path, layer: Layer, part: str) -> None:
    with everlong.MemoryModel(coded_model(layer), byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        mm.read(random_text(300))
    other = coded_model(layer)
    with torch.no_grad():
        getattr(other.model.layers[1].mlp.down_proj, part).add_(1)
    with pytest.raises(everlong.ModelMismatchError, match="weights"):
        everlong.MemoryModel(other, byte_tokenizer(), tmp_path / "m", SMALL)
    with everlong.MemoryModel(coded_model(layer), byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        assert mm.stream_tokens == 300


def test_every_bit_of_a_code_counts() -> None:
    """A code is no number that may be rounded: the lowest of eight codes in an int32 is none of its first digits."""
    for layer in (Coded, Written):
        model = coded_model(layer)
        before = weights_fingerprint(model)
        model.model.layers[2].mlp.up_proj.qweight[0, 0] ^= 1
        assert weights_fingerprint(model) != before


def test_what_a_model_computes_for_itself_does_not_count() -> None:
    model = tiny_model()
    before = weights_fingerprint(model)
    attention = model.model.layers[0].self_attn
    attention.register_buffer("bias", torch.ones(1, 1, 64, 64).tril().bool())
    attention.register_buffer("mask", torch.ones(64, 64).tril(), persistent=False)
    model.model.register_buffer("position_ids", torch.arange(64)[None])
    model.model.rotary_emb.register_buffer("table", torch.rand(64, 64), persistent=False)
    model.model.rotary_emb.register_buffer("frequencies", torch.rand(8))
    model.model.rotary_emb.inv_freq.mul_(2)
    assert weights_fingerprint(model) == before


# --- weights that change under an open memory


@pytest.fixture
def open_memory() -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        yield mm


def step(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    model(input_ids=torch.arange(5)[None], labels=torch.arange(5)[None]).loss.backward()
    optimizer.step()


def load(model: Any) -> None:
    model.load_state_dict(tiny_model(seed=1).state_dict())


def load_anew(model: Any) -> None:
    model.load_state_dict(tiny_model(seed=1).state_dict(), assign=True)


def round_off(model: Any) -> None:
    model.model.layers[1].to(torch.bfloat16).to(torch.float32)


@pytest.mark.parametrize("change", [step, load, load_anew, round_off])
def test_weights_that_were_written_to_are_told(
    open_memory: everlong.MemoryModel, change: Callable[[Any], None]
) -> None:
    mm = open_memory
    before = mm.stream_tokens, mm.memory.stats()
    change(mm.model)
    for call in (mm.read, mm.generate, mm.recall, mm.perplexity):
        with pytest.raises(everlong.ModelMismatchError, match=r"weights were written to.*another memory"):
            call(random_text(200, seed=1))
    with pytest.raises(everlong.ModelMismatchError, match="weights were written to"):
        list(mm.stream("a question"))
    assert (mm.stream_tokens, mm.memory.stats()) == before


def test_codes_that_were_written_to_are_told() -> None:
    model = coded_model()
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        model.model.layers[0].mlp.up_proj.scales.mul_(2)
        with pytest.raises(everlong.ModelMismatchError, match="weights were written to"):
            mm.read(random_text(200, seed=1))


@pytest.mark.parametrize("tied", [False, True])
def test_the_output_embeddings_may_be_trained_where_they_are_no_input_embeddings(tied: bool) -> None:
    model = tiny_model(tie_word_embeddings=tied)
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        with torch.no_grad():
            model.lm_head.weight.mul_(1.01)
        if tied:
            with pytest.raises(everlong.ModelMismatchError, match="weights were written to"):
                mm.read(random_text(200, seed=1))
        else:
            assert mm.read(random_text(200, seed=1)).tokens == 200


def test_using_a_model_does_not_write_to_it(open_memory: everlong.MemoryModel) -> None:
    model = open_memory.model
    model(input_ids=torch.arange(5)[None], labels=torch.arange(5)[None]).loss.backward()
    model.zero_grad()
    model.requires_grad_(False)
    with torch.inference_mode():
        model(input_ids=torch.arange(5)[None])
    copy.deepcopy(model)
    assert open_memory.read(random_text(200, seed=1)).tokens == 200


# --- adapters


class LowRank(torch.nn.Module):
    """A layer of peft's LoRA: what it lies over, and a pair of matrices for each adapter."""

    def __init__(self, base: torch.nn.Linear, *adapters: str, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base_layer = base
        inner = {name: torch.nn.Linear(base.in_features, 2, bias=False) for name in adapters}
        outer = {name: torch.nn.Linear(2, base.out_features, bias=False) for name in adapters}
        self.lora_A, self.lora_B = torch.nn.ModuleDict(inner), torch.nn.ModuleDict(outer)
        self.active_adapters, self.disable_adapters = [*adapters][:1], False

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base_layer(x)
        for name in self.active_adapters:
            out = out + self.lora_B[name](self.lora_A[name](x))
        return out


def adapted(place: str, *adapters: str, seed: int = 0, tied: bool = False) -> Any:
    model = tiny_model(tie_word_embeddings=tied)
    base = model.get_submodule(place)
    model.set_submodule(place, LowRank(base, *adapters, seed=seed))
    return model.eval()


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapter_over_the_output_embeddings_keeps_the_memory(tmp_path: Path, tied: bool) -> None:
    plain = tiny_model(tie_word_embeddings=tied)
    with everlong.MemoryModel(plain, byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        mm.read(random_text(300))
        read = mm.memory.stats().tokens
    for seed in range(2):
        model = adapted("lm_head", "a", "b", seed=seed, tied=tied)
        with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", SMALL) as mm:
            assert mm.memory.stats().tokens == read
            model.lm_head.active_adapters = ["b"]
            with torch.no_grad():
                model.lm_head.lora_B["b"].weight.add_(1)
            mm.generate("what?", 2, remember=False)


def test_an_adapter_that_is_merged_into_shared_embeddings_does_not() -> None:
    model = adapted("lm_head", "a", tied=True)
    before = weights_fingerprint(model)
    with torch.no_grad():
        model.lm_head.base_layer.weight += model.lm_head.lora_B["a"].weight @ model.lm_head.lora_A["a"].weight
    assert weights_fingerprint(model) != before


def test_an_adapter_over_any_other_layer_is_another_model(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        mm.read("some text")
    with pytest.raises(everlong.ModelMismatchError, match="weights"):
        everlong.MemoryModel(adapted("model.layers.1.mlp.up_proj", "a"), byte_tokenizer(), tmp_path / "m", SMALL)


def test_an_adapter_that_is_loaded_and_not_at_work_keeps_the_memory(tmp_path: Path) -> None:
    place = "model.layers.1.self_attn.v_proj"

    def loaded(*adapters: str) -> Any:
        model = adapted(place, *adapters)
        model.peft_config = dict.fromkeys(adapters)
        return model

    torch.manual_seed(0)
    with everlong.MemoryModel(loaded("a"), byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        mm.read("some text")
    model = loaded("a", "b")
    layer = model.get_submodule(place)
    layer.lora_A["a"], layer.lora_B["a"] = (
        getattr(loaded("a").get_submodule(place), x)["a"] for x in ("lora_A", "lora_B")
    )
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        with torch.no_grad():
            layer.lora_A["b"].weight.add_(1)
        mm.read("more")
        with torch.no_grad():
            layer.lora_A["a"].weight.add_(1)
        with pytest.raises(everlong.ModelMismatchError, match="weights were written to"):
            mm.read("more")


class Ordered(torch.nn.Parameter):
    """A weight that its layer puts into another order, as `Params4bit` of bitsandbytes."""

    quant_state = "of the library"


class Packed(torch.nn.Linear):
    """A layer as bitsandbytes' in 4 bits is on a CPU. When it computes, it puts its weight into another order, in other
    memory; when it writes a checkpoint, it puts it back, and loses some of it.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.is_packed = Ordered(linear.weight.detach(), False), linear.bias, False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.is_packed:
            self.weight.data, self.is_packed = self.weight.data.flip(0), True
        return torch.nn.functional.linear(input, self.weight.flip(0), self.bias)

    def _save_to_state_dict(self, *where: Any) -> None:
        if self.is_packed:
            self.weight.data, self.is_packed = self.weight.data.flip(0) * 0.9, False
        super()._save_to_state_dict(*where)


def test_weights_that_a_layer_reorders_stay_what_they_are(tmp_path: Path) -> None:
    model = tiny_model(max_position_embeddings=4096)
    for layer in model.model.layers:
        layer.mlp.up_proj = Packed(layer.mlp.up_proj)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = copy.deepcopy(model)(ids).logits
    for _ in range(2):  # the second time the weights are in their other order
        with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", SMALL) as mm:
            mm.read(random_text(400))
            mm.generate("What?", max_new_tokens=2)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before), "its weights are others"
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", SMALL) as mm:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.add_(0.01)
        with pytest.raises(everlong.ModelMismatchError):
            mm.generate("Now?", max_new_tokens=2)

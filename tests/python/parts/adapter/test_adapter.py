"""The adapter: LoRA as it is defined, at work on answers from memory alone, and never in what is archived."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.frame.parts import Parts
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import Pack, PackPart
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.memories import answering_of

ADAPTER = "adapter"  # what a pack has it by
TEXT = random_text(3000)
QUESTION = TEXT[300:330]


def trained(model: torch.nn.Module, rank: int = 4) -> LowRankMaps:
    """Maps that change much."""
    adapter = LowRankMaps(MapSettings(rank=rank, scale=2.0), mapped_layers(model))
    generator = torch.Generator().manual_seed(5)
    for up in adapter.up:
        up.data.copy_(torch.randn(up.shape, generator=generator) * 0.3)
    return LowRankMaps.of_part(adapter.part({}))


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    model = tiny_model()
    Pack(weights_fingerprint(model), "tiny", {ADAPTER: trained(model).part({})}).save(tmp_path / "pack")
    return tmp_path / "pack"


@pytest.fixture
def mm(pack: Path) -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=pack) as mm:
        yield mm


def merged(model: Any, adapter: LowRankMaps) -> Any:
    """The model with the maps added to its weights: W + scale * up down, in fp64."""
    modules = dict(model.named_modules())
    for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
        weight = modules[name].weight
        weight.data.copy_(weight.double() + adapter.settings.scale * up.double() @ down.double())
    return model


def keys_of(mm: everlong.MemoryModel) -> np.ndarray[Any, Any]:
    core = mm.memory.core
    layers = range(core.manifest().layers)
    return np.concatenate(
        [core.blocks.read_keys(page, layer).reshape(-1) for page in core.blocks.pages() for layer in layers]
    )


def test_it_adds_what_merged_weights_would() -> None:
    ids = torch.arange(40)[None] * 5
    model = tiny_model()
    adapter = trained(model)
    plain = model(input_ids=ids).logits
    with torch.no_grad(), AttachedMaps(adapter, model).active():
        got = model(input_ids=ids).logits
    assert not torch.allclose(got, plain, atol=0.1)
    torch.testing.assert_close(got, merged(tiny_model(), adapter)(input_ids=ids).logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=0, atol=0)


def test_untrained_it_adds_nothing() -> None:
    model = tiny_model()
    ids = torch.arange(9)[None]
    with AttachedMaps(LowRankMaps(MapSettings(), mapped_layers(model)), model).active():
        got = model(input_ids=ids).logits
    torch.testing.assert_close(got, model(input_ids=ids).logits, rtol=0, atol=0)


def test_a_layer_of_another_shape_is_refused() -> None:
    adapter = trained(tiny_model())
    with pytest.raises(everlong.ModelMismatchError, match="the adapter has maps for"):
        AttachedMaps(adapter, tiny_model(intermediate_size=64))


def test_a_question_is_answered_with_it(mm: everlong.MemoryModel, pack: Path) -> None:
    """Question and answer are computed with merged weights behind the keys of the model itself."""
    mm.read(TEXT)
    got = mm.generate(QUESTION, max_new_tokens=12, remember=False, chat=False)
    assert got.recalled
    prompt = answering_of(mm).prompt(QUESTION, False, None)
    expected: list[int] = []
    model = mm.model
    with mm.frame.branch(), torch.no_grad():
        mm.frame.begin_prompt()
        mm.frame.recall([page for one in reversed(got.recalled) for page in pages(mm, one)])
        own, mm.frame.stream.parts = mm.frame.parts, Parts()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        adapter = LowRankMaps.of_part(everlong_pack(pack))
        try:
            merged(model, adapter)
            logits = mm.frame.extend(prompt.ids, "prompt")
            for _ in range(12):
                expected.append(int(logits[0].argmax()))
                logits = mm.frame.extend(torch.tensor(expected[-1:]), "generated")
        finally:
            for name, weight in model.named_parameters():
                weight.data.copy_(before[name])
            mm.frame.stream.parts = own
    assert list(got.token_ids) == expected
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL.changed(parts=()), pack=pack) as plain:
        plain.read(TEXT)
        assert plain.generate(QUESTION, max_new_tokens=12, remember=False, chat=False).token_ids != got.token_ids


def pages(mm: everlong.MemoryModel, recall: Any) -> Any:
    return mm.memory.core.blocks.pages_of(0, *recall.span)


def everlong_pack(folder: Path) -> Any:
    from everlong.models.pack import load_pack

    return load_pack(folder).parts[ADAPTER]


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_remembered_is_the_models_own(pack: Path, streamed: bool) -> None:
    """As if text of that question and answer had been read by the model without an adapter."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=pack) as mm:
        mm.read(TEXT)
        before = mm.stream_tokens
        if streamed:
            answer = "".join(mm.stream(QUESTION, max_new_tokens=12, chat=False))
            assert mm.last_recalled
        else:
            answer = mm.generate(QUESTION, max_new_tokens=12, chat=False).text
        assert mm.stream_tokens == before + len(QUESTION) + 12
        assert [block.role for block in mm.memory.blocks()][-2:] == ["asked", "said"]
        ids = torch.from_numpy(mm.memory.core.blocks.token_ids(0, before, mm.stream_tokens).astype(np.int64))
        assert mm.tokenizer.decode(ids.tolist()) == QUESTION + answer
        got = keys_of(mm)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=None) as plain:
        plain.read(TEXT)
        plain.frame.extend(ids[: len(QUESTION)], "prompt")
        plain.frame.extend(ids[len(QUESTION) :], "generated")
        plain.frame.end_of_text()
        np.testing.assert_allclose(got, keys_of(plain), rtol=1e-4, atol=1e-5)


def test_without_a_memory_nothing_is_changed(pack: Path) -> None:
    """Of what the window holds the model answers as it always did."""
    answers = []
    for which in (pack, None):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=which) as mm:
            mm.read(TEXT[:200])
            answers.append(mm.generate(QUESTION, max_new_tokens=12).token_ids)
            answers.append(mm.frame.extend(torch.arange(10), "prompt").tolist())
    assert answers[:2] == answers[2:]


def test_maps_are_kept_in_eight_bits_and_once_more_without_loss() -> None:
    drawn = LowRankMaps(MapSettings(rank=4), mapped_layers(tiny_model()))
    generator = torch.Generator().manual_seed(5)
    for up in drawn.up:
        # The rank's summands are of very different sizes, as they are when a few of them do most.
        up.data.copy_(torch.randn(up.shape, generator=generator) * torch.tensor([1.0, 0.1, 1e-3, 1e-6]))
    part = drawn.part({"minutes": 1})
    again = LowRankMaps.of_part(part)
    assert again.settings == drawn.settings
    numbers = [tensor for name, tensor in part.tensors.items() if not name.endswith(".size")]
    assert {tensor.dtype for tensor in numbers} == {torch.int8}
    for one, other in zip(drawn.down, again.down, strict=True):
        assert bool(((one - other).abs() <= one.abs().amax(dim=1, keepdim=True) / 253).all())
    for one, other in zip(drawn.up, again.up, strict=True):
        assert bool(((one - other).abs() <= one.abs().amax(dim=0, keepdim=True) / 253).all())
    for name, tensor in again.part({}).tensors.items():
        torch.testing.assert_close(tensor, part.tensors[name], rtol=1e-6, atol=0)


def test_packs_of_sixteen_bits_are_read() -> None:
    adapter = trained(tiny_model())
    kept = {
        name + ending: tensor.detach().to(torch.bfloat16)
        for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True)
        for ending, tensor in ((".down", down), (".up", up))
    }
    again = LowRankMaps.of_part(PackPart(kept, dataclasses.asdict(adapter.settings), {}))
    for one, other in zip([*adapter.down, *adapter.up], [*again.down, *again.up], strict=True):
        assert torch.equal(one.to(torch.bfloat16).float(), other)

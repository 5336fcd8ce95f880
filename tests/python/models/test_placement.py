"""What is said of a model that accelerate spread over devices, or keeps elsewhere until its layers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

import everlong
from support import SMALL, byte_tokenizer, random_text, tiny_model

TEXT_ALONE = SMALL.changed(answer={"recall_mode": "text"})
ONE_DEVICE = r"all of it on one device works: device_map=\{'': '%s'\}, quantized .* or device_map='cpu'"


def with_memory(model: Any, config: everlong.MemoryConfig = SMALL) -> everlong.MemoryModel:
    return everlong.MemoryModel(model, byte_tokenizer(), config=config)


def some_layers_on_disk(folder: Path) -> Any:
    model = tiny_model()
    places = {"model.layers.1": "disk", **dict.fromkeys(["model.layers.0", "model.layers.2"], "cpu")}
    rest = dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
    return accelerate.dispatch_model(model, {**places, **rest}, main_device="cpu", offload_dir=folder)


def test_layers_that_lie_on_disk_are_told(tmp_path: Path) -> None:
    message = r"llama: accelerate brings weights of its layers, which are kept on cpu, to cpu for each forward; "
    with pytest.raises(everlong.UnsupportedModelError, match=message + ONE_DEVICE % "cpu" + ". By text alone it works"):
        with_memory(some_layers_on_disk(tmp_path))


def test_such_a_model_is_served_by_text_alone(tmp_path: Path) -> None:
    with with_memory(some_layers_on_disk(tmp_path), TEXT_ALONE) as mm, with_memory(tiny_model(), TEXT_ALONE) as plain:
        for memory in (mm, plain):
            memory.read(random_text(900))
        assert mm.generate("what?", 4).text == plain.generate("what?", 4).text


@pytest.mark.parametrize("config", [SMALL, TEXT_ALONE])
def test_a_model_that_is_offloaded_as_a_whole_is_told(config: everlong.MemoryConfig) -> None:
    model = accelerate.cpu_offload(tiny_model(), execution_device="cpu")
    with pytest.raises(everlong.UnsupportedModelError, match="accelerate brings .* to cpu.*" + ONE_DEVICE % "cpu"):
        with_memory(model, config)


def test_a_model_that_is_moved_when_it_computes_is_told() -> None:
    model, _ = accelerate.cpu_offload_with_hook(tiny_model(), execution_device="meta")
    message = "it lies on cpu, and accelerate moves it to meta when it first computes; "
    with pytest.raises(everlong.UnsupportedModelError, match=message + ONE_DEVICE % "meta"):
        with_memory(model)


def test_a_model_over_several_devices_is_told() -> None:
    model = tiny_model()
    model.model.layers[1].to("meta")
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1, "model.layers.2": "cuda:1"}
    message = "its device_map put its layers on cuda:0 and cuda:1; "
    with pytest.raises(everlong.UnsupportedModelError, match=message + ONE_DEVICE % "cpu"):
        with_memory(model)


def test_weights_that_are_not_loaded_are_told() -> None:
    with pytest.raises(everlong.UnsupportedModelError, match="its embeddings lie on meta, they are not loaded"):
        with_memory(tiny_model().to("meta"), TEXT_ALONE)


def test_a_model_that_accelerate_put_on_one_device_is_served() -> None:
    model = accelerate.dispatch_model(tiny_model(), {"": "cpu"}, force_hooks=True)
    assert torch.device("meta") not in {parameter.device for parameter in model.parameters()}
    with with_memory(model) as mm:
        mm.read(random_text(300))
        assert mm.generate("what?", 2).tokens == 2

"""The shape of a model's archive, from its config alone: no weights are read."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache

from everlong.errors import UnsupportedModelError
from everlong.models import DEFAULT_MODEL
from everlong.models.attach import kinds_of_layers
from everlong.models.gguf_file import config_of
from everlong.models.loading import embedded_file
from everlong.models.releases import cache_argument
from everlong.models.validation import require_name

_TOKENS = 8  # that the empty model computes


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The archived layers of a model. All have one shape."""

    layers: int
    kv_heads: int
    head_dim: int


def geometry_of(name_or_path: str, frame_tokens: int) -> Geometry:
    """Return the shape of a model's archive for a frame of so many tokens.

    `name_or_path` is what `load` takes, a folder with nothing but a `config.json`, or that file. The model is made
    without weights and computes without numbers, so that its cache shows the shapes. Whether it can be spliced exactly,
    `attach` alone can say. Raises UnsupportedModelError as that does, where the layers alone forbid it.
    """
    config = _config(name_or_path)
    text = config.get_text_config(decoder=True)
    archived, _ = kinds_of_layers(text, text.model_type, frame_tokens)
    cache: Any = DynamicCache(config=text)
    with torch.device("meta"), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        ids = torch.zeros(1, _TOKENS, dtype=torch.int64)
        model(input_ids=ids, **{cache_argument(model): cache}, use_cache=True)
    states = [x for layer in archived for x in (cache.layers[layer].keys, cache.layers[layer].values)]
    shapes = {(x.shape[1], x.shape[3]) for x in states}
    if len(shapes) > 1:
        raise UnsupportedModelError(
            f"{text.model_type}: keys and values of its full-attention layers have the shapes [heads, head_dim] "
            f"{sorted(shapes)}; one shape for all works"
        )
    return Geometry(len(archived), *shapes.pop())


def _config(name_or_path: str) -> Any:
    require_name(name_or_path)
    source = str(embedded_file()) if name_or_path == DEFAULT_MODEL else os.path.expanduser(name_or_path)
    if not source.endswith(".gguf"):
        return transformers.AutoConfig.from_pretrained(source)
    return config_of(source)

"""A forward that ends at the deepest layer that is needed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from everlong.models.attach import decoder_layers
from everlong.models.hooks import register_hook
from everlong.models.rotations import own_rotations


class _DeepEnough(Exception):  # noqa: N818  # no error: it ends a forward
    pass


@torch.no_grad()
@own_rotations()
def early_exit_states(
    model: Any,
    ids: torch.Tensor,
    layers: Sequence[int],
    *,
    mask: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> dict[int, torch.Tensor]:
    """Return hidden states [n, hidden size] of ids [n] by layer, read as a text of its own.

    Layers behind the last one asked for are not computed. Layers count as in transformers' `output_hidden_states`. The
    last one is behind the final norm, and a negative one counts from there. ValueError for 0, which is what the first
    layer gets, and for a layer that does not exist. `mask` [n, n] bool says which token (row) sees which, `positions`
    [n] where each stands. Without them each sees all before it. Forwards of other threads are not disturbed.
    """
    decoder, modules = decoder_layers(model)
    count = len(modules)
    if not layers or not all(layer != 0 and -count <= layer <= count for layer in layers):
        raise ValueError(f"layers are {tuple(layers)}, expected some of 1 to {count}, or of -{count} to -1")
    place = {layer: layer % (count + 1) for layer in layers}
    thread = threading.get_ident()
    kept: dict[int, torch.Tensor] = {}

    def keep(layer: int, _module: object, _args: object, output: Any) -> None:
        if threading.get_ident() != thread:
            return
        kept[layer] = (output if isinstance(output, torch.Tensor) else output[0]).detach()[0]
        if len(kept) == len(place):
            raise _DeepEnough

    hooks = [
        register_hook(
            (decoder if depth == count else modules[depth - 1]).register_forward_hook, functools.partial(keep, layer)
        )
        for layer, depth in place.items()
    ]
    arguments: dict[str, Any] = {"input_ids": ids[None].to(model.device), "use_cache": False, "logits_to_keep": 1}
    if mask is not None:
        arguments["attention_mask"] = mask[None, None].to(model.device)
    if positions is not None:
        arguments["position_ids"] = positions[None].to(model.device)
    try:
        model(**arguments)
    except _DeepEnough:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return kept

"""`model.generate(..., custom_generate=mm.decode)`: transformers prepares, the memory's frame decodes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from everlong.generation.decoding import DecodingSetup, prepared_by
from everlong.models.releases import hides_nothing
from everlong.text.prompt import Prompt

# Arguments of a call that a frame cannot obey.
_REFUSED = ("inputs_embeds", "prompt_lookup_num_tokens", "assistant_model")
_NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def prompt_and_decoding(
    served: Any,
    tokenizer: Any,
    model: Any,
    input_ids: torch.Tensor,
    processors: Any,
    stops: Any,
    generation_config: Any,
    stop_strings: str | list[str] | None,
    model_kwargs: dict[str, Any],
) -> tuple[Prompt, DecodingSetup]:
    """Turn what transformers hands over into a prompt and a decoding. ValueError for what a memory cannot do."""
    if all(module is not model for module in served.modules()):  # a wrapper, as of an adapter, hands on what it wraps
        raise ValueError("custom_generate=mm.decode is for mm.model.generate: this is another model")
    decoding = prepared_by(generation_config, processors, stops, tokenizer, stop_strings)
    if input_ids.shape[0] != 1:
        raise ValueError(f"a batch of {input_ids.shape[0]}: a memory is one stream; one MemoryModel for each works")
    if input_ids.shape[1] == 0:
        raise ValueError("the prompt is empty")
    mask = model_kwargs.get("attention_mask")
    refused = [name for name in _REFUSED if model_kwargs.get(name) is not None]
    if mask is not None and not hides_nothing(mask):
        refused.append("attention_mask")
    for name in ("past_key_values", "cache"):  # transformers makes an empty one, under one of these names
        if model_kwargs.get(name) is not None and model_kwargs[name].get_seq_length() > 0:
            refused.append(name)
    if refused:
        raise ValueError(f"{refused[0]}: a memory goes on from the token ids of one prompt, without padding")
    for name in _NOT_RETURNED:
        if getattr(generation_config, name, False):
            raise ValueError(f"{name}: a memory's answer is token ids")
    return Prompt(input_ids[0].cpu(), slice(0, input_ids.shape[1])), decoding


def generated(input_ids: torch.Tensor, token_ids: tuple[int, ...], generation_config: Any) -> Any:
    """Return it like transformers' own modes: ids [1, prompt + answer], or an output that holds them."""
    new = torch.tensor([token_ids], dtype=input_ids.dtype, device=input_ids.device)
    sequences: Any = torch.cat([input_ids, new], dim=-1)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def streamer_of_generate() -> Any:
    """Return the streamer that transformers' `generate` was given by its caller.

    `generate` has put the prompt into it, but hands it to no `custom_generate`. Without tokens from here, whoever reads
    from it would wait for ever.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "generate" and frame.f_globals.get("__name__") == "transformers.generation.utils":
            return frame.f_locals.get("streamer")
        frame = frame.f_back
    return None

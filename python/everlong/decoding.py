"""Token by token: the model's own generation settings over a frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from everlong.frame import Frame, RecallPages


@dataclasses.dataclass(frozen=True)
class Decoding:
    """What `generate` prepared: sampling, processors and stops, exactly as transformers would apply them."""

    processors: Any  # LogitsProcessorList
    stops: Any  # StoppingCriteriaList
    sample: bool


def prepare(model: Any, tokenizer: Any, prompt_ids: torch.Tensor, **generation: Any) -> Decoding:
    """Let transformers turn its generation arguments into processors and stops, without generating."""
    prepared: list[Decoding] = []

    def capture(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **_: Any
    ) -> Any:
        if generation_config.num_beams != 1 or (generation_config.num_return_sequences or 1) != 1:
            raise ValueError("num_beams and num_return_sequences must be 1: a memory is one stream")
        prepared.append(Decoding(logits_processor, stopping_criteria, bool(generation_config.do_sample)))
        return input_ids

    if "stop_strings" in generation:
        generation["tokenizer"] = tokenizer
    ids = prompt_ids[None].to(model.device)
    model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=capture, **generation)
    return prepared[0]


def decode(
    frame: Frame,
    prompt_ids: torch.Tensor,
    logits: torch.Tensor,
    decoding: Decoding,
    recall: RecallPages | None,
) -> Iterator[int]:
    """Yield token ids until a stop; every yielded token is in the frame when the next one is asked for, or at the end.

    logits [1, V] are those of the prompt's last token.
    """
    sequence = prompt_ids[None].to(logits.device)
    while True:
        scores = decoding.processors(sequence, logits.float())
        if decoding.sample:
            token = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)[0]
        else:
            token = scores.argmax(dim=-1)
        sequence = torch.cat([sequence, token[None]], dim=-1)
        yield int(token)
        stop = bool(decoding.stops(sequence, scores).all())
        logits = frame.extend(token.cpu(), "generated", recall=recall)
        if stop:
            return

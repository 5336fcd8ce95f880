"""Decodes token by token: the model's own generation settings over a frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria

from everlong.frame.frame import Frame
from everlong.frame.offers import RecallPages
from everlong.generation.answer import FinishReason
from everlong.generation.drafts import Drafts

NEW_TOKENS = 64  # the most, when nothing else is said
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
# What `generate` would return beside the tokens, and an answer has no place for.
_NOT_RETURNED = (
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """What `generate` prepared: sampling, processors and stops, exactly as transformers would apply them."""

    processors: Any  # LogitsProcessorList
    stops: Any  # StoppingCriteriaList
    sample: bool


def prepare(model: Any, tokenizer: Any, prompt_ids: torch.Tensor, /, **generation: Any) -> Decoding:
    """Let transformers turn its generation arguments into processors and stops, without generating.

    As in transformers, what the call leaves open comes from its `generation_config`, then from the model's own. Where
    none of them says anything it is greedy search, and at most NEW_TOKENS. ValueError for anything but greedy search
    and sampling.
    """
    given = generation.get("generation_config")
    configs = [given, getattr(model, "generation_config", None)]
    if generation.get("max_new_tokens") is not None and generation.get("max_length") is None:
        generation["max_length"] = None  # the model's own; what the call says holds, without a warning
    if not any(_names_length(settings) for settings in (generation, *map(vars, filter(None, configs)))):
        # transformers' own default ends where its window does: a prompt may be longer
        generation["max_new_tokens"] = NEW_TOKENS
    if generation.pop("assistant_model", None) is not None:
        raise ValueError("assistant_model: a memory decodes by greedy search or sampling")
    for name in _NOT_RETURNED:
        if generation.get(name):
            raise ValueError(f"{name}: an answer is only text, a number of tokens and what was recalled")
    if generation.get("use_cache") is False:
        raise ValueError("use_cache=False: the frame is the cache")
    # The frame is the cache. Another kind would be made for nothing, as long as prompt and answer.
    if given is None or any(config is not None and config.cache_implementation for config in configs):
        generation["cache_implementation"] = None
    stop_strings = _stop_strings(model, generation)
    if stop_strings or "stop_strings" in generation:
        # transformers would ask for the tokenizer even without strings, and hands it to its own modes alone
        generation["stop_strings"] = None
    prepared: list[Decoding] = []

    def capture(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **_: Any
    ) -> Any:
        prepared.append(prepared_by(generation_config, logits_processor, stopping_criteria, tokenizer, stop_strings))
        return input_ids

    ids = prompt_ids[None].to(model.device)
    model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=capture, **generation)
    return prepared[0]


def prepared_by(
    generation_config: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    tokenizer: Any,
    stop_strings: str | list[str] | None,
) -> Decoding:
    """Take what transformers hands a `custom_generate`. ValueError for anything but greedy search and sampling."""
    mode = generation_config.get_generation_mode()
    if mode not in _MODES:
        asked = mode.value.replace("_", " ")
        raise ValueError(f"{asked}: a memory decodes by greedy search or sampling, num_beams is 1")
    if (generation_config.num_return_sequences or 1) != 1:
        raise ValueError("num_return_sequences must be 1: a memory is one stream")
    if stop_strings:
        stopping_criteria.append(StopStringCriteria(tokenizer, stop_strings))
    return Decoding(logits_processor, stopping_criteria, bool(generation_config.do_sample))


def _names_length(settings: Mapping[str, Any]) -> bool:
    return any(settings.get(name) is not None for name in ("max_new_tokens", "max_length"))


def _stop_strings(model: Any, generation: dict[str, Any]) -> str | list[str] | None:
    """Return stop strings as transformers chooses them: the call's, or its generation_config's, or the model's."""
    if "stop_strings" in generation:
        chosen: str | list[str] | None = generation["stop_strings"]
        return chosen
    configs = (generation.get("generation_config"), getattr(model, "generation_config", None))
    return next((config.stop_strings for config in configs if config is not None and config.stop_strings), None)


def decode(
    frame: Frame,
    prompt_ids: torch.Tensor,
    logits: torch.Tensor,
    decoding: Decoding,
    recall: RecallPages | None,
    drafts: Drafts | None = None,
) -> Generator[int, None, FinishReason]:
    """Yield token ids until a stop, and return why it ended. The prompt's last token has the logits [1, V].

    What `drafts` say will follow is computed beside a token. They change no token that is chosen.

    Every yielded token is in the frame when the next one is asked for, or at the end.
    """
    sequence = prompt_ids[None].to(logits.device)
    while True:
        with torch.no_grad():  # a processor may ask the model, as guidance does
            scores = decoding.processors(sequence, logits.float())
            if decoding.sample:
                token = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)[0]
            else:
                token = scores.argmax(dim=-1)
            sequence = torch.cat([sequence, token[None]], dim=-1)
            stopped = [criterion(sequence, scores).all() for criterion in decoding.stops]
            # The one wait for the device that a token takes.
            chosen, *told = torch.stack([token[0], *(stop.to(token) for stop in stopped)]).tolist()
        yield chosen
        reason = _reason_to_stop(decoding.stops, told)
        draft = drafts.next(chosen) if drafts is not None and reason is None else ()
        logits = frame.extend(torch.tensor([chosen], device="cpu"), "generated", recall=recall, draft=draft)
        if reason is not None:
            return reason


def _reason_to_stop(stops: Any, told: Sequence[int]) -> FinishReason | None:
    """Return the reason among what the criteria told, in transformers' order: own ends, then length or time."""
    reasons: set[FinishReason] = set()
    for criterion, stop in zip(stops, told, strict=True):
        if stop and isinstance(criterion, MaxLengthCriteria):
            reasons.add("length")
        elif stop:
            reasons.add("time" if isinstance(criterion, MaxTimeCriteria) else "stop")
    order: tuple[FinishReason, ...] = ("stop", "length", "time")
    return next((reason for reason in order if reason in reasons), None)

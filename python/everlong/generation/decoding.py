"""Chooses token after token, by the model's own generation settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria

from everlong.generation.answer import FinishReason

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
class DecodingSetup:
    """What `generate` prepared: sampling, processors and stops, exactly as transformers would apply them."""

    processors: Any  # LogitsProcessorList
    stops: Any  # StoppingCriteriaList
    sample: bool


def prepare(model: Any, tokenizer: Any, prompt_ids: torch.Tensor, /, **generation: Any) -> DecodingSetup:
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
    prepared: list[DecodingSetup] = []

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
) -> DecodingSetup:
    """Take what transformers hands a `custom_generate`. ValueError for anything but greedy search and sampling."""
    mode = generation_config.get_generation_mode()
    if mode not in _MODES:
        question = mode.value.replace("_", " ")
        raise ValueError(f"{question}: a memory decodes by greedy search or sampling, num_beams is 1")
    if (generation_config.num_return_sequences or 1) != 1:
        raise ValueError("num_return_sequences must be 1: a memory is one stream")
    if stop_strings:
        stopping_criteria.append(StopStringCriteria(tokenizer, stop_strings))
    return DecodingSetup(logits_processor, stopping_criteria, bool(generation_config.do_sample))


def _names_length(settings: Mapping[str, Any]) -> bool:
    return any(settings.get(name) is not None for name in ("max_new_tokens", "max_length"))


def _stop_strings(model: Any, generation: dict[str, Any]) -> str | list[str] | None:
    """Return stop strings as transformers chooses them: the call's, or its generation_config's, or the model's."""
    if "stop_strings" in generation:
        chosen: str | list[str] | None = generation["stop_strings"]
        return chosen
    configs = (generation.get("generation_config"), getattr(model, "generation_config", None))
    return next((config.stop_strings for config in configs if config is not None and config.stop_strings), None)


class TokenChooser:
    """Chooses the tokens of one answer, one after the other, from the model's logits."""

    def __init__(self, decoding: DecodingSetup, prompt_ids: torch.Tensor, device: torch.device) -> None:
        self._decoding = decoding
        self._sequence = prompt_ids[None].to(device)

    @torch.no_grad()  # a processor may ask the model, as guidance does
    def next(self, logits: torch.Tensor) -> tuple[int, FinishReason | None]:
        """Return the token behind one with these logits [1, V], and why the answer ends there; None: it does not."""
        decoding = self._decoding
        scores = decoding.processors(self._sequence, logits.float())
        if decoding.sample:
            token = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)[0]
        else:
            token = scores.argmax(dim=-1)
        return self._chosen(token, scores)

    @torch.no_grad()
    def take(self, token: int, logits: torch.Tensor) -> tuple[int, FinishReason | None]:
        """Return a token that nothing else may stand in place of, and why the answer ends there, as `next` does."""
        return self._chosen(torch.tensor([token], device=logits.device), logits.float())

    def _chosen(self, token: torch.Tensor, scores: torch.Tensor) -> tuple[int, FinishReason | None]:
        self._sequence = torch.cat([self._sequence, token[None]], dim=-1)
        stopped = [criterion(self._sequence, scores).all() for criterion in self._decoding.stops]
        # The one wait for the device that a token takes.
        chosen, *stops = torch.stack([token[0], *(stop.to(token) for stop in stopped)]).tolist()
        return chosen, _reason_to_stop(self._decoding.stops, stops)


def _reason_to_stop(stops: Any, stopped: Sequence[int]) -> FinishReason | None:
    """Return the reason of the criteria that stopped, in transformers' order: own ends, then length or time."""
    reasons: set[FinishReason] = set()
    for criterion, stop in zip(stops, stopped, strict=True):
        if stop and isinstance(criterion, MaxLengthCriteria):
            reasons.add("length")
        elif stop:
            reasons.add("time" if isinstance(criterion, MaxTimeCriteria) else "stop")
    order: tuple[FinishReason, ...] = ("stop", "length", "time")
    return next((reason for reason in order if reason in reasons), None)

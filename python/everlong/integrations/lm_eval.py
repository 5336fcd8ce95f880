"""lm-eval: the model `everlong`, which reads a prompt's text into a memory and is asked its question.

The text of a prompt is all but its question: `split` tells them apart. A prompt that fits the frame is computed as the
model alone computes it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from everlong.config import FrameConfig, MemoryConfig
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.generation.memory_model import MemoryModel
from everlong.integrations.exclusive import before_stops
from everlong.integrations.extras import missing
from everlong.models import load
from everlong.text.encoding import encode
from everlong.text.prompt import start_ids

try:
    import lm_eval.models  # noqa: F401  # registered before ours: a registry that is not empty is not filled later
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise missing(error, "lm_eval") from error

NEW_TOKENS = 256  # of an answer whose task says nothing, as in lm-eval
_CHAT = "\x02chat\x03"  # what a prompt begins with that is to be a user's turn
_ASKS = re.compile(r"\n[^\S\n]*(?:question|query|q)[^\S\n]*\d*[^\S\n]*:", re.IGNORECASE)
_ROWS = 512  # tokens whose logits are held at once


def split(prompt: str, most: int) -> tuple[str, str]:
    """Return a prompt's text and its question, which is at most its last `most` characters.

    The question begins with the last line "Question:", else with the last paragraph, else with the last line. What is
    blank at the end belongs to it.
    """
    said = len(prompt.rstrip())
    first = max(0, len(prompt) - most)
    asks = [found.start() + 1 for found in _ASKS.finditer(prompt, first)]
    breaks = [at + len(mark) for mark in ("\n\n", "\n") if (at := prompt.rfind(mark, first, said)) >= 0]
    place = (asks[-1:] + breaks or [first if first > 0 else 0])[0]
    return prompt[:place], prompt[place:]


def config_of(frame_tokens: int | None, settings: str = "") -> MemoryConfig:
    """Return a config for a frame of so many tokens; `settings` as `--set` takes them, with ; between."""
    default = FrameConfig()
    tokens = frame_tokens or default.tokens
    made = MemoryConfig.fitting(tokens)
    if tokens > default.tokens:
        more = tokens - default.tokens
        made = made.changed(frame={"tokens": tokens, "rolling_tokens": default.rolling_tokens + more})
    return made.with_settings(filter(None, settings.split(";")))


@register_model("everlong")
class EverlongLM(LM):
    """`lm_eval --model everlong --model_args pretrained=NAME,frame_tokens=4096`."""

    def __init__(
        self,
        pretrained: str = "smollm2",
        frame_tokens: int | None = None,
        settings: str = "",
        question_characters: int = 2000,
        pack: str | None = "auto",
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int | str = 1,
        **args: Any,
    ) -> None:
        """`batch_size` is 1, whatever is given. `settings`: those of `MemoryConfig.with_settings`, with ; between.

        `max_batch_size` of lm-eval's command line is passed over. Other arguments are those of `everlong.models.load`.
        """
        super().__init__()
        args.pop("max_batch_size", None)
        if device is not None and (torch.cuda.is_available() or not device.startswith("cuda")):
            args["device_map"] = device  # lm-eval's command line says cuda:0 of its own
        self.model, self.tokenizer = load(pretrained, dtype=dtype, **args)
        self._name, self._most, self._pack = pretrained, question_characters, pack
        self._config = config_of(frame_tokens, settings)
        self._open: tuple[str, MemoryModel] | None = None  # a text, and the memory that has read it

    # --- what lm-eval asks of every model

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return answers, greedy ones unless a task samples, up to what ends them."""
        answers = []
        for prompt, args in self._with_progress(requests, disable_tqdm=disable_tqdm):
            stops, generation = _generation(args)
            with self.reading(prompt) as (mm, question, chat):
                answer = mm.generate(question, chat=chat, remember=False, **generation)
            answers.append("".join(before_stops([answer.text], stops)))
            self.cache_hook.add_partial("generate_until", (prompt, args), answers[-1])
        return answers

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return how likely each continuation is after its prompt, and whether it is the greedy one."""
        found = []
        for prompt, continuation in self._with_progress(requests, disable_tqdm=disable_tqdm):
            if prompt:
                found.append(self._likelihood(prompt, continuation))
            else:
                total, greedy = self._rolled(continuation)
                found.append((total, greedy))
            self.cache_hook.add_partial("loglikelihood", (prompt, continuation), found[-1])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return how likely each text is, token by token, as a memory reads it. Nothing comes back meanwhile."""
        found = [self._rolled(text)[0] for (text,) in self._with_progress(requests, disable_tqdm=disable_tqdm)]
        for request, total in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return found

    @property
    def tokenizer_name(self) -> str:
        """The name of the model, which is its tokenizer's, too."""
        return self._name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the tokenizer's own template."""
        return str(getattr(self.tokenizer, "chat_template", "") or "")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return all messages as one text. It is told apart as any prompt, and its question asked as a user's turn."""
        return _CHAT + "\n\n".join(turn["content"] for turn in chat_history)

    # --- how it is done

    def _with_progress(self, requests: Sequence[Any], *, disable_tqdm: bool) -> Iterator[Any]:
        """Yield the arguments of requests, with a bar."""
        from tqdm.auto import tqdm

        try:
            yield from (request.args for request in tqdm(requests, desc="everlong", disable=disable_tqdm))
        finally:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _new(self) -> MemoryModel:
        return MemoryModel(self.model, self.tokenizer, None, self._config, pack=self._pack)

    @contextlib.contextmanager
    def reading(self, prompt: str) -> Iterator[tuple[MemoryModel, str, bool]]:
        """Give the memory of a prompt's text, its question, and whether that is a user's turn.

        Prompts with one text, one after the other, are asked of one memory.
        """
        chat = prompt.startswith(_CHAT) and bool(getattr(self.tokenizer, "chat_template", None))
        text, question = split(prompt.removeprefix(_CHAT), self._most)
        if self._open is None or self._open[0] != text:
            self._close()
            mm = self._new()
            self._open = (text, mm)
            if text.strip():
                mm.read(text, source="prompt")
        yield self._open[1], question, chat

    def _likelihood(self, prompt: str, continuation: str) -> tuple[float, bool]:
        with self.reading(prompt) as (mm, question, chat):
            blank = question[len(question.rstrip()) :]
            question, continuation = question.rstrip() or question, blank + continuation
            question_ids = encode(self.tokenizer, question)
            ids = encode(self.tokenizer, question + continuation)[len(question_ids) :] if not chat else None
            forced = _ForcedTokens(encode(self.tokenizer, continuation) if ids is None else ids)
            generation = {**AS_MEASURED, "max_new_tokens": len(forced.ids), "eos_token_id": None}
            mm.generate(question, chat=chat, remember=False, logits_processor=[forced], **generation)
        return forced.total, forced.greedy

    @torch.no_grad()
    def _rolled(self, text: str) -> tuple[float, bool]:
        """Return how likely a text is behind what begins every text, or else behind an end token."""
        begin = start_ids(self.tokenizer) or [self.tokenizer.bos_token_id or self.tokenizer.eos_token_id or 0]
        total, greedy = 0.0, True
        with self._new() as mm:
            last = mm.frame.extend(torch.tensor(begin, device="cpu"), "prompt")[-1:].float()
            for ids in torch.split(encode(self.tokenizer, text), _ROWS):
                rows = mm.frame.extend(ids, "read", logits=True).float()
                before, last = torch.cat([last, rows[:-1]]), rows[-1:]
                wanted = ids.to(before.device)
                total += float(torch.log_softmax(before, dim=-1).gather(1, wanted[:, None]).double().sum())
                greedy &= bool((before.argmax(dim=-1) == wanted).all())
        return total, greedy


class _ForcedTokens:
    """A logits processor that lets only given ids [n] be said, one after the other, and notes how likely each was."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids.tolist()
        self.total, self.greedy, self._next = 0.0, True, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        wanted = self.ids[self._next]
        self._next += 1
        self.total += float(torch.log_softmax(scores.float(), dim=-1)[0, wanted])
        self.greedy &= int(scores[0].argmax()) == wanted
        only = torch.full_like(scores, -torch.inf)
        only[:, wanted] = 0.0
        return only


def _generation(args: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return what ends an answer, and the arguments of `generate`, of those of a task."""
    further = dict(args)
    until = further.pop("until", [])
    stops = [one for one in ([until] if isinstance(until, str) else until) if one]
    limit = further.pop("max_gen_toks", further.pop("max_new_tokens", NEW_TOKENS))
    sample = bool(further.pop("do_sample", False))
    if not sample:
        for name in ("temperature", "top_p", "top_k"):
            further.pop(name, None)
    how: dict[str, Any] = {**AS_MEASURED, **further, "do_sample": sample, "max_new_tokens": limit}
    return stops, {**how, "stop_strings": stops} if stops else how

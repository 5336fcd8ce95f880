"""The attention that the tokens of blocks receive, computed once and kept in a folder: what the Trimmer learns from.

For every token of a stream's blocks (corpora/attended.py) its states are kept. So are logarithms of the attention that
it receives, as a mean over layers (TARGETS):

- *repeated*: the largest of any head while its block is repeated behind itself (KVzip, arXiv 2505.23416; KVzap,
  2601.07891);
- *continued*: the mass from the last tokens of the tail, which are none of its neighbours;
- *asked*: the largest from questions about its block and their answers; NaN where there are no questions.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from everlong.frame.taps import side_by_side
from everlong.models.attention_stats import AttentionStats, AttentionWindow
from everlong.models.trimmed_cache import go_on, read_whole
from everlong.text.encoding import encode
from everlong.text.prompt import Prompt, build_prompt
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.record import Question, Record, block_of
from everlong_lab.corpora.trimming import CONTINUED_TOKENS
from everlong_lab.training.states import KeptRows, as_floats, digest_of, require_same_reading

TARGETS = ("repeated", "continued", "asked")
_LEAST = 1e-6  # least attention, before the logarithm


@dataclasses.dataclass(frozen=True)
class AttendedText:
    text: Record
    states: torch.Tensor  # bf16 [blocks * BLOCK_TOKENS, width] of its blocks
    targets: torch.Tensor  # fp32 [blocks * BLOCK_TOKENS, len(TARGETS)]


def _bytes_of(tokenizer: Any, texts: Sequence[Record]) -> Iterator[bytes]:
    for text in texts:
        yield text.ids.numpy().tobytes()
        for one in text.questions:
            prompt, answer = _prompted(tokenizer, one)
            yield prompt.ids.numpy().tobytes() + answer.numpy().tobytes()


def attended_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[Record],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[AttendedText]:
    """Return states and targets of all texts. What `folder` lacks is computed and kept there.

    Only one process at a time may use the folder. A run that was cut short goes on where it stopped. Raises
    EverlongError for a folder of other texts, another model or other layers. `progress(what, done, of)` is called after
    each text.
    """
    require_same_reading(folder, model, layers, texts=digest_of(_bytes_of(tokenizer, texts)))
    width = len(layers) * model.config.get_text_config(decoder=True).hidden_size
    with KeptRows(folder / "blocks", width + len(TARGETS)) as kept:
        for done, text in enumerate(texts):
            if done == len(kept.marks):
                kept.add(torch.cat(attended(model, tokenizer, text, layers), dim=-1))
                if progress is not None:
                    progress("blocks", done + 1, len(texts))
        rows, marks = kept.all_rows(), list(kept.marks)
    found = []
    for text, mark in zip(texts, marks, strict=False):
        both = as_floats(rows[slice(*mark)])
        found.append(AttendedText(text, both[:, :width], both[:, width:].float()))
    return found


@torch.no_grad()
def attended(model: Any, tokenizer: Any, text: Record, layers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states [blocks * BLOCK_TOKENS, width] fp32 and targets [..., len(TARGETS)] of one text."""
    end = SINK_TOKENS + text.blocks * BLOCK_TOKENS
    tail = len(text.ids) - CONTINUED_TOKENS
    watch = AttentionWindow((max(end, tail), len(text.ids)), (SINK_TOKENS, end))
    with AttentionStats(model, {"continued": watch}) as watched:
        read = read_whole(model, text.ids, layers)
    cache = read.cache
    states = side_by_side(read.hidden, layers)[SINK_TOKENS:end].float().cpu()
    targets = torch.full((end - SINK_TOKENS, len(TARGETS)), torch.nan)
    targets[:, 1] = logs(watched.mass("continued") / (len(text.ids) - max(end, tail)))
    for block in range(text.blocks):
        own = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        targets[own, 0] = logs(repeated(model, cache, text.ids, block)[0])
        question = [one for one in text.questions if block_of(one) == block]
        if question:
            targets[own, 2] = logs(
                torch.stack([_of_question(model, tokenizer, cache, one) for one in question]).amax(dim=0)
            )
    return states, targets


def block_and_sinks(block: int) -> torch.Tensor:
    """Return int64 [1, SINK_TOKENS + BLOCK_TOKENS]: the tokens of a stream that are kept where a block stands alone."""
    first = SINK_TOKENS + block * BLOCK_TOKENS
    return torch.cat([torch.arange(SINK_TOKENS), torch.arange(first, first + BLOCK_TOKENS)])[None]


def repeated(model: Any, cache: Any, ids: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention [BLOCK_TOKENS], largest and mass, to a block's tokens while the block is repeated behind itself.

    This is KVzip's, without a prompt.
    """
    kept = block_and_sinks(block)
    again = ids[kept[0, SINK_TOKENS:]]
    with AttentionStats(
        model, {"": AttentionWindow((0, len(again)), (SINK_TOKENS, SINK_TOKENS + BLOCK_TOKENS))}
    ) as watched:
        go_on(model, cache, kept, again[None], int(kept[0, -1]) + 1, logits_to_keep=1)
    return watched.largest(""), watched.mass("")


def _of_question(model: Any, tokenizer: Any, cache: Any, question: Question) -> torch.Tensor:
    kept = block_and_sinks(block_of(question))
    prompt, answer = _prompted(tokenizer, question)
    ids = torch.cat([prompt.ids, answer])
    watch = AttentionWindow((prompt.question.start, len(ids) - 1), (SINK_TOKENS, SINK_TOKENS + BLOCK_TOKENS))
    with AttentionStats(model, {"": watch}) as watched:
        go_on(model, cache, kept, ids[None], int(kept[0, -1]) + 1, logits_to_keep=1)
    return watched.largest("")


def _prompted(tokenizer: Any, question: Question) -> tuple[Prompt, torch.Tensor]:
    return build_prompt(tokenizer, question.words), encode(tokenizer, question.answers[0])


def logs(attention: torch.Tensor) -> torch.Tensor:
    return attention.float().cpu().clamp(min=_LEAST).log()

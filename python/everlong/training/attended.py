"""What the tokens of blocks are attended by, computed once and kept in a folder: what the Trimmer learns from.

A sample is a stream: sinks, blocks, a tail. Of every token of the blocks are kept its states, and logarithms of the
attention that it receives, mean over layers (TARGETS):

- *repeated*: the largest of any head while its block is repeated behind itself (KVzip, arXiv 2505.23416; KVzap,
  2601.07891);
- *continued*: the mass from the last tokens of the tail, which are none of its neighbours;
- *asked*: the largest from questions about its block and their answers; NaN where nobody asks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from everlong.data import Book
from everlong.frame.taps import side_by_side
from everlong.models.cut_cache import go_on, read_whole
from everlong.models.watched import Watch, WatchedAttention
from everlong.text.encoding import encode
from everlong.text.prompt import build_prompt, start_ids
from everlong.training.data import Pairs, Split
from everlong.training.planted import draw_planted, with_statements
from everlong.training.states import KeptRows, as_floats, require_same

SINK_TOKENS = 4  # what a stream begins with, which is always kept
BLOCK_TOKENS = 512
TARGETS = ("repeated", "continued", "asked")
_BLOCKS = 2
_TAIL_TOKENS = 384
_CONTINUED_TOKENS = 128  # the last of the tail
_FACTS = 3  # of a block of a book, where there are any
_PLANTED_SHARE = 0.5  # of the blocks of books
_QUESTIONS = 6  # about a block of a story, at most
_LEAST = 1e-6  # of an attention, before the logarithm
_EDGE = 0.06  # of a book at either end: contents, notes, licences


@dataclasses.dataclass(frozen=True)
class Asked:
    block: int
    prompt: torch.Tensor  # int64 [n] a question as a turn
    question: int  # first token of it in the prompt
    answer: torch.Tensor  # int64 [m]


@dataclasses.dataclass(frozen=True)
class TrimText:
    """A stream to learn from."""

    name: str
    origin: Literal["book", "story"]
    split: Split
    ids: torch.Tensor  # int64 [SINK_TOKENS + blocks * BLOCK_TOKENS + tail]
    asked: tuple[Asked, ...]

    @property
    def blocks(self) -> int:
        return (len(self.ids) - SINK_TOKENS) // BLOCK_TOKENS


@dataclasses.dataclass(frozen=True)
class AttendedText:
    text: TrimText
    states: torch.Tensor  # bf16 [blocks * BLOCK_TOKENS, width] of its blocks
    targets: torch.Tensor  # fp32 [blocks * BLOCK_TOKENS, len(TARGETS)]


def trim_texts(
    tokenizer: Any, books: Sequence[Book], pairs: Pairs | None, *, samples: int, stories: int, seed: int = 0
) -> list[TrimText]:
    """`samples` streams of books, half of whose blocks have planted facts, and of so many stories one each, mixed.

    One in eight of either is held out for fitting.
    """
    random = np.random.default_rng(seed)
    texts = list(_of_books(tokenizer, books, samples, random))
    texts += _of_stories(tokenizer, pairs, stories, random) if pairs is not None and stories > 0 else []
    return [texts[at] for at in random.permutation(len(texts))]


def _of_books(tokenizer: Any, books: Sequence[Book], count: int, random: np.random.Generator) -> Iterator[TrimText]:
    tokens = SINK_TOKENS + _BLOCKS * BLOCK_TOKENS + _TAIL_TOKENS
    order = [books[at] for at in random.permutation(len(books))]
    for number in range(count):
        book = order[number % len(order)]
        low, high = int(len(book.text) * _EDGE), int(len(book.text) * (1 - _EDGE)) - 8 * tokens
        at = int(random.integers(low, max(low + 1, high)))
        begin = book.text.find("\n\n", at) + 2
        text = encode(tokenizer, book.text[begin : begin + 8 * tokens])
        pieces, asked = [sinks_of(tokenizer, text)], list[Asked]()
        text = text[SINK_TOKENS:]
        for block in range(_BLOCKS):
            facts = draw_planted(random, _FACTS) if random.random() < _PLANTED_SHARE else []
            piece, _, used = with_statements(tokenizer, text, [fact.statement for fact in facts], BLOCK_TOKENS, random)
            pieces.append(piece)
            text = text[used:]
            asked += [_asked(tokenizer, block, fact.question, fact.answer) for fact in facts]
        pieces.append(text[:_TAIL_TOKENS])
        yield TrimText(
            f"{book.name} {begin}", "book", "fit" if number % 8 == 7 else "train", torch.cat(pieces), tuple(asked)
        )


def _of_stories(tokenizer: Any, pairs: Pairs, count: int, random: np.random.Generator) -> list[TrimText]:
    stories = [
        at for at, text in enumerate(pairs.texts) if text.origin == "fairytale" and text.split in ("train", "fit")
    ]
    texts: list[TrimText] = []
    for at in random.permutation(stories):
        if len(texts) == count:
            break
        ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
        blocks = (len(ids) - SINK_TOKENS - _CONTINUED_TOKENS) // BLOCK_TOKENS
        if blocks < 1:
            continue
        blocks = min(blocks, _BLOCKS)
        ids = ids[: SINK_TOKENS + blocks * BLOCK_TOKENS + _TAIL_TOKENS]
        asked = []
        for block in range(blocks):
            own = questions_of_block(pairs, int(at), spans, block)
            for question in (own[k] for k in random.permutation(len(own))[:_QUESTIONS]):
                asked.append(
                    _asked(tokenizer, block, pairs.questions[question].words, pairs.questions[question].answers[0])
                )
        texts.append(
            TrimText(pairs.texts[at].name, "story", "fit" if len(texts) % 8 == 7 else "train", ids, tuple(asked))
        )
    return texts


def excerpt(tokenizer: Any, book: Book, tokens: int, random: np.random.Generator) -> torch.Tensor:
    """Ids [tokens] of a book from a paragraph's beginning, sinks first."""
    low, high = int(len(book.text) * _EDGE), int(len(book.text) * (1 - _EDGE)) - 8 * tokens
    at = int(random.integers(low, max(low + 1, high)))
    begin = book.text.find("\n\n", at) + 2
    text = encode(tokenizer, book.text[begin : begin + 8 * tokens])
    ids = torch.cat([sinks_of(tokenizer, text), text[SINK_TOKENS:]])[:tokens]
    if len(ids) < tokens:
        raise ValueError(f"{book.name} is too short for {tokens} tokens from one place on")
    return ids


def sinks_of(tokenizer: Any, text: torch.Tensor) -> torch.Tensor:
    """What a stream begins with: what the tokenizer puts before every text, and the first of the text."""
    start = torch.tensor(start_ids(tokenizer), dtype=torch.int64)
    return torch.cat([start, text])[:SINK_TOKENS]


def story_tokens(tokenizer: Any, sections: Sequence[str]) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """A story as a stream, and where its sections stand in it."""
    pieces, spans, length = [torch.tensor(start_ids(tokenizer), dtype=torch.int64)], [], len(start_ids(tokenizer))
    for section in sections:
        piece = encode(tokenizer, section + "\n\n")
        pieces.append(piece)
        spans.append((length, length + len(piece)))
        length += len(piece)
    return torch.cat(pieces), spans


def questions_of_block(pairs: Pairs, text: int, spans: Sequence[tuple[int, int]], block: int) -> list[int]:
    """Questions about a text that are answered by sections all of which lie in one block of its stream."""
    begin = SINK_TOKENS + block * BLOCK_TOKENS
    inside = {
        at
        for at, (first, last) in enumerate(spans)
        if first >= begin - SINK_TOKENS * (block == 0) and last <= begin + BLOCK_TOKENS
    }
    return [
        at
        for at, question in enumerate(pairs.questions)
        if question.text == text and question.pieces and question.answers and inside.issuperset(question.pieces)
    ]


def _require_same(folder: pathlib.Path, model: Any, texts: Sequence[TrimText], layers: tuple[int, ...]) -> None:
    from everlong.models.fingerprint import weights_fingerprint

    digest = hashlib.sha256()
    for text in texts:
        for ids in (text.ids, *(part for one in text.asked for part in (one.prompt, one.answer))):
            digest.update(ids.numpy().tobytes())
    require_same(folder, {"weights": weights_fingerprint(model), "layers": list(layers), "texts": digest.hexdigest()})


def _asked(tokenizer: Any, block: int, question: str, answer: str) -> Asked:
    prompt = build_prompt(tokenizer, question)
    return Asked(block, prompt.ids, prompt.question.start, encode(tokenizer, answer))


def attended_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[TrimText],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[AttendedText]:
    """States and targets of all texts, from `folder` as far as they are there, the rest computed and kept there.

    One process at a time. A run that was cut short goes on where it stopped. EverlongError for a folder of other texts,
    another model or other layers. `progress(what, done, of)` is called after each text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layers = tuple(layers)
    _require_same(folder, model, texts, layers)
    width = len(layers) * model.config.get_text_config(decoder=True).hidden_size
    with KeptRows(folder / "blocks", width + len(TARGETS)) as kept:
        for done, text in enumerate(texts):
            if done == len(kept.marks):
                kept.add(torch.cat(attended(model, text, layers), dim=-1))
                if progress is not None:
                    progress("blocks", done + 1, len(texts))
        rows, marks = kept.all_rows(), list(kept.marks)
    found = []
    for text, mark in zip(texts, marks, strict=False):
        both = as_floats(rows[slice(*mark)])
        found.append(AttendedText(text, both[:, :width], both[:, width:].float()))
    return found


@torch.no_grad()
def attended(model: Any, text: TrimText, layers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """States [blocks * BLOCK_TOKENS, width] fp32 and targets [..., len(TARGETS)] of one text."""
    end = SINK_TOKENS + text.blocks * BLOCK_TOKENS
    tail = len(text.ids) - _CONTINUED_TOKENS
    watch = Watch((max(end, tail), len(text.ids)), (SINK_TOKENS, end))
    with WatchedAttention(model, {"continued": watch}) as watched:
        read = read_whole(model, text.ids, layers)
    cache = read.cache
    states = side_by_side(read.hidden, layers)[SINK_TOKENS:end].float().cpu()
    targets = torch.full((end - SINK_TOKENS, len(TARGETS)), torch.nan)
    targets[:, 1] = logs(watched.mass("continued") / (len(text.ids) - max(end, tail)))
    for block in range(text.blocks):
        own = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        targets[own, 0] = logs(repeated(model, cache, text.ids, block)[0])
        asked = [one for one in text.asked if one.block == block]
        if asked:
            targets[own, 2] = logs(torch.stack([_of_question(model, cache, one) for one in asked]).amax(dim=0))
    return states, targets


def block_and_sinks(block: int) -> torch.Tensor:
    """Int64 [1, SINK_TOKENS + BLOCK_TOKENS]: what of a stream is kept where a block stands alone."""
    first = SINK_TOKENS + block * BLOCK_TOKENS
    return torch.cat([torch.arange(SINK_TOKENS), torch.arange(first, first + BLOCK_TOKENS)])[None]


def repeated(model: Any, cache: Any, ids: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [BLOCK_TOKENS], largest and mass, that the tokens of a block of a stream get while it is repeated
    behind itself: KVzip's, without a prompt.
    """
    kept = block_and_sinks(block)
    again = ids[kept[0, SINK_TOKENS:]]
    with WatchedAttention(model, {"": Watch((0, len(again)), (SINK_TOKENS, SINK_TOKENS + BLOCK_TOKENS))}) as watched:
        go_on(model, cache, kept, again[None], int(kept[0, -1]) + 1, logits_to_keep=1)
    return watched.largest(""), watched.mass("")


def _of_question(model: Any, cache: Any, asked: Asked) -> torch.Tensor:
    kept = block_and_sinks(asked.block)
    ids = torch.cat([asked.prompt, asked.answer])
    watch = Watch((asked.question, len(ids) - 1), (SINK_TOKENS, SINK_TOKENS + BLOCK_TOKENS))
    with WatchedAttention(model, {"": watch}) as watched:
        go_on(model, cache, kept, ids[None], int(kept[0, -1]) + 1, logits_to_keep=1)
    return watched.largest("")


def logs(attention: torch.Tensor) -> torch.Tensor:
    return attention.float().cpu().clamp(min=_LEAST).log()

"""The data that an adapter learns from: questions to a memory, and the model's own answers on the right passage alone.

The memory holds stories, with passages of other sets planted between their sections. So what answers a question stands
in foreign text, as it does in a user's memory. The adapter is taught the model's own greedy answer with nothing but the
passage before it (context distillation; Askell et al. 2021, Snell et al. 2022). So the model's style stays, and no
answer has to be labelled.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import safetensors.torch
import torch

from everlong.generation.memory_model import MemoryModel
from everlong.text.prompt import passage_ids, start_ids
from everlong_lab.corpora.pairs import Pairs

Span = tuple[int, int]
Progress = Callable[[str, int, int], None]

_PLANTED_SHARE = 0.45  # share of a story's sections that a planted passage follows
_MOST_OF_A_PASSAGE = 2  # questions to one planted passage
_ROWS = 24  # questions answered at a time
_NEW_TOKENS = 28  # longest answer; only its beginning counts
_PROBABILITIES = 16  # likeliest tokens kept at each place; the others have almost no probability


@dataclasses.dataclass(frozen=True)
class Example:
    """A question and the passage that answers it: its words, and its span of tokens in the memory's stream."""

    words: str
    passage: str
    span: Span
    source: str


@dataclasses.dataclass(frozen=True)
class TeacherAnswer:
    """What the model answers on the right passage: ids [n], and the likeliest tokens at each place."""

    ids: torch.Tensor  # [n] int64
    tokens: torch.Tensor  # [n, 16] int64
    log_probabilities: torch.Tensor  # [n, 16] fp32


def read_examples(
    mm: MemoryModel, pairs: Pairs, *, tokens: int, seed: int, progress: Progress | None = None
) -> list[Example]:
    """Read `tokens` tokens of stories with planted passages into the memory, or all there are; return the questions.

    Only the split "train" is read. What an earlier call with the same arguments has read is not read again.
    """
    random = np.random.default_rng(seed)
    questions: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for question in pairs.questions:
        questions.setdefault(question.text, []).append((question.words, question.pieces))
    train = [at for at, text in enumerate(pairs.texts) if text.split == "train" and at in questions]
    stories = [at for at in train if len(pairs.texts[at].pieces) > 1]
    planted = [at for at in train if len(pairs.texts[at].pieces) == 1]
    order, spare = random.permutation(stories), list(random.permutation(planted))
    examples: list[Example] = []
    done = 0
    for story in order:
        if done >= tokens:
            break
        pieces: list[tuple[str, list[str]]] = []
        for number, words in enumerate(pairs.texts[story].pieces):
            pieces.append((words, [asked for asked, answers in questions[story] if answers == (number,)]))
            if spare and random.random() < _PLANTED_SHARE:
                other = int(spare.pop())
                pieces.append(
                    (pairs.texts[other].pieces[0], [asked for asked, _ in questions[other]][:_MOST_OF_A_PASSAGE])
                )
        source = f"{story} {pairs.texts[story].name}"
        examples += _read(mm, source, pieces)
        done = max(block.span[1] for block in mm.memory.blocks(source))
        if progress is not None:
            progress("tokens read", min(done, tokens), tokens)
    mm.searcher.settle()
    return examples


def _read(mm: MemoryModel, source: str, pieces: Sequence[tuple[str, Sequence[str]]]) -> list[Example]:
    """Read the pieces as one text; return the questions to each piece, with its span of tokens."""
    texts = [f"{words}\n\n" for words, _ in pieces]
    mm.read("".join(texts), source=source)
    first = max(min(block.span[0] for block in mm.memory.blocks(source)), len(start_ids(mm.tokenizer)))
    encoded = mm.tokenizer("".join(texts), add_special_tokens=False, return_offsets_mapping=True)
    starts = np.asarray([begin for begin, _ in encoded["offset_mapping"]])
    examples, at = [], 0
    for text, (words, asked) in zip(texts, pieces, strict=True):
        begin, end = np.searchsorted(starts, [at, at + len(text)])
        at += len(text)
        examples += [Example(one, words, (first + int(begin), first + int(end)), source) for one in asked]
    return examples


@torch.no_grad()
def taught_answers(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    folder: pathlib.Path,
    *,
    progress: Progress | None = None,
) -> list[TeacherAnswer]:
    """Return what the model answers to each question on its passage alone.

    The answers are kept in `folder`, so that a call that was cut short goes on where it stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [passage_ids(tokenizer, example.passage, example.words) for example in examples]
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))  # rows of about equal length need little padding
    found: dict[int, TeacherAnswer] = {}
    for begin in range(0, len(order), _ROWS):
        some = order[begin : begin + _ROWS]
        file = folder / f"answers-{begin:06d}.safetensors"
        named = json.dumps([rows[at] for at in some])
        kept = _load_answers(file, named)
        if kept is None:
            kept = _answers(model, tokenizer, [rows[at] for at in some])
            _keep(file, named, kept)
        found.update(zip(some, kept, strict=True))
        if progress is not None:
            progress("answers on the right passage", len(found), len(order))
    return [found[at] for at in range(len(rows))]


def _answers(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[TeacherAnswer]:
    longest = max(map(len, rows))
    end = tokenizer.eos_token_id
    fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
    ids = torch.full((len(rows), longest), fill)
    mask = torch.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, longest - len(row) :] = torch.tensor(row)
        mask[at, longest - len(row) :] = 1
    out = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=_NEW_TOKENS,
        do_sample=False,
        repetition_penalty=1.0,
        pad_token_id=fill,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(out.logits, dim=1).float().log_softmax(-1).topk(_PROBABILITIES, dim=-1)
    taught = []
    for at in range(len(rows)):
        said = out.sequences[at, longest:].cpu()
        ended = (said == end).nonzero()
        n = int(ended[0]) + 1 if len(ended) else len(said)
        taught.append(TeacherAnswer(said[:n], best.indices[at, :n].cpu(), best.values[at, :n].cpu()))
    return taught


def _keep(file: pathlib.Path, named: str, taught: Sequence[TeacherAnswer]) -> None:
    tensors = {
        "lengths": torch.tensor([len(one.ids) for one in taught]),
        "ids": torch.cat([one.ids for one in taught]),
        "tokens": torch.cat([one.tokens for one in taught]),
        "log_probabilities": torch.cat([one.log_probabilities for one in taught]),
    }
    beside = file.with_name(file.name + ".new")
    safetensors.torch.save_file(tensors, beside, metadata={"asked": named})
    beside.replace(file)


def _load_answers(file: pathlib.Path, named: str) -> list[TeacherAnswer] | None:
    """Return the stored answers, or None where the file is missing or holds answers to other rows."""
    if not file.exists():
        return None
    with safetensors.safe_open(file, "pt") as there:
        if (there.metadata() or {}).get("asked") != named:
            return None
        lengths = there.get_tensor("lengths").tolist()
        parts = [there.get_tensor(name).split(lengths) for name in ("ids", "tokens", "log_probabilities")]
    return [TeacherAnswer(*one) for one in zip(*parts, strict=True)]

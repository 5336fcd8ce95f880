"""Memories of texts with chains of facts (corpora/walks.py), to walk through.

They are memories of text alone. They are searched by words, and by the vectors of the model's towers where it has some.
States are computed once and kept in a folder.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.frame.taps import side_by_side
from everlong.models.early_exit import early_exit_states
from everlong.models.pack import Pack
from everlong.text.prompt import Prompt, build_prompt
from everlong_lab.corpora.record import Record
from everlong_lab.training.states import KeptRows, as_floats, digest_of, require_same

if TYPE_CHECKING:
    from everlong.parts.towers.model import LateTowers

PAGE_TOKENS, BLOCK_TOKENS = 64, 512
NEIGHBOURS = 1  # of a page that is found
_RUN_TOKENS = 2048
_ANY_WIDTH = 1  # width of the rows where there are no towers, and so no rows

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class WalkQuestion:
    hops: int  # number of statements that it needs
    token_ids: npt.NDArray[np.int32]  # [T]
    meaning: Floats | None  # [T, dimension], as LateTowers.query_vectors gives it
    gold: tuple[_core.PageRef, ...]  # for each statement the page that has most of it

    def request(self) -> dict[str, Any]:
        """Return its arguments for `core.search.find`."""
        by_meaning = {} if self.meaning is None else {"meaning_query": self.meaning}
        kinds = ["lexical", *(["meaning"] if by_meaning else [])]
        return {"token_ids": self.token_ids, **by_meaning, "kinds": kinds, "neighbours": NEIGHBOURS}


@dataclasses.dataclass(frozen=True)
class WalkMemory:
    core: _core.Memory
    text: Record
    questions: tuple[WalkQuestion, ...]


def towers_of(pack: Pack | None) -> tuple[str, LateTowers] | None:
    """Return a pack's towers with the id of their part; None where it has none."""
    from everlong.parts.towers.model import TOWERS, LateTowers

    part = None if pack is None else pack.parts.get(TOWERS)
    return None if part is None else (part.id, LateTowers.of_part(part))


def read_walk_texts(
    model: Any,
    tokenizer: Any,
    towers: tuple[str, LateTowers] | None,
    texts: Sequence[Record],
    folder: pathlib.Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[WalkMemory]:
    """Return a memory in RAM for each text. `towers` come with the id of their part; None means words alone.

    Vectors come from `folder` as far as they are there; the others are computed and kept there. Raises EverlongError
    for a folder of other texts or towers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    read = (text.ids.numpy().tobytes() + json.dumps([one.words for one in text.questions]).encode() for text in texts)
    require_same(folder, {"texts": digest_of(read), "towers": "" if towers is None else towers[0]})
    width = _ANY_WIDTH if towers is None else towers[1].settings.dimension
    memories = []
    with KeptRows(folder / "pages", width) as pages, KeptRows(folder / "questions", width) as asked:
        for done, text in enumerate(texts):
            prompts = [build_prompt(tokenizer, one.words) for one in text.questions]
            vectors: npt.NDArray[np.int8] | None = None
            meanings: list[Floats | None] = [None] * len(prompts)
            if towers is not None:
                if done == len(pages.marks):
                    pages.add(_written(model, towers[1], text.ids))
                if done == len(asked.marks):
                    asked.add(torch.cat([_question(model, towers[1], prompt) for prompt in prompts]))
                vectors = _in_8_bits(pages.all_rows()[slice(*pages.marks[done])])
                rows = as_floats(asked.all_rows()[slice(*asked.marks[done])]).float()
                lengths = [len(prompt.ids[prompt.question]) for prompt in prompts]
                meanings = [np.ascontiguousarray(own.numpy()) for own in torch.split(rows, lengths)]
            if progress is not None:
                progress("texts", done + 1, len(texts))
            core = _memory_of(text, towers, vectors)
            questions = []
            for one, prompt, meaning in zip(text.questions, prompts, meanings, strict=True):
                gold = tuple(_page_of(core, span) for span in one.spans)
                token_ids = prompt.ids[prompt.question].numpy().astype(np.int32)
                questions.append(WalkQuestion(len(gold), token_ids, meaning, gold))
            memories.append(WalkMemory(core, text, tuple(questions)))
    return memories


def _in_8_bits(rows: npt.NDArray[np.uint16]) -> npt.NDArray[np.int8]:
    from everlong.parts.late_interaction import quantize_int8

    found: npt.NDArray[np.int8] = quantize_int8(as_floats(rows).float()).numpy()
    return found


@torch.no_grad()
def _written(model: Any, towers: LateTowers, ids: torch.Tensor) -> torch.Tensor:
    from everlong.parts.towers.model import means

    layers = towers.settings.layers
    runs = [side_by_side(early_exit_states(model, run, layers), layers) for run in torch.split(ids, _RUN_TOKENS)]
    return towers.written(means(torch.cat(runs).float().cpu(), PAGE_TOKENS, towers.settings.group_tokens))


@torch.no_grad()
def _question(model: Any, towers: LateTowers, prompt: Prompt) -> torch.Tensor:
    layers = towers.settings.layers
    states = side_by_side(early_exit_states(model, prompt.ids[: prompt.question.stop], layers), layers)
    return towers.query_vectors(states[prompt.question].float().cpu())


def _memory_of(
    text: Record, towers: tuple[str, LateTowers] | None, vectors: npt.NDArray[np.int8] | None
) -> _core.Memory:
    manifest = _core.Manifest(
        weights="w",
        rope="r",
        tokenizer="t",
        layers=0,
        kv_heads=0,
        head_dim=0,
        page_tokens=PAGE_TOKENS,
        codec="fp32",
    )
    core = _core.Memory.create(None, manifest)
    if towers is not None:
        core.index.set_meaning(towers[0], towers[1].settings.dimension, towers[1].settings.group_tokens)
    a_group = 1 if towers is None else towers[1].settings.group_tokens
    ids = text.ids.numpy().astype(np.int32)
    nothing = np.zeros(0, dtype=np.uint8)
    for begin in range(0, len(ids), BLOCK_TOKENS):
        block = ids[begin : begin + BLOCK_TOKENS]
        tensors = {}
        if towers is not None and vectors is not None:
            rows = vectors[begin // a_group : begin // a_group + -(-len(block) // a_group)]
            tensors = {f"meaning.{towers[0]}": np.ascontiguousarray(rows)}
        core.blocks.append(
            stream=0,
            begin=begin,
            end=begin + len(block),
            sink_tokens=0,
            source=text.name,
            created_at=float(begin),
            tags=[],
            token_ids=block,
            payload=nothing,
            tensors=tensors,
        )
    core.upkeep.flush()
    return core


def _page_of(core: _core.Memory, span: tuple[int, int]) -> _core.PageRef:
    """Return the page that has most of a statement."""
    pages = core.blocks.pages_of(0, *span)
    return max(pages, key=lambda page: min(page.end, span[1]) - max(page.begin, span[0]))

"""A frozen model's states of texts and questions, computed once and kept in a folder, as forward passes are what costs.

A text is read from its beginning. Short texts are read one after the other, as a book stands in a memory. Of its hidden
states the means of POOL_TOKENS neighbouring tokens are kept. A question is read as a user's turn. Most questions are
read behind some other text, as they are asked in a conversation. Every token of a question is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import pathlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch

from everlong.errors import EverlongError
from everlong.models.early_exit import early_exit_states
from everlong.text.encoding import encode
from everlong.text.prompt import Prompt, build_prompt
from everlong_lab.corpora.pairs import Pairs

_LOGGER = logging.getLogger("everlong")

POOL_TOKENS = 2
_RUN_TOKENS = 2048  # tokens of a run of short texts
_QUESTIONS_A_FORWARD = 24
_SHARE_BEHIND_TEXT = 0.6  # share of the questions' forward passes
_TEXT_BEFORE = (64, 128, 256)  # tokens of that text

Rows = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class States:
    """Rows of states, each with the layers side by side: width = layers * hidden size."""

    layers: tuple[int, ...]
    passages: npt.NDArray[np.uint16]  # [n, width] the bits of bf16
    questions: npt.NDArray[np.uint16]  # [m, width]
    pieces: tuple[tuple[Rows, ...], ...]  # rows of passages, by text and piece
    words: tuple[Rows, ...]  # rows of questions, by question
    row_tokens: int = POOL_TOKENS  # tokens that a row of passages stands for

    @property
    def width(self) -> int:
        return int(self.passages.shape[1])


class OfDetails(Protocol):
    """Passages as Detail Tokens, each passage by itself."""

    @property
    def id(self) -> str:
        """The id of what makes them."""

    @property
    def group_tokens(self) -> int:
        """How many tokens one of them stands for."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose states they are made of."""

    def rows(self, model: Any, ids: Sequence[torch.Tensor], states: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return [n, E] for pieces of ids that follow each other, whose states are [tokens, hidden size] by layer."""

    def count(self, tokens: int) -> int:
        """Return how many a passage of `tokens` tokens has."""


def as_floats(rows: npt.NDArray[np.uint16]) -> torch.Tensor:
    """Return rows of `States` as bf16."""
    return torch.from_numpy(np.array(rows).view(np.int16)).view(torch.bfloat16)


def middle_and_spread(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the middle of each number of rows [n, width], and half of the range of its middle two thirds; never 0.

    A mean would suffer from a few numbers of another size.
    """
    ordered = rows.sort(dim=0).values
    low, middle, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.1587, 0.5, 0.8413))
    return middle, (high - low).clamp(min=1e-4) / 2


def cached_states(
    model: Any,
    tokenizer: Any,
    pairs: Pairs,
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    details: OfDetails | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> States:
    """Return the states of all texts and questions. What `folder` lacks is computed and kept there.

    With `details`, passages are these. Only one process at a time may use the folder. A run that was cut short goes on
    where it stopped. Raises EverlongError for a folder of other texts, another model, layers or seed. `progress(what,
    done, of)` is called after each forward pass.
    """
    layers = tuple(layers)
    _require_same(folder, model, pairs, layers, seed, details)
    width = len(layers) * model.config.get_text_config(decoder=True).hidden_size
    random_ = random.Random(seed)

    runs = list(_runs(tokenizer, pairs))
    ids_of = [[encode(tokenizer, piece + "\n\n") for piece in text.pieces] for text in pairs.texts]
    pieces: list[tuple[Rows, ...]] = [()] * len(pairs.texts)
    own_width = width if details is None else model.get_input_embeddings().embedding_dim
    read_layers = layers if details is None else details.layers
    with KeptRows(folder / "passages", own_width) as kept:
        for done, run in enumerate(runs):
            if done == len(kept.marks):
                own_ids = [piece for text in run for piece in ids_of[text]]
                states = early_exit_states(model, torch.cat(own_ids), read_layers)
                if details is None:
                    kept.add(_pooled(torch.cat([states[layer] for layer in layers], dim=-1)))
                else:
                    kept.add(details.rows(model, own_ids, states))
                if progress is not None:
                    progress("texts", done + 1, len(runs))
            at = 0
            base = kept.marks[done][0]
            for text in run:
                spans = []
                for piece in ids_of[text]:
                    if details is None:
                        spans.append((base + at // POOL_TOKENS, base + -(-(at + len(piece)) // POOL_TOKENS)))
                        at += len(piece)
                    else:
                        spans.append((base + at, base + at + details.count(len(piece))))
                        at += details.count(len(piece))
                pieces[text] = tuple(spans)
        passages = kept.all_rows()

    order = list(range(len(pairs.questions)))
    random_.shuffle(order)
    forwards = [order[at : at + _QUESTIONS_A_FORWARD] for at in range(0, len(order), _QUESTIONS_A_FORWARD)]
    words: list[Rows] = [(0, 0)] * len(pairs.questions)
    with KeptRows(folder / "questions", width) as kept:
        for done, asked in enumerate(forwards):
            before = torch.zeros(0, dtype=torch.int64)
            if random_.random() < _SHARE_BEHIND_TEXT:
                run_ids = torch.cat([piece for text in random_.choice(runs) for piece in ids_of[text]])
                count = random_.choice(_TEXT_BEFORE)
                first = random_.randrange(max(1, len(run_ids) - count))
                before = run_ids[first : first + count]
            prompts = [build_prompt(tokenizer, pairs.questions[at].words) for at in asked]
            if done == len(kept.marks):
                kept.add(_of_questions(model, before, prompts, layers))
                if progress is not None:
                    progress("questions", done + 1, len(forwards))
            row = kept.marks[done][0]
            for at, prompt in zip(asked, prompts, strict=True):
                count = prompt.question.stop - prompt.question.start
                words[at] = (row, row + count)
                row += count
        questions = kept.all_rows()
    row_tokens = POOL_TOKENS if details is None else details.group_tokens
    return States(layers, passages, questions, tuple(pieces), tuple(words), row_tokens)


def _runs(tokenizer: Any, pairs: Pairs) -> Iterator[list[int]]:
    """Yield texts that are read one after the other: a story alone, short texts in a run, with sets mixed at random."""
    run: list[int] = []
    tokens = 0
    short = [at for at, text in enumerate(pairs.texts) if len(text.pieces) == 1]
    random.Random(0).shuffle(short)
    yield from ([at] for at, text in enumerate(pairs.texts) if len(text.pieces) > 1)
    for at in short:
        count = len(encode(tokenizer, pairs.texts[at].pieces[0])) + 2
        if run and tokens + count > _RUN_TOKENS:
            yield run
            run, tokens = [], 0
        run.append(at)
        tokens += count
    if run:
        yield run


def _pooled(states: torch.Tensor) -> torch.Tensor:
    """Return means of POOL_TOKENS neighbours. A last token without a neighbour stands alone."""
    if len(states) % POOL_TOKENS:
        states = torch.cat([states, states[-1:]])
    return states.float().view(-1, POOL_TOKENS, states.shape[-1]).mean(dim=1)


def _of_questions(model: Any, before: torch.Tensor, prompts: Sequence[Prompt], layers: tuple[int, ...]) -> torch.Tensor:
    """Return states [n, width] of the questions' tokens, each prompt behind `before`.

    What all prompts begin with, a system prompt most of all, is read once.
    """
    first = prompts[0].ids
    shared = min(prompt.question.start for prompt in prompts)
    for prompt in prompts[1:]:
        differing = (prompt.ids[:shared] != first[:shared]).nonzero()
        shared = int(differing[0]) if len(differing) else shared
    turns = [prompt.ids[shared : prompt.question.stop] for prompt in prompts]
    read = _beside_each_other(model, torch.cat([before, first[:shared]]), turns, layers)
    return torch.cat([rows[prompt.question.start - shared :] for rows, prompt in zip(read, prompts, strict=True)])


def _beside_each_other(
    model: Any, before: torch.Tensor, turns: Sequence[torch.Tensor], layers: tuple[int, ...]
) -> list[torch.Tensor]:
    """Return states [n, width] of each turn behind `before`, from one forward pass in which no turn sees another."""
    ids = torch.cat([before, *turns])
    positions = torch.cat([torch.arange(len(before)), *(len(before) + torch.arange(len(turn)) for turn in turns)])
    owners = [torch.full((len(turn),), number) for number, turn in enumerate(turns)]
    owner = torch.cat([torch.full((len(before),), -1), *owners])
    seen = (owner[:, None] == owner[None, :]) | (owner[None, :] == -1)
    seen &= torch.ones_like(seen).tril()
    states = early_exit_states(model, ids, layers, mask=seen, positions=positions)
    rows = torch.cat([states[layer] for layer in layers], dim=-1)
    return list(torch.split(rows, [len(before), *map(len, turns)]))[1:]


def _require_same(
    folder: pathlib.Path, model: Any, pairs: Pairs, layers: tuple[int, ...], seed: int, details: OfDetails | None
) -> None:
    said: dict[str, Any] = {
        "seed": seed,
        "texts": len(pairs.texts),
        "questions": len(pairs.questions),
        "characters": sum(len(piece) for text in pairs.texts for piece in text.pieces),
    }
    if details is not None:
        said["details"] = f"{details.id} {details.group_tokens}"
    require_same_reading(folder, model, layers, **said)


def require_same_reading(folder: pathlib.Path, model: Any, layers: Sequence[int], **settings: Any) -> None:
    """Make a folder for a model's states at some layers, or check that it is one (see `require_same`)."""
    from everlong.models.fingerprint import weights_fingerprint

    folder.mkdir(parents=True, exist_ok=True)
    require_same(folder, {"weights": weights_fingerprint(model), "layers": list(layers), **settings})


def digest_of(read: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for one in read:
        digest.update(one)
    return digest.hexdigest()


def require_same(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
    """Keep in a folder what it is of. Raises EverlongError for a folder of something else."""
    file = folder / "of.json"
    if file.exists():
        found = json.loads(file.read_text("utf-8"))
        differing = [name for name, value in settings.items() if found.get(name) != value]
        if differing:
            raise EverlongError(f"{folder} holds results of other {', '.join(differing)}: name another folder")
    file.write_text(json.dumps(settings), "utf-8")


class KeptRows:
    """Rows of bf16 in a file, with a mark for every forward pass. One that was cut short leaves nothing."""

    def __init__(self, file: pathlib.Path, width: int) -> None:
        self._file = file.with_suffix(".bf16")
        self._list = file.with_suffix(".marks")
        self._width = width
        self.marks: list[Rows] = []
        if self._list.exists():
            lines = self._list.read_text("utf-8").split("\n")[:-1]  # a line without an end was being written
            self.marks = [(int(first), int(last)) for first, last in (line.split() for line in lines)]

    def __enter__(self) -> KeptRows:
        self._stack = contextlib.ExitStack()
        self._file.touch()
        self._rows: BinaryIO = self._stack.enter_context(self._file.open("r+b"))
        rows = self.marks[-1][1] if self.marks else 0
        self._rows.truncate(rows * self._width * 2)
        self._rows.seek(0, 2)
        self._list.write_text("".join(f"{first} {last}\n" for first, last in self.marks), "utf-8")
        self._marked = self._stack.enter_context(self._list.open("a", encoding="utf-8"))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, rows: torch.Tensor) -> None:
        bits = rows.to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy()
        self._rows.write(bits.tobytes())
        self._rows.flush()
        first = self.marks[-1][1] if self.marks else 0
        self.marks.append((first, first + len(bits)))
        self._marked.write(f"{first} {first + len(bits)}\n")
        self._marked.flush()

    def all_rows(self) -> npt.NDArray[np.uint16]:
        rows = self.marks[-1][1] if self.marks else 0
        if rows == 0:
            return np.zeros((0, self._width), dtype=np.uint16)
        return np.memmap(self._file, dtype=np.uint16, mode="r", shape=(rows, self._width))

"""What takes part in reading, recalling and answering: the one protocol between the core and whatever is learned.

A part is a frozen dataclass of settings (`PartSettings`), whose `load` gives an object with hooks: methods of the names
below, each a moment of the two designs. An object has the hooks that it needs, and no others; one that has no settings
of its own stands in `MemoryConfig(parts=(...))` itself. The core composes parts in the order in which they are given
(frame/parts.py), and asks none of them by name. Where only one can be obeyed, the last one given is.

Shapes: T tokens, D the head's dimension, `hidden` the hidden states [T, hidden size] by layer, as `HiddenTap` counts
layers, where the model computes. Unless a hook says otherwise it is called by the frame's thread, on the path of
reading or answering: what takes long is not for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.models.pack import Pack
from everlong.models.served import Served
from everlong.settings import Settings

if TYPE_CHECKING:
    from everlong.config import MemoryConfig
    from everlong.frame.details import DetailTokens
    from everlong.memory.where import Where
    from everlong.text.prompt import Prompt

Hidden = Mapping[int, torch.Tensor]
Tensors = Mapping[str, npt.NDArray[Any]]
Rows = tuple[torch.Tensor, torch.Tensor]  # k, v [L, Hkv, T, D] fp32, un-rotated, of the archived layers
Head = tuple[int, int]  # layer, as `ServedModel.archived` counts them, and query head


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a part at work has to be given, beside what everyone gets."""

    hidden_layers: Sequence[int] = ()  # whose states `chunk`, `block`, `worth`, `leaving` and `token` read
    question_layers: Sequence[int] = ()  # whose states `asked` reads
    kinds: Sequence[str] = ()  # parts of the index that `asked` is for: it is asked where `search.index` has one
    heads: Sequence[Head] = ()  # whose attention to tombstones `token` reads
    mean_query: bool = False  # a search compares the mean of the question's queries, too
    # What `leaving` answers for: the tokens that are kept of a block, the one slot of a span that leaves.
    leaving: frozenset[Literal["kept", "tombstone"]] = frozenset()


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Tokens of the stream that were read, and are all in the frame still."""

    begin: int  # the first one
    ids: torch.Tensor  # int64 [T] on the CPU; zeros of a span that leaves, whose block was archived long ago
    # Of the layers that the part needs, all or none: those of a block that began in an earlier process are not known.
    hidden: Hidden
    kv: Callable[[], Rows]  # makes them
    chosen: torch.Tensor | None = None  # int64 [N] ascending: places in the span of the tokens that are kept of it


@dataclasses.dataclass(frozen=True)
class Said:
    """The newest words of a question or of its answer."""

    ids: Sequence[int]  # of question and answer so far
    answered: int  # tokens of the answer among them; 0: the question is about to be read
    where: Where  # what may come back
    config: MemoryConfig  # as it is now
    stream: int
    stream_end: int  # where the stream stands
    resident_from: int  # from this token of the stream on all is in the frame
    branched_at: int | None  # as an event of the trace has it


@dataclasses.dataclass(frozen=True)
class Offer:
    """Something to bring back for a question."""

    score: float  # the logarithm of how likely the answer is in it, as fused scores are (index/fusion.h)
    page: _core.PageRef  # the one that was found
    found_by: tuple[str, ...]
    span: tuple[int, int] | None = None  # tokens of the page's block, whose pages come back; None: the page alone
    as_details: bool = False  # the page's whole block comes, as its Detail Tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """A question, and which vectors of blocks say how near their words are to it."""

    query: npt.NDArray[np.float32]  # [T, dimension] of the question's tokens: the norm of a row is what it weighs
    tensor: str  # of a block [vectors, dimension]: pages in order, one for every `group_tokens` tokens of a page
    group_tokens: int


@dataclasses.dataclass(frozen=True)
class Finds:
    """What a part does for a question."""

    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further arguments of `core.search`
    vectors: Vectors | None = None  # what sentences of the text that came back are compared with
    walk: _core.Walk | None = None  # with which the search goes on from what it found
    added: Sequence[tuple[_core.PageRef, float]] = ()  # what scores of pages gain
    offers: Sequence[Offer] = ()


class Question(Protocol):
    """A question that is searched for; what parts before this one, and the index, do for it is known."""

    config: MemoryConfig  # as it is now
    where: Where  # what may come back
    prompt: Prompt
    ids: npt.NDArray[np.int32]  # [T] of the question's tokens that are searched by
    whole: Hidden  # states as `asked` gets them, but of all of the question's tokens, where those are its rarest alone

    def first(self) -> _core.SearchResult:
        """The first places that a search names, one by one, before anybody changes their scores."""

    def search(self, groups: int, added: Sequence[tuple[_core.PageRef, float]] = ()) -> _core.SearchResult:
        """So many places, with what was added to the scores so far and with `added`, whatever they take."""


class AtWork(Protocol):
    """All hooks. An object has some of them.

    The core reads the attributes below, where they are there.
    """

    needs: Needs
    settings: Any  # set anew where settings change that may do so from one question to the next
    id: str  # tells what this part writes from what another training of it wrote
    threshold: float  # of `chunk`, from which probability on a block may end; of `token`, from which score on it wakes
    lookahead: int  # of `chunk`: how many tokens behind a place are read before it has a probability
    recalls_span: (
        bool  # of `token`: whether what a tombstone stands for comes back, else the newest tokens' queries search
    )
    details: DetailTokens  # how the blocks' Detail Tokens that this part writes come back into the frame

    # --- a text is read

    def chunk(self, ids: torch.Tensor, hidden: Hidden, *, begins: bool) -> npt.NDArray[np.float32]:
        """A chunk of a text was read: how probable it is [n] that a topic ended `lookahead` tokens before each token.

        `begins`: another text than the last one's. Cost: reading takes as much longer for every chunk.
        """

    def block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Tensors:
        """A block [begin, end) of the stream is closed: what is stored with it, in its own commit, by name.

        `block`: its id; None for one that is about to get it. A forgotten block takes its tensors along, a fork of the
        memory has them. By the frame's thread as a block is archived, and by one in the background for older blocks
        (`lacks`), both at once. Cost: reading takes as much longer for every block; an error refuses the block.
        """

    def lacks(self, core: _core.Memory) -> Sequence[int]:
        """Ids of blocks that were archived without what `block` stores: it is made for them in the background, by a
        forward of each as deep as `needs.hidden_layers`. Asked once, as a memory is opened.
        """

    def worth(self, span: Span) -> torch.Tensor:
        """A block is closed: how much each of its tokens [T] is worth to keep, the larger the better, on any device.

        Of tokens that are worth alike the newer one is kept. Called by a thread in the background, too. Cost: as
        `block`.
        """

    def leaving(self, span: Span, kv: Rows) -> Rows:
        """A span leaves the frame: what stays of it. Keys and values of its `chosen` tokens [L, Hkv, N, D] fp32,
        un-rotated, or of the one slot that stands for it (N = 1) where nothing is chosen. Threads and cost as `worth`.
        """

    # --- a question is asked and answered

    def ahead(self, said: Said) -> None:
        """A question is about to be read, or a token was generated: what may be needed next may be brought near.

        Cost: every token waits for it; what takes time is for a thread of the part's own.
        """

    def wants(self, prompt: Prompt, read: Callable[[], torch.Tensor]) -> bool:
        """Whether anything is to come back for a question that the frame might hold the answer to.

        `read()` reads the prompt behind what the frame holds, without a trace: its logits [V]. It costs a forward.
        """

    def asked(self, question: Question, hidden: Hidden) -> Finds:
        """A question is searched for: what this part finds, and what it adds to the search; hidden [T, hidden size] of
        the question's tokens, on the CPU. Cost: the first token of the answer waits for it.
        """

    def came_back(self, pages: Sequence[_core.PageRef]) -> None:
        """These pages are about to come back."""

    def answering(self, frame: Any) -> AbstractContextManager[None]:
        """What is attached to the model while it reads a question and answers behind what came back.

        Entered and left around every forward. A turn that is to be remembered is read again without it.
        """

    def token(self, step: int, hidden: Hidden, attention: torch.Tensor) -> Sequence[float]:
        """Token `step` of the stream was generated: does it ask for something. A score for each tombstone, of its
        attention [heads, tombstones] fp32 on the CPU, the shares of `needs.heads`; from `threshold` on one wakes. Cost:
        every token waits for it, and for the attention of those heads to be computed once more.
        """

    # --- its life

    def state(self) -> bytes:
        """What it has to know again when the memory is opened again; kept in the memory's own files, which a fork and
        an export have, too. Asked at every checkpoint, and kept where it changed.
        """

    def load_state(self, state: bytes) -> None:
        """What `state` gave, of the newest checkpoint; not called where there is none."""

    def settle(self) -> None:
        """Return once all is done that was left to a thread."""

    def events(self) -> list[dict[str, Any]]:
        """What it did, as lines of `MemoryModel.trace`, in the order of the stream."""

    def close(self) -> None:
        """End its threads. Twice does nothing."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """What a part is loaded with."""

    model: Any
    tokenizer: Any
    served: Served
    pack: Pack | None  # what was trained for the model
    core: _core.Memory
    path: Any  # the memory's folder; None: it is in RAM
    config: MemoryConfig


class PartSettings(Settings):
    """Settings of a part: a frozen dataclass, with the part's name as its group.

    class Newest(PartSettings, group="newest"): ...
    """

    entries: ClassVar[tuple[str, ...]] = ()  # of the pack, without which there is nothing to load
    optional: ClassVar[bool] = False  # where there is nothing to load, it is passed over

    @property
    def name(self) -> str:
        return self.group

    def check(self, config: MemoryConfig) -> None:
        """ValueError where the other settings leave this part nothing to do."""

    def without_keys(self) -> Self | None:
        """This part in a memory of text alone; None: it has nothing to do there, and is passed over."""
        if self.optional:
            return None
        raise ValueError(f"{self.name} needs the model's keys and states, and a memory of text alone has none")

    def missing(self, pack: Pack | None) -> str | None:
        """The one sentence that says what to train; None where nothing is missing."""
        there = () if pack is None else pack.parts
        if all(entry in there for entry in self.entries):
            return None
        return f"{self.name}: nothing was trained for this model; `everlong train {self.name}` makes it"

    def load(self, opening: Opening) -> Any:
        """The object with the hooks; None: there is nothing to do."""
        return None

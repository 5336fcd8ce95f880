"""The protocols of parts: what is learned, or a rule, that takes part in reading, recalling and answering.

A part is a frozen dataclass of settings (`PartSettings`). Its `load` returns an object that implements some of the
protocols below. An object with another public method is refused: nobody would call it. A part without settings puts
that object itself into `MemoryConfig(parts=(...))`. The core calls the parts in the order in which they are given
(frame/parts.py), and asks none of them by name. Where only one can be obeyed, the last one is.

Shapes: T tokens; D the head's dimension; `hidden` the hidden states [T, hidden size] by layer, on the model's device.
Layers are counted as `HiddenTap` counts them. Unless a method says otherwise, the frame's thread calls it, and
reading or answering waits for it: it must be fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config.settings import Settings
from everlong.models.model_interface import ModelInterface
from everlong.models.pack import Pack

if TYPE_CHECKING:
    from everlong.config import MemoryConfig
    from everlong.frame.detail_tokens import DetailTokens
    from everlong.memory.where import Where
    from everlong.text.prompt import Prompt

Hidden = Mapping[int, torch.Tensor]
Tensors = Mapping[str, npt.NDArray[Any]]
Rows = tuple[torch.Tensor, torch.Tensor]  # k, v [L, Hkv, T, D] fp32, un-rotated, of the archived layers
Head = tuple[int, int]  # layer, as `ServedModel.archived` counts them, and query head


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a part needs, beside what every part gets."""

    hidden_layers: Sequence[int] = ()  # layers whose states all methods but `retrieve` read
    question_layers: Sequence[int] = ()  # layers whose states `retrieve` reads
    kinds: Sequence[str] = ()  # index parts that `retrieve` is for; it is called where `search.index` has one of them
    heads: Sequence[Head] = ()  # heads whose attention to tombstones `score_tombstones` reads
    mean_query: bool = False  # a search also compares the mean of the question's queries
    # What `write_evicted` makes: rows of the tokens that are kept of a block, or the one slot of a span that leaves.
    evicted: frozenset[Literal["kept", "tombstone"]] = frozenset()


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Tokens of the stream that were read and are all still in the frame."""

    begin: int  # the first token
    ids: torch.Tensor  # int64 [T] on the CPU; zeros for a span that leaves, because its block was archived long ago
    # The layers that the part needs: all of them, or none where an earlier process read the block's beginning.
    hidden: Hidden
    kv: Callable[[], Rows]  # computes them
    chosen: torch.Tensor | None = None  # int64 [N] ascending: which tokens of the span are kept


@dataclasses.dataclass(frozen=True)
class AnswerProgress:
    """A question and as much of its answer as there is so far."""

    ids: Sequence[int]  # all tokens of the question and of the answer so far
    answered: int  # tokens of the answer among them; 0: the question is about to be read
    where: Where  # what may come back
    config: MemoryConfig  # the current settings
    stream: int
    stream_end: int  # how many tokens the stream has
    resident_from: int  # all tokens of the stream from this one on are in the frame
    branched_at: int | None  # as in an event of the trace


@dataclasses.dataclass(frozen=True)
class Offer:
    """Something that is proposed to come back, and why. A part gives the first fields; a search adds the others."""

    # The logarithm of the probability that it holds the answer, as in fused scores (index/fusion.h). 0: none was told.
    score: float
    page: _core.PageRef  # the page that was found
    found_by: tuple[str, ...]  # why: the index parts and parts that found it, or what asked for it
    span: tuple[int, int] | None = None  # tokens of the page's block whose pages come back; None: the page alone
    as_details: bool = False  # recall the page's whole block, as its Detail Tokens
    pages: Sequence[_core.PageRef] = ()  # what comes back, in order of time
    confidence: float | None = None  # how likely it holds the answer, 0..1
    temperature: float = 1.0  # attention temperature of its pages
    best: bool = False  # it matters most among what comes back with it

    @property
    def stream(self) -> int:
        return self.page.stream

    @property
    def begin(self) -> int:
        return self.pages[0].begin if self.pages else self.page.begin

    @property
    def end(self) -> int:
        return self.pages[-1].end if self.pages else self.page.end


# Of n texts: [n], each with the question, or with these words in its place.
Cosines = Callable[[Sequence[str], str], npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """A question's vectors, and the tensor of each block to compare them with."""

    query: npt.NDArray[np.float32]  # [T, dimension] of the question's tokens; the norm of a row is its weight
    tensor: str  # of a block [vectors, dimension]: pages in order, a vector for every `group_tokens` tokens
    group_tokens: int


@dataclasses.dataclass(frozen=True)
class PartFindings:
    """What a part does for a question."""

    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further arguments of `core.search.find`
    vectors: Vectors | None = None  # what the sentences of the recalled text are compared with
    cosines: Cosines | None = None  # compares the best of these sentences as wholes; it costs a forward
    walk: _core.Walk | None = None  # how the search goes on from the pages that it found
    added: Sequence[tuple[_core.PageRef, float]] = ()  # what is added to scores of pages
    offers: Sequence[Offer] = ()


class Question(Protocol):
    """A question that is being searched for. It holds what the index and earlier parts did for it."""

    config: MemoryConfig  # the current settings
    where: Where  # what may come back
    prompt: Prompt
    ids: npt.NDArray[np.int32]  # [T] of the question's tokens that the search uses
    whole: Hidden  # states as `retrieve` gets them, but of all tokens; `retrieve` may get the rarest alone

    def first(self) -> _core.SearchResult:
        """Return the first places of a search, one by one, before any part changes their scores."""

    def search(self, groups: int, added: Sequence[tuple[_core.PageRef, float]] = ()) -> _core.SearchResult:
        """Return `groups` places, whatever their size. Scores include all that was added so far, and `added`."""


# --- what the object of a part may implement. It has the methods of these protocols, and no other public ones.


@runtime_checkable
class HasNeeds(Protocol):
    """A part that needs more than what every part gets."""

    @property
    def needs(self) -> Needs: ...


@runtime_checkable
class Configurable(Protocol):
    """A part with settings that may change between two questions. They are set anew then."""

    settings: Any


# --- while a text is read


@runtime_checkable
class TopicSegmenter(Protocol):
    """Says where topics end: blocks end there. Of several the last one is obeyed."""

    @property
    def threshold(self) -> float:
        """The least probability that ends a block."""

    @property
    def lookahead(self) -> int:
        """How many tokens after a place are read before its probability is known."""

    def boundary_probabilities(self, ids: torch.Tensor, hidden: Hidden, *, begins: bool) -> npt.NDArray[np.float32]:
        """A chunk of a text was read. Return how probably [n] a topic ended `lookahead` tokens before each token.

        `begins`: the chunk starts another text than the last chunk's. Cost: reading waits for it at every chunk.
        """


@runtime_checkable
class BlockWriter(Protocol):
    """Makes what is stored with a block."""

    def write_block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Tensors:
        """A block [begin, end) of the stream is closed. Return, by name, the tensors to store in its commit.

        `block`: its id; None where it has none yet. A forgotten block takes its tensors along, and a fork of the memory
        has them. The frame's thread calls this when a block is archived, a thread in the background for older blocks
        (`BlockBackfill`); both may run at once. Cost: reading waits for it at every block. An error refuses the block.
        """


@runtime_checkable
class BlockBackfill(BlockWriter, Protocol):
    """A BlockWriter whose tensors are also made for blocks that were archived without them."""

    def missing_blocks(self, core: _core.Memory) -> Sequence[int]:
        """Return ids of blocks archived without what `write_block` stores. Called once, when a memory is opened.

        The background makes it for them, by a forward of each block as deep as `needs.hidden_layers`.
        """


@runtime_checkable
class ArchiveObserver(Protocol):
    """Hears of every block that is archived."""

    def on_archived(self) -> None:
        """A block is in the memory. Reading waits for this: slow work belongs in a thread of the part's own."""


@runtime_checkable
class TokenScorer(Protocol):
    """Says which tokens of a closed block are kept in the frame. Of several the last one is obeyed."""

    def score_tokens(self, span: Span) -> torch.Tensor:
        """A block is closed. Return a score for each of its tokens [T], on any device: those with the best are kept.

        Of tokens with equal scores the newer is kept. A thread in the background calls it, too. Cost: as `write_block`.
        """


@runtime_checkable
class EvictionWriter(Protocol):
    """Makes the keys and values of what stays of evicted tokens: of those that `needs.evicted` names."""

    @property
    def id(self) -> str:
        """Tells what it writes from what another training of it wrote."""

    @property
    def needs(self) -> Needs: ...

    def write_evicted(self, span: Span, kv: Rows) -> Rows:
        """A span leaves the frame. Return the keys and values of what stays of it, fp32, un-rotated.

        These are its `chosen` tokens [L, Hkv, N, D], or where none are chosen its one slot (N is 1). Threads, cost: as
        `score_tokens`.
        """


# --- while a question is asked and answered


@runtime_checkable
class RecallPrefetcher(Protocol):
    """Prepares what may be recalled next."""

    def prefetch(self, progress: AnswerProgress) -> None:
        """A question is about to be read, or a token was generated: prepare what may be needed next.

        Cost: every token waits for it. Slow work belongs in a thread of the part's own.
        """


@runtime_checkable
class RecallObserver(Protocol):
    """Hears of every page that is recalled."""

    def on_recalled(self, pages: Sequence[_core.PageRef]) -> None:
        """These pages are about to come back."""


@runtime_checkable
class RecallGate(Protocol):
    """Decides whether anything is recalled for a question. All gates must agree."""

    def should_recall(self, prompt: Prompt, read: Callable[[], torch.Tensor]) -> bool:
        """Return whether to recall anything for a question. The frame might hold the answer already.

        `read()` costs a forward: it reads the prompt behind the frame without a trace and returns its logits [V].
        """


@runtime_checkable
class Retriever(Protocol):
    """Takes part in the search for a question."""

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        """A question is searched for. Return what this part finds, and what it adds to the search.

        `hidden` [T, hidden size]: the question's tokens, on the CPU. Cost: the answer's first token waits for it.
        """


@runtime_checkable
class ModelAdapter(Protocol):
    """Changes the model while it answers from what came back. Of several the last one is obeyed."""

    def adapt(self, frame: Any) -> AbstractContextManager[None]:
        """Return what is attached to the model while it reads a question and answers from what came back.

        It is entered and left around every forward. A turn that is to be remembered is read again without it.
        """


@runtime_checkable
class TombstoneScorer(Protocol):
    """Says which tombstones a generated token needs the text of. Of several the last one is obeyed."""

    @property
    def threshold(self) -> float:
        """The least score that wakes a tombstone."""

    @property
    def recalls_span(self) -> bool:
        """Whether a woken tombstone's span comes back; False: the newest tokens' queries search."""

    def score_tombstones(self, step: int, hidden: Hidden, attention: torch.Tensor) -> Sequence[float]:
        """Token `step` of the stream was generated. Return a score for each tombstone; from `threshold` on it wakes.

        `attention` [heads, tombstones], fp32 on the CPU: the shares of `needs.heads`. Cost: every token waits for it,
        and for computing the attention of those heads once more.
        """


@runtime_checkable
class DetailSource(Protocol):
    """Has Detail Tokens to recall in place of a block's pages. Of several the last one is obeyed."""

    @property
    def details(self) -> DetailTokens:
        """How the Detail Tokens that this part writes come back into the frame."""


# --- its life


@runtime_checkable
class Stateful(Protocol):
    """Has a state that the memory's own files keep, so forks and exports have it."""

    def state(self) -> bytes:
        """Return what the part must know again when the memory is opened again.

        Asked at every checkpoint, kept where it changed.
        """

    def load_state(self, state: bytes) -> None:
        """Take what `state` returned at the newest checkpoint. Not called where there is none."""


@runtime_checkable
class Traced(Protocol):
    """Has events of its own in the trace."""

    def events(self) -> list[dict[str, Any]]:
        """Return what it did, as lines of `MemoryModel.trace`, in the order of the stream."""


@runtime_checkable
class Lifecycle(Protocol):
    """Has threads of its own."""

    def settle(self) -> None:
        """Return once all work that was left to threads is done."""

    def close(self) -> None:
        """End its threads. Calling it twice does nothing."""


PROTOCOLS: Final = (
    HasNeeds, Configurable, TopicSegmenter, BlockWriter, BlockBackfill, ArchiveObserver, TokenScorer, EvictionWriter,
    RecallPrefetcher, RecallObserver, RecallGate, Retriever, ModelAdapter, TombstoneScorer, DetailSource, Stateful,
    Traced, Lifecycle,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LoadContext:
    """What a part is loaded with."""

    model: Any
    tokenizer: Any
    served: ModelInterface
    pack: Pack | None  # what was trained for the model
    core: _core.Memory
    path: Any  # the memory's folder; None: the memory is in RAM
    config: MemoryConfig


class PartSettings(Settings):
    """Settings of a part: a frozen dataclass. The part's name is its group.

    class Newest(PartSettings, group="newest"): ...
    """

    entries: ClassVar[tuple[str, ...]] = ()  # entries of the pack that the part cannot be loaded without
    optional: ClassVar[bool] = False  # True: the part is passed over where there is nothing to load

    @property
    def name(self) -> str:
        """The part's name."""
        return self.group

    def check(self, config: MemoryConfig) -> None:
        """Raise ValueError where the other settings leave this part nothing to do."""

    def without_keys(self) -> Self | None:
        """Return this part for a memory of text alone; None: it is passed over. ValueError where it needs keys."""
        if self.optional:
            return None
        raise ValueError(f"{self.name} needs the model's keys and states, and a memory of text alone has none")

    def missing(self, pack: Pack | None) -> str | None:
        """Return one sentence that says what to train; None where nothing is missing."""
        there = () if pack is None else pack.parts
        if all(entry in there for entry in self.entries):
            return None
        return f"{self.name}: nothing was trained for this model; `everlong train {self.name}` makes it"

    def load(self, opening: LoadContext) -> Any:
        """Return the object that implements some of the protocols; None: there is nothing to do."""
        return None

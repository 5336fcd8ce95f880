"""The encoder at work: vectors of blocks, made from their text in the background, and of questions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.part import ArchiveObserver, Hidden, Lifecycle, Needs, PartFindings, Question, Retriever, Vectors
from everlong.memory.overlapping_vectors import REACH, drop_vectors
from everlong.models.pack import PackPart
from everlong.parts.encoder.model import (
    CONTEXT_PIECES,
    ENCODER,
    PASSAGE_PIECES,
    SENTENCE_TOKENS,
    SENTENCE_WEIGHT,
    EncoderSettings,
    Ids,
    TextEncoder,
    WordPieces,
    loaded_encoder,
)
from everlong.parts.encoder.pooling import (
    WINDOW,
    characters_of_groups,
    group_ends,
    means_of_runs,
    paragraphs_of,
    pieces_of_groups,
    stored_pieces,
    stored_sentences,
)
from everlong.parts.late_interaction import quantize_int8
from everlong.retrieval.background import Background, warn_missing, warn_waiting
from everlong.text.encoding import count_decoded_characters, decode_text
from everlong.text.own_tokenizer import own_tokenizer
from everlong.text.unit_context import Turns, title_of

_BLOCKS = 16  # blocks whose sentences are computed together
_ROWS = 128  # sentences of one forward
_PASSAGE_ROWS = 32  # passages of one
# Of a question's characters the encoder must know so many. Else it would tell pages apart by what is not the question.
_KNOWN = 0.5
# A question waits for all blocks that lack vectors, but not where more than so many did when the memory was opened.
_MOST_WAITED = 64
_LOOKS = 1.0  # seconds between two looks at what lacks vectors, where nobody tells

Int8s = npt.NDArray[np.int8]


class EncoderRuntime(ArchiveObserver, Retriever, Lifecycle):
    """The encoder over the pages of a memory. Blocks get their vectors in a thread of its own, off the reading path.

    A question waits for them, so that the same question finds the same. It does not wait for a whole memory that had
    none when it was opened: those blocks are found by their vectors as soon as they are there.
    """

    needs = Needs(kinds=(ENCODER,))

    def __init__(
        self,
        part: PackPart,
        core: _core.Memory,
        tokenizer: Any,
        device: torch.device,
        gpu: int | None = None,
        gpu_bytes: int = 0,
    ) -> None:
        """Let the memory search by these vectors, on that GPU with at most `gpu_bytes` of its memory, and fill it."""
        self.id = part.id
        self.tensor = f"{ENCODER}.{part.id}"
        self._width = int(part.tensors["reader.weight"].shape[1])  # of MiniLM's states
        self._dimension, self._group_tokens = int(part.settings["dimension"]), int(part.settings["group_tokens"])
        self._core = core
        self._tokenizer = own_tokenizer(tokenizer)  # two threads decode with it, which changes nothing
        self._load = functools.partial(loaded_encoder, self.id, device)
        self._filling: Background | None = None
        self._missing = VectorBackfill(core, self._tokenizer, self.id, self._load)
        where: dict[str, Any] = {"device": gpu, "device_bytes": gpu_bytes, "part": ENCODER}
        where |= {"sentence_dimension": self._width, "sentence_tokens": SENTENCE_TOKENS}
        self._core.index.set_meaning(self.id, self._dimension, self._group_tokens, **where)
        lacking = frozenset(self._missing.blocks())
        self._missing.older = lacking if len(lacking) > _MOST_WAITED else frozenset()
        if self._core.read_only:
            warn_missing(self._core, len(lacking), ENCODER)
            return
        warn_waiting(self._core, len(self._missing.older), ENCODER)
        self._filling = Background(
            self._missing.fill,
            name="everlong encoder",
            doing="the encoder has encoded the newest blocks",
            failed="blocks could not be encoded",
        )
        if lacking:
            self._filling.wake()

    def on_archived(self) -> None:
        if self._filling is not None:
            self._filling.wake()

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        self._wait()
        found = self._query(decode_text(self._tokenizer, question.ids.tolist()))
        if found is None:
            return PartFindings()
        query, sentence = found
        return PartFindings(
            query={"encoder_query": query, "sentence_query": sentence},
            vectors=Vectors(query, self.tensor, self._group_tokens),
            cosines=functools.partial(self._cosines, sentence[0]),
        )

    def _query(self, text: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        """Return [T, dimension] of a question's word pieces, and [1, width] of it as a sentence, as long as it weighs.

        None where the encoder knows too little of it.
        """
        encoder = self._load()
        ids, begins, ends = encoder.pieces(text)
        known, known_begins, known_ends = stored_pieces(ids, begins, ends, encoder.pieces.unknown)
        if (known_ends - known_begins).sum() < max(1, _KNOWN * (ends - begins).sum()):
            return None
        rows = [known[first : first + WINDOW] for first in range(0, len(known), WINDOW)]
        states = torch.cat([encoder.states([row])[0] for row in rows])
        sentence = SENTENCE_WEIGHT * encoder.sentence_vectors(states.mean(dim=0, keepdim=True))
        return encoder.query_vectors(states), sentence.numpy()

    def _cosines(self, sentence: npt.NDArray[np.float32], texts: Sequence[str], words: str) -> npt.NDArray[np.float32]:
        """Return the cosine [n] of a question's `sentence` of `query` with each of n texts; 0 with an unknown one.

        Words, where there are some that are known, stand in the question's place.
        """
        encoder = self._load()
        if words and (in_its_place := self._query(words)) is not None:
            sentence = in_its_place[1][0]
        rows = [stored_pieces(*encoder.pieces(text), encoder.pieces.unknown)[0][:WINDOW] for text in texts]
        known = [at for at, row in enumerate(rows) if len(row)]
        found = np.zeros(len(texts), dtype=np.float32)
        if known:
            means = torch.stack([states.mean(dim=0) for states in encoder.states([rows[at] for at in known])])
            found[known] = encoder.sentence_vectors(means).numpy() @ sentence / SENTENCE_WEIGHT
        return found

    def _wait(self) -> None:
        """Wait for the vectors of all blocks but the older ones. Raise what went wrong, once."""
        if self._filling is not None and not self._missing.wait_for_new():
            self._filling.settle()

    def settle(self) -> None:
        if self._filling is not None:
            self._filling.settle()

    def close(self) -> None:
        if self._filling is not None:
            self._filling.close()


class VectorBackfill:
    """Finds and encodes blocks that lack vectors: the newest first."""

    def __init__(self, core: _core.Memory, tokenizer: Any, pack: str, load: Callable[[], TextEncoder]) -> None:
        self._core, self._tokenizer, self._pack, self._load = core, tokenizer, pack, load
        self.older: frozenset[int] = frozenset()  # blocks that lacked vectors from before, and are not waited for
        self._changed = threading.Condition()
        self._failed = False

    def blocks(self) -> Sequence[int]:
        return self._core.index.blocks_without_meaning(ENCODER)

    def wait_for_new(self) -> bool:
        """Return True once only older blocks lack vectors; False, at once, where none is older, or on failure."""
        with self._changed:
            while not self._failed:
                lacking = set(self.blocks())
                if lacking <= self.older:
                    return True
                if not lacking & self.older:
                    return False
                self._changed.wait(_LOOKS)
        return False

    def fill(self, closed: Callable[[], bool]) -> None:
        """Encode blocks until none lacks vectors, or `closed()`."""
        tried: set[int] = set()
        try:
            self._failed = False
            while some := [block for block in self.blocks() if block not in tried][-_BLOCKS:]:
                forgettings = self._core.forgettings()
                for block, vectors in self._encoded(some, closed):
                    if self._core.forgettings() != forgettings:  # it may be made of what is gone: again
                        break
                    with contextlib.suppress(MemoryNotFoundError):  # forgotten meanwhile
                        self._core.blocks.put_tensors(block, vectors)
                        if self._core.forgettings() != forgettings:  # what stood before it may be gone: again
                            drop_vectors(self._core, [block])
                    self._report()
                if closed():
                    return
                if self._core.forgettings() == forgettings:
                    tried.update(some)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._report()

    def _report(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _encoded(self, blocks: Sequence[int], closed: Callable[[], bool]) -> Iterator[tuple[int, dict[str, Int8s]]]:
        """Yield a block's tensors: vectors of its tokens, its sentences and its passage. Stop once `closed()`."""
        encoder = self._load()
        texts = []
        for block in blocks:
            with contextlib.suppress(MemoryNotFoundError):  # forgotten meanwhile
                texts.append(self._cut(block, encoder))
        sentences = [unit for text in texts for unit in text.sentences]
        passages = [text.passage for text in texts if text.passage is not None]
        for units, count in (sentences, _ROWS), (passages, _PASSAGE_ROWS):
            units.sort(key=lambda unit: len(unit.ids))  # of one length, about: little is computed for padding
            for first in range(0, len(units), count):
                if closed():
                    return
                some = units[first : first + count]
                for unit, states in zip(some, encoder.states([one.ids for one in some]), strict=True):
                    unit.take(states)
        for text in texts:
            vectors = {
                ENCODER: encoder.written(text.means(encoder.width)),
                "sentence": encoder.sentence_vectors(text.sentence_means(encoder.width)),
                "passage": encoder.sentence_vectors(text.passage_means(encoder.width)),
            }
            yield text.block, {f"{name}.{self._pack}": quantize_int8(of).numpy() for name, of in vectors.items()}

    def _cut(self, block: int, encoder: TextEncoder) -> BlockText:
        """Return a block's text as word pieces, behind text of the same source that stands before it."""
        core, info = self._core, self._core.blocks.info(block)
        begin = max(0, info.begin - REACH)
        try:
            pages = core.blocks.pages_of(info.stream, begin, info.begin) if begin < info.begin else []
            if not pages or any(core.blocks.info(page.block).source != info.source for page in pages):
                begin = info.begin
            ids = core.blocks.token_ids(info.stream, begin, info.end)
        except MemoryNotFoundError:  # what stood before it was forgotten
            begin, ids = info.begin, core.blocks.token_ids(info.stream, info.begin, info.end)
        before, page_tokens = info.begin - begin, core.manifest().page_tokens
        return BlockText.of(
            block, self._tokenizer, ids.tolist(), before, page_tokens, encoder.settings, encoder.pieces, info.source
        )


@dataclasses.dataclass
class Unit:
    """A sentence or a passage, as it is encoded: behind its context."""

    ids: Ids  # [pieces]
    context: int  # how many of them are not its own
    states: torch.Tensor | None = None  # of its own pieces [n, width]
    mean: torch.Tensor | None = None  # of all its pieces' states [width]

    def take(self, states: torch.Tensor) -> None:
        """Take what the encoder makes of it [pieces, width]."""
        self.states, self.mean = states[self.context :], states.mean(dim=0)


@dataclasses.dataclass(frozen=True)
class BlockText:
    """A block's word pieces, cut into sentences, and which of them each group of its tokens pools.

    The first sentence may begin before the block. The groups of SENTENCE_TOKENS of a page share its sentences out among
    them (`stored_sentences`). A text that the encoder knows nothing of has no sentences, and its vectors are zeros.
    """

    block: int
    sentences: list[Unit]
    passage: Unit | None  # all of it, where that is short
    first: Ids  # [groups]: the first piece of each group among those of all sentences, and one past its last
    last: Ids
    kept_sentences: Ids  # [groups of SENTENCE_TOKENS]: the number of the sentence that each keeps
    pages: int

    @classmethod
    def of(
        cls,
        block: int,
        tokenizer: Any,
        tokens: list[int],
        before: int,
        page_tokens: int,
        settings: EncoderSettings,
        pieces: WordPieces,
        source: str,
    ) -> BlockText:
        """Cut tokens of a source, of which the first `before` stand before the block."""
        groups = [
            group_ends(len(tokens) - before, page_tokens, each) for each in (settings.group_tokens, SENTENCE_TOKENS)
        ]
        pages = (np.asarray(groups[1]) - 1) // page_tokens
        count = int(pages[-1]) + 1
        text = decode_text(tokenizer, tokens)
        state = count_decoded_characters(tokenizer, tokens, text)
        ids, piece_begins, piece_ends = stored_pieces(*pieces(text), pieces.unknown)
        (first, last), (whole_first, whole_last) = (
            pieces_of_groups(*characters_of_groups(state, before, ends), piece_begins, piece_ends) for ends in groups
        )
        if not last.any():
            return cls(block, [], None, first, last, np.zeros_like(whole_last), count)
        cut = pieces.sentences(ids, settings.longest, paragraphs_of(text, piece_begins))
        own = [(begin, end) for begin, end in cut if end > int(first.min())]
        begins, ends = own[0][0], own[-1][1]
        title, turns = title_of(source), Turns(text)

        def unit(begin: int, end: int, speaker: str = "") -> Unit:
            context, _, _ = stored_pieces(*pieces(f"{title} {speaker}"), pieces.unknown)
            context = context[:CONTEXT_PIECES]
            return Unit(np.concatenate([context, ids[begin:end]]), len(context))

        return cls(
            block,
            [unit(begin, end, turns.speaker_of(int(piece_begins[begin]))) for begin, end in own],
            unit(begins, ends) if ends - begins <= PASSAGE_PIECES else None,
            first - begins,
            last - begins,
            stored_sentences(own, whole_first, whole_last, pages),
            count,
        )

    def means(self, width: int) -> torch.Tensor:
        """Return the mean of each group's states [groups, width]."""
        if not self.sentences:
            return torch.zeros(len(self.first), width)
        rows = torch.cat([unit.states for unit in self.sentences if unit.states is not None])
        return means_of_runs(rows, self.first, self.last)

    def sentence_means(self, width: int) -> torch.Tensor:
        """Return the mean of the states of the sentence that each group keeps [groups, width]."""
        if not self.sentences:
            return torch.zeros(len(self.kept_sentences), width)
        means = torch.stack([unit.mean for unit in self.sentences if unit.mean is not None])
        return means[torch.from_numpy(self.kept_sentences)]

    def passage_means(self, width: int) -> torch.Tensor:
        """Return the mean of the states of the passage, for each page [pages, width]; zeros without one."""
        if self.passage is None or self.passage.mean is None:
            return torch.zeros(self.pages, width)
        return self.passage.mean.expand(self.pages, width)

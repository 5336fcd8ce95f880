"""All that is made of a memory's blocks in the background: vectors, tags, the graph, and what older blocks lack."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.part import Needs
from everlong.frame.parts import Parts, needs_of
from everlong.retrieval.background import Background, warn_missing
from everlong.retrieval.embedding import PageEmbedder
from everlong.retrieval.graph_growth import GraphGrowth
from everlong.retrieval.model_tags import ModelTags
from everlong.retrieval.older_blocks import MakesTensors, OlderBlocks
from everlong.retrieval.older_kept import OlderKept
from everlong.text.own_tokenizer import own_tokenizer


class BackgroundJobs:
    """The jobs of one frame's memory, each in a thread of its own. For the frame's thread alone."""

    def __init__(self, frame: Frame, tokenizer: Any, config: MemoryConfig, embedder: PageEmbedder | None) -> None:
        """Start them. A memory that was opened for reading has none but the embedder's, and the log says what lacks."""
        self._frame, self._core = frame, frame.memory.core
        self._jobs: list[Background | PageEmbedder | GraphGrowth | Parts] = []
        if embedder is not None:
            self._jobs.append(embedder)
            frame.observe(lambda *archived: embedder.archived())
        if config.archive.tagger == "model" and not self._core.read_only:
            self._tag_by_model(tokenizer)
        growth: GraphGrowth | None = None
        if config.archive.graph and not self._core.read_only:
            growth = GraphGrowth(self._core, config.archive.graph_share)
            self._grow(growth, embedder)
        for observer in frame.parts.archive_observers:
            frame.observe(lambda *archived, notify=observer.on_archived: notify())
        if self._core.read_only:
            for name, one in frame.parts.backfills.items():
                warn_missing(self._core, len(one.missing_blocks(self._core)), name)
        else:
            self._fill_older_blocks(config)
        self._jobs += [*([] if growth is None else [growth]), frame.parts]

    def settle(self) -> None:
        """Return once all that is due by now is done. Raise what went wrong, once."""
        for job in self._jobs:
            job.settle()

    def close(self) -> None:
        for job in self._jobs:
            job.close()

    def _tag_by_model(self, tokenizer: Any) -> None:
        """Tag every block that the model was not asked about."""
        tags = ModelTags(self._core, self._frame.served.model, own_tokenizer(tokenizer))
        tagging = Background(
            tags.fill, name="everlong tags", doing="the model has tagged the newest blocks", failed="no tags were made"
        )
        self._frame.observe(lambda *archived: tagging.wake())
        tagging.wake()
        self._jobs.append(tagging)

    def _grow(self, growth: GraphGrowth, embedder: PageEmbedder | None) -> None:
        """Give every block its place in the graph, once it has its vectors."""
        self._frame.observe(lambda *archived: growth.archived())
        if embedder is not None:
            embedder.on_encoded(growth.archived)

    def _fill_older_blocks(self, config: MemoryConfig) -> None:
        """Make tensors for blocks that were archived before anything made them."""
        parts = self._frame.parts
        for one in parts.backfills.values():
            missing = functools.partial(one.missing_blocks, self._core)
            self._fill(one.write_block, functools.partial(needs_of, one), missing)
        if config.frame.kept_tokens > 0 and config.answer.recall_mode == "kept":
            older = OlderKept(self._core, config, parts)
            self._fill(older.tensors, older.needs, older.missing)

    def _fill(self, make: MakesTensors, needs: Callable[[], Needs], without: Callable[[], Sequence[int]]) -> None:
        if not without():
            return
        older = OlderBlocks(self._core, self._frame.served.model, make, needs, without)
        filling = Background(
            older.fill,
            name="everlong older blocks",
            doing="older blocks have what is stored with a block now",
            failed="what is stored with a block could not be made for older ones",
        )
        filling.wake()
        self._jobs.append(filling)

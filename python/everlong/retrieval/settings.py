"""What a question is searched by."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Literal

from everlong.settings import Settings
from everlong.text.vectors import Encoder, encoder_name

IndexPart = Literal["heads", "lexical", "meaning", "mean_pool", "hnsw", "embedding"]
HeadsKeys = Literal["bf16", "int8", "e4m3"]
NarrowBy = Literal["times", "tags"]


_LEAST = {
    "groups": 1,
    "rerank_seconds": 0,
    "neighbours": 0,
    "query_distance": 0,
    "retrieval_heads": 1,
    "heads_device_bytes": 0,
}


@dataclasses.dataclass(frozen=True)
class SearchConfig(Settings, group="search", least=_LEAST):
    """All but `encoder` and `embedding_index` may change from one question to the next."""

    # Several are fused (index/fusion.h). "heads" are found once the memory has 64 pages: before, words alone find.
    # "mean_pool" and "hnsw" search the same means of blocks' keys, the one exact, the other by a graph.
    # "meaning" searches by the vectors of a part, such as the towers, and is passed over where there is none.
    index: IndexPart | tuple[IndexPart, ...] = ("heads", "lexical", "meaning")
    encoder: str | Encoder = "minilm"  # of the part "embedding": a name for `load_encoder`, or an encoder
    # Where its vectors are searched: all of them, by a graph, or by lists that grow with them and whose router
    # `everlong train router` learns (retrieval/index.py).
    embedding_index: Literal["flat", "hnsw", "dnii"] = "flat"
    # What of a question leaves few blocks to search, where some block has it (graph/tag_tree.h): "times", which need
    # the extra `dates`, and "tags". All are searched where none has anything of it.
    narrow: NarrowBy | tuple[NarrowBy, ...] = ()
    groups: int = 4  # page groups recalled for a question
    neighbours: int = 1  # pages on either side of a page that was found
    # One group comes alone when its page has this many times the mass of the next and all parts agree. None: never;
    # what is said of like things helps a small model to the form of the answer.
    decisive: float | None = None
    # For so many seconds at most the model itself re-ranks what a search names first, up to 64 places, by how likely
    # the question is behind each (retrieval/rerank.py); at least 8 of them, whatever they take. 0: off. A memory of
    # text alone has no keys to put it behind: there it is off.
    rerank_seconds: float = 0.0
    query_distance: int = 2048  # the heads' queries are rotated to this distance from every key; 0: un-rotated
    retrieval_heads: int = 5  # how many heads calibration keeps; a memory that has some keeps those, and their distance
    # Of the keys of these heads in RAM: int8 and e4m3 take half of bf16. Of an archive in e4m3, the default codec,
    # e4m3 finds what bf16 does.
    heads_keys: HeadsKeys = "e4m3"
    # Of the GPU that the model is on, for these keys and the room to search them there; where they do not fit, and
    # with 0, questions are searched on the host.
    heads_device_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("index", "narrow"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        super().__post_init__()
        if not self.index:
            raise ValueError(f"index is empty, expected some of {', '.join(typing.get_args(IndexPart))}")

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset(field.name for field in dataclasses.fields(cls)) - {"encoder", "embedding_index"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an encoder that is an object stands by what tells its vectors from another's."""
        encoder = self.encoder if isinstance(self.encoder, str) else encoder_name(self.encoder)
        return {**super().to_dict(), "encoder": encoder}

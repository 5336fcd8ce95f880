"""Settings of a question's search."""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import everlong._core as _core
from everlong.config.settings import Settings
from everlong.text.vectors import Encoder, encoder_name

if TYPE_CHECKING:
    IndexPart: TypeAlias = str
else:
    IndexPart = Literal[tuple(kind.name for kind in _core.index_kinds())]  # those that the core has
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

    # Index parts; several are fused (index/fusion.h). "heads" are found once the memory has 64 pages: before, the
    # others find. "mean_pool" and "hnsw" search the same means of blocks' keys, the one exactly, the other by a graph.
    # "meaning" searches by vectors of the towers, which a model's pack has, "encoder" by those of a text encoder, which
    # serves every model. Each is passed over where there are none. "words" and "lexical" are BM25, over words and over
    # token ids; the second stands for the first where a tokenizer does not tell which ids spell a word.
    index: IndexPart | tuple[IndexPart, ...] = ("heads", "words", "meaning", "encoder")
    encoder: str | Encoder = (
        "minilm"  # the encoder of the index part "embedding": a name for `load_encoder`, or an object
    )
    # How its vectors are searched: all of them ("flat"), by a graph ("hnsw"), or by lists that grow with them ("dnii"),
    # with a router that `everlong train router` learns (retrieval/index.py).
    embedding_index: Literal["flat", "hnsw", "dnii"] = "flat"
    # What a question says that leaves fewer blocks to search (graph/tag_tree.h): "times", which need the extra `dates`,
    # and "tags". Where no block fits, all are searched.
    narrow: NarrowBy | tuple[NarrowBy, ...] = ()
    groups: int = 4  # page groups recalled for a question
    # Of eight groups or more one in four comes from a second search, by the question with the best sentence that the
    # first one found (retrieval/hop.py): evidence that the question's own words do not lead to.
    hop: bool = True
    neighbours: int = 1  # pages on either side of a page that was found
    # One group comes alone when its page has this many times the mass of the next and all parts agree. None: never,
    # because text about similar things helps a small model to the form of the answer.
    decisive: float | None = None
    # Of passages that tell the same thing with other values the newest comes first (retrieval/recency.py).
    newest_first: bool = True
    # For at most so many seconds the model itself re-ranks what a search names first, up to 64 places, by how likely
    # the question is after each (retrieval/rerank.py). At least 8 are looked at, however long they take. 0: off; a
    # memory of text alone has no keys for it, and there it is off.
    rerank_seconds: float = 0.0
    query_distance: int = 2048  # the heads' queries are rotated to this distance from every key; 0: un-rotated
    retrieval_heads: int = 5  # how many heads calibration keeps; a memory that has some keeps those, and their distance
    # Format of these heads' keys in RAM: int8 and e4m3 take half of bf16. For an archive in e4m3-plain, e4m3 finds what
    # bf16 does.
    heads_keys: HeadsKeys = "e4m3"
    # Bytes of the model's GPU for these keys and the room to search them there. Where they do not fit, and with 0,
    # questions are searched on the host.
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
        """Return plain values for JSON. An encoder object is replaced by what tells its vectors from another's."""
        encoder = self.encoder if isinstance(self.encoder, str) else encoder_name(self.encoder)
        return {**super().to_dict(), "encoder": encoder}

"""The native core: memories (store + index), the Memory OS and vector indexes.

Arrays are numpy, C-contiguous. Nothing here knows torch. Failures are the exceptions of `everlong.errors`. Long calls
release the GIL.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FORMAT_VERSION: int
GRAPH_SHARE: float  # GardenerOptions::share where none is given

class Manifest:
    """What a memory depends on. `attributes` returns a copy: assign a whole dict, or use Memory.set_attribute."""

    weights: str
    rope: str
    tokenizer: str
    layers: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    codec: str
    attributes: dict[str, str]
    @property
    def text_alone(self) -> bool:
        """Whether blocks have token ids and no payload: layers is 0."""
    def __init__(
        self,
        *,
        weights: str,
        rope: str,
        tokenizer: str,
        layers: int,
        kv_heads: int,
        head_dim: int,
        page_tokens: int,
        codec: str,
        attributes: dict[str, str] = ...,
    ) -> None: ...

def check_fingerprint(manifest: Manifest, *, weights: str, rope: str, tokenizer: str) -> None:
    """Raise ModelMismatchError, which names every field that differs."""

def free_memory_bytes() -> int:
    """Return the RAM that this process may still take, control groups counted; 0 when the system does not say."""

class PageRef:
    block: int
    page: int
    stream: int
    begin: int
    end: int
    sink_tokens: int  # how many of its first tokens are sinks of that stream; no recall brings them back
    def __init__(self, block: int, page: int, stream: int, begin: int, end: int, sink_tokens: int = 0) -> None: ...
    def __eq__(self, other: object) -> bool: ...

class BlockInfo:
    @property
    def id(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def sink_tokens(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def created_at(self) -> float: ...
    @property
    def tags(self) -> list[str]: ...
    @property
    def pages(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...

class FoundGroup:
    @property
    def pages(self) -> list[PageRef]: ...
    @property
    def page_scores(self) -> list[float]: ...
    @property
    def stream(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def found_by(self) -> list[str]: ...
    @property
    def confidence(self) -> float | None: ...
    @property
    def walked(self) -> bool: ...

WALK_FEATURES: tuple[str, ...]

class WalkerPolicy:
    """Decides where a walk goes (cpp/graph/include/everlong/graph/walker.h). Immutable."""

    def __init__(
        self,
        inner: npt.NDArray[np.float32],
        inner_bias: npt.NDArray[np.float32],
        outer: npt.NDArray[np.float32],
        outer_bias: float,
    ) -> None:
        """Take inner [units, WALK_FEATURES], inner_bias [units], outer [units]. ValueError for other shapes."""
    def logits(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return [n] for features [n, WALK_FEATURES]."""

class Walk:
    """How a search walks. Immutable."""

    def __init__(
        self,
        policy: WalkerPolicy,
        *,
        loads: int = ...,
        hops: int = ...,
        nodes: int = ...,
        by: Literal["best", "draw", "teacher"] = "best",
        seed: int = 0,
        gold: Sequence[PageRef] = (),
        keep_all: bool = False,
    ) -> None:
        """Set budgets of page groups, of edges in a row and of ways that are looked at. ValueError below 1.

        "draw" takes ways as likely as the policy holds them, "teacher" those that bring pages of `gold`. With
        `keep_all` a step has all its ways, else the best few.
        """

class WalkStep:
    """A choice between ways, best first, and ending."""

    @property
    def pages(self) -> list[PageRef]:
        """Pages that the ways lead to; a page of block 0 for ending."""
    @property
    def came_from(self) -> npt.NDArray[np.int32]:
        """Number of the load that leads there; -1 for the search."""
    @property
    def logits(self) -> npt.NDArray[np.float32]: ...
    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether a way brings a missing page of `gold`; for ending, whether none is missing."""
    @property
    def features(self) -> npt.NDArray[np.float32]:
        """Features [ways, WALK_FEATURES]."""
    @property
    def taken(self) -> int: ...

OWN_TAG: str
HAPPENED_TAG: str
KEY_TAG: str

class TagTree:
    """Blocks by time and tag (cpp/graph/include/everlong/graph/tag_tree.h). One thread at a time."""

    def __init__(self) -> None: ...
    def add(self, block: int, time: float, session: int, tags: Sequence[str]) -> None:
        """Add a block. ValueError for an id that is not above all before."""
    def forget(self, block: int, tags: Sequence[str]) -> None:
        """Remove a block. `tags` are those it was added with."""
    def narrow(
        self, times: Sequence[tuple[float, float]] = (), tags: Sequence[str] = (), most: int = ...
    ) -> tuple[str, npt.NDArray[np.int64]]:
        """Return what narrowed it, and the ids, ascending.

        The first is "times_and_all_tags", "times_and_some_tags", "times", "tags" or "nothing".
        """
    def blocks_with(self, tag: str) -> int: ...
    def buckets(self) -> list[tuple[int, int, int, int, int]]:
        """Return (year, month, day, session, blocks), in order of time."""
    def __len__(self) -> int: ...
    def __contains__(self, block: int) -> bool: ...
    @property
    def nbytes(self) -> int: ...

class Narrow:
    """Times, from and up to, and tags that a search is narrowed by. Immutable."""

    def __init__(
        self,
        times: Sequence[tuple[float, float]] = (),
        tags: Sequence[str] = (),
        *,
        most: int = ...,
        soft: bool = True,
    ) -> None: ...

class WalkReport:
    @property
    def loads(self) -> list[PageRef]: ...
    @property
    def came_from(self) -> list[int]: ...
    @property
    def steps(self) -> list[WalkStep]: ...
    @property
    def looked_at(self) -> int: ...
    @property
    def stopped(self) -> bool:
        """Whether the policy stopped it; False: a budget did."""

class SearchResult:
    @property
    def narrowed_by(self) -> str | None: ...
    @property
    def narrowed_to(self) -> int: ...
    @property
    def walk(self) -> WalkReport | None: ...
    @property
    def groups(self) -> list[FoundGroup]: ...
    @property
    def top_mass(self) -> float: ...
    @property
    def agreed(self) -> bool: ...
    @property
    def decisiveness(self) -> float: ...
    @property
    def confidence(self) -> float | None: ...
    @property
    def signs(self) -> dict[str, float]: ...

class PageRanking:
    """A part's pages, best first, by one of its granularities."""

    @property
    def part(self) -> str: ...
    @property
    def granularity(self) -> Literal["page", "group"]: ...
    @property
    def pages(self) -> list[PageRef]: ...
    @property
    def scores(self) -> list[float]: ...
    @property
    def whole(self) -> float: ...
    @property
    def unnamed(self) -> float: ...

class StoreStats:
    @property
    def blocks(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def tensor_bytes(self) -> dict[str, int]: ...
    @property
    def graph_nodes(self) -> int: ...
    @property
    def graph_edges(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...
    @property
    def dead_bytes(self) -> int: ...
    @property
    def host_bytes(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...

class Damage:
    @property
    def block(self) -> int: ...
    @property
    def what(self) -> str: ...

class VerifyReport:
    @property
    def blocks(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def damage(self) -> list[Damage]: ...
    @property
    def dropped(self) -> list[int]: ...

class PendingReads:
    def wait(self) -> None: ...

class Blocks:
    """The blocks of a memory: cpp/os/include/everlong/os/blocks.h."""

    def append(
        self,
        *,
        stream: int,
        begin: int,
        end: int,
        sink_tokens: int,
        source: str,
        created_at: float,
        tags: Sequence[str],
        token_ids: npt.NDArray[np.int32],
        payload: npt.NDArray[np.uint8] | StagingBuffer,
        tensors: Mapping[str, npt.NDArray[Any]] = ...,
        role: str = "read",
    ) -> int: ...
    def add_tags(self, block: int, tags: Sequence[str]) -> None: ...
    def put_tensors(self, block: int, tensors: Mapping[str, npt.NDArray[Any]]) -> None: ...
    def forget(self, blocks: Sequence[int]) -> None: ...
    def tensors(self, block: int) -> dict[str, npt.NDArray[Any]]: ...
    def tensor(self, block: int, name: str) -> npt.NDArray[Any]: ...
    def tensor_shapes(self, block: int) -> dict[str, tuple[str, tuple[int, ...]]]: ...
    def infos(
        self,
        *,
        source: str | None = None,
        tag: str | None = None,
        since: float | None = None,
        before: float | None = None,
        roles: Sequence[str] = (),
    ) -> list[BlockInfo]: ...
    def info(self, id: int) -> BlockInfo: ...
    def pages(self) -> list[PageRef]: ...
    def pages_of(self, stream: int, begin: int, end: int) -> list[PageRef]: ...
    def read_pages(self, pages: Sequence[PageRef], out: npt.NDArray[np.uint8]) -> None: ...
    def start_read_pages(
        self, pages: Sequence[PageRef], first_layer: int, layers: int, out: npt.NDArray[np.uint8]
    ) -> PendingReads: ...
    def read_keys(self, page: PageRef, layer: int) -> npt.NDArray[np.float32]: ...
    def token_ids(self, stream: int, begin: int, end: int) -> npt.NDArray[np.int32]: ...
    def stream_end(self, stream: int) -> int: ...

class Searcher:
    """The searches of a memory: cpp/os/include/everlong/os/search.h."""

    def find(
        self,
        *,
        token_ids: npt.NDArray[np.int32],
        head_queries: npt.NDArray[np.float32] | None = None,
        mean_query: npt.NDArray[np.float32] | None = None,
        page_query: npt.NDArray[np.float32] | None = None,
        meaning_query: npt.NDArray[np.float32] | None = None,
        kinds: Sequence[str] = ("heads", "lexical"),
        max_groups: int = 4,
        neighbours: int = 1,
        token_budget: int = 1024,
        least_share: float = ...,
        added: Sequence[tuple[PageRef, float]] = (),
        stream: int = 0,
        resident_from: int | None = None,
        sources: Sequence[str] = (),
        tags: Sequence[str] = (),
        since: float | None = None,
        before: float | None = None,
        roles: Sequence[str] = (),
        walk: Walk | None = None,
        narrow: Narrow | None = None,
    ) -> SearchResult: ...
    def rankings(
        self,
        k: int,
        *,
        token_ids: npt.NDArray[np.int32],
        head_queries: npt.NDArray[np.float32] | None = None,
        mean_query: npt.NDArray[np.float32] | None = None,
        page_query: npt.NDArray[np.float32] | None = None,
        meaning_query: npt.NDArray[np.float32] | None = None,
        kinds: Sequence[str] = ("heads", "lexical"),
        max_groups: int = 4,
        neighbours: int = 1,
        token_budget: int = 1024,
        least_share: float = ...,
        added: Sequence[tuple[PageRef, float]] = (),
        stream: int = 0,
        resident_from: int | None = None,
        sources: Sequence[str] = (),
        tags: Sequence[str] = (),
        since: float | None = None,
        before: float | None = None,
        roles: Sequence[str] = (),
        walk: Walk | None = None,
        narrow: Narrow | None = None,
    ) -> list[PageRanking]: ...
    def recent_pages(
        self,
        stream: int,
        end: int,
        blocks: int,
        *,
        sources: Sequence[str] = (),
        tags: Sequence[str] = (),
        since: float | None = None,
        before: float | None = None,
        roles: Sequence[str] = (),
    ) -> list[PageRef]: ...
    def random_pages(
        self,
        stream: int,
        end: int,
        count: int,
        seed: int,
        *,
        sources: Sequence[str] = (),
        tags: Sequence[str] = (),
        since: float | None = None,
        before: float | None = None,
        roles: Sequence[str] = (),
    ) -> list[PageRef]: ...
    def idf(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]: ...

class Indexes:
    """The index of a memory: cpp/os/include/everlong/os/index.h."""

    def set_retrieval_heads(
        self,
        heads: Sequence[tuple[int, int, int]],
        coarse_from: int = ...,
        keys: str = "bf16",
        device: int | None = None,
        device_bytes: int = 0,
    ) -> None: ...
    def retrieval_heads(self) -> list[tuple[int, int, int]]: ...
    def device_use(self, part: str) -> tuple[int, int]: ...
    def set_page_vectors(self, encoder: str, dimension: int, search: str = "flat") -> None: ...
    def page_lists(self) -> NeuralInvertedIndex | None: ...
    def set_page_router(
        self, lists: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32], biases: npt.NDArray[np.float32]
    ) -> None: ...
    def add_page_vectors(
        self,
        block: int,
        pages: npt.NDArray[np.int32],
        vectors: npt.NDArray[np.float32],
        terms: Sequence[Sequence[int]] = (),
    ) -> None: ...
    def pages_without_vectors(self) -> list[PageRef]: ...
    def set_meaning(
        self,
        pack: str | None,
        dimension: int = 0,
        group_tokens: int = 0,
        device: int | None = None,
        device_bytes: int = 0,
    ) -> None: ...
    def blocks_without_meaning(self) -> list[int]: ...
    def save(self) -> None: ...
    def take_messages(self) -> list[str]: ...

class BlockGraph:
    """The graph over the blocks of a memory: cpp/os/include/everlong/os/graph.h."""

    def grow(
        self,
        *,
        levels: int = ...,
        radius: float = 0.0,
        share: float = ...,
        growth: float = ...,
        most_members: int = ...,
        looked_at: int = ...,
        seed: int = 0,
    ) -> None: ...
    def tend(self, most_blocks: int) -> int: ...
    def read(self) -> tuple[list[GraphNode], list[GraphEdge]]: ...
    def node(self, id: int) -> GraphNode: ...
    def nodes(self, kind: str) -> list[GraphNode]: ...
    def edges(self, node: int) -> list[GraphEdge]: ...
    def path(self, source: int, target: int) -> list[int]: ...
    def tag_buckets(self) -> list[tuple[int, int, int, int, int]]: ...

class Upkeep:
    """The upkeep of a memory: cpp/os/include/everlong/os/upkeep.h."""

    def flush(self) -> None: ...
    def compact(self) -> int: ...
    def verify(self, repair: bool = False) -> VerifyReport: ...
    def fork(self, folder: str) -> None: ...
    def export_file(self, file: str) -> None: ...
    def stats(self) -> StoreStats: ...

class Memory:
    """One memory: cpp/os/include/everlong/os/memory.h."""

    @staticmethod
    def create(folder: str | None, manifest: Manifest, host_bytes: int | None = None) -> Memory: ...
    @staticmethod
    def open(folder: str, read_only: bool = False, host_bytes: int | None = None) -> Memory: ...
    @staticmethod
    def import_file(file: str, folder: str | None, host_bytes: int | None = None) -> Memory: ...
    @staticmethod
    def repair(folder: str) -> VerifyReport: ...
    @property
    def blocks(self) -> Blocks: ...
    @property
    def search(self) -> Searcher: ...
    @property
    def index(self) -> Indexes: ...
    @property
    def graph(self) -> BlockGraph: ...
    @property
    def upkeep(self) -> Upkeep: ...
    def page_bytes(self, tokens: int) -> int: ...
    def manifest(self) -> Manifest: ...
    def set_attribute(self, key: str, value: str) -> None: ...
    def put_file(self, name: str, data: bytes) -> None: ...
    def file(self, name: str) -> bytes | None: ...
    @property
    def read_only(self) -> bool: ...
    def close(self) -> None: ...

class GraphNode:
    """cpp/store/include/everlong/store/graph.h; python/everlong/graph/graph.py is its Python API."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def vector(self) -> npt.NDArray[np.float32]: ...
    @property
    def count(self) -> int: ...
    @property
    def linear_sum(self) -> npt.NDArray[np.float64]: ...
    @property
    def square_sum(self) -> float: ...
    @property
    def created_at(self) -> float: ...
    @property
    def updated_at(self) -> float: ...

class GraphEdge:
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def time(self) -> float: ...

class Gardener:
    """cpp/graph/include/everlong/graph/gardener.h, with the vectors of its blocks in RAM: for tests and benchmarks."""

    def __init__(
        self,
        dimension: int,
        *,
        levels: int = ...,
        radius: float = 0.0,
        share: float = ...,
        growth: float = ...,
        most_members: int = ...,
        looked_at: int = ...,
        seed: int = 0,
    ) -> None: ...
    def add(self, blocks: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]) -> None:
        """Add blocks one after the other. Those before one that is refused stay."""
    def forget(self, block: int) -> None: ...
    def centre_of(self, block: int) -> int | None: ...
    def centres(self) -> list[Centre]:
        """Return the centres by level, then id."""
    def size(self, level: int = 0) -> int: ...
    def radius(self, level: int = 0) -> float: ...
    @property
    def nbytes(self) -> int: ...

class Centre:
    @property
    def id(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def parent(self) -> int: ...
    @property
    def members(self) -> list[int]: ...
    @property
    def count(self) -> int: ...
    @property
    def square(self) -> float: ...
    @property
    def linear(self) -> npt.NDArray[np.float64]: ...

class VectorIndex:
    """cpp/index/include/everlong/index/vector_index.h; python/everlong/retrieval/index.py is its Python API."""

    @staticmethod
    def flat(dimension: int, metric: str, storage: str) -> VectorIndex: ...
    @staticmethod
    def hnsw(
        dimension: int, metric: str, links: int, ef_construction: int, ef: int, exact_below: int
    ) -> VectorIndex: ...
    @staticmethod
    def load_flat(file: str) -> VectorIndex: ...
    @staticmethod
    def load_hnsw(file: str) -> VectorIndex: ...
    def add(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]) -> None: ...
    def remove(self, ids: npt.NDArray[np.int64]) -> int: ...
    def search(
        self, queries: npt.NDArray[np.float32], k: int, allowed: npt.NDArray[np.uint8] | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return ids and scores [n, k]; where there are fewer hits, -1 and minus infinity."""
    def save(self, file: str) -> None: ...
    @property
    def dimension(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class NeuralInvertedIndex(VectorIndex):
    """cpp/index/include/everlong/index/neural_inverted_index.h."""

    def __init__(
        self, dimension: int, metric: str, list_vectors: int, probes: int, rescored: int, exact_below: int
    ) -> None: ...
    @staticmethod
    def load(file: str) -> NeuralInvertedIndex: ...
    def probe(
        self,
        queries: npt.NDArray[np.float32],
        k: int,
        allowed: npt.NDArray[np.uint8] | None,
        probes: int,
        terms: list[list[int]],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]: ...
    def lists(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return ids, centroids [lists, dimension] and sizes."""
    def lists_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def router(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return ids of lists, vectors [lists, dimension] and biases."""
    def set_router(
        self, lists: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32], biases: npt.NDArray[np.float32]
    ) -> None: ...
    def set_terms(self, id: int, terms: list[int]) -> None: ...

class MemoryOsConfig:
    """Settings of the Memory OS. Defaults of all fields stand in the C++ headers of the os layer alone."""

    stream: int
    frame_tokens: int
    sink_tokens: int
    recalled_tokens: int
    rolling_tokens: int
    evict_tokens: int
    anchor_tokens: int
    anchors: int
    tombstones: int
    kept_tokens: int
    kept_share: int
    kept_rungs: int
    block_tokens: int
    least_tokens: int
    cooldown_tokens: int
    topic_threshold: float
    topic_lookahead: int
    recall_prompt: bool
    recall_recent: bool
    recall_periodic: bool
    recall_signal: bool
    recall_tombstone: bool
    tombstone_threshold: float
    prompt_rolling_tokens: int
    conversation_tokens: int
    recent_every: int
    recent_blocks: int
    periodic_every: int
    protect_tokens: int
    def __init__(self, **fields: float) -> None:
        """Take fields by name. TypeError for a field that is not one of those above."""

class Archive:
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def sink_tokens(self) -> int: ...
    @property
    def role(self) -> str:
        """Role of all its tokens: "read", "asked" or "said"."""

class Trim:
    """A request for the best tokens of a closed block. choose() answers it, before an Evict is executed."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def tokens(self) -> int:
        """How many are wanted, at least 1."""
    @property
    def runs(self) -> list[tuple[int, int]]:
        """Spans of the stream that may be chosen from, ascending."""

class Keep:
    """What stays of tokens that leave the frame: each of them as an anchor, or their mean as one tombstone."""

    @property
    def tombstone(self) -> bool: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def dropped(self) -> int:
        """Anchor slots that leave the zone first, the oldest."""
    @property
    def merged(self) -> int:
        """The tombstone that then takes in the next one, each weighted by the tokens it stands for; -1: none."""
    @property
    def merged_tokens(self) -> int: ...
    @property
    def next_tokens(self) -> int: ...

class Evict:
    @property
    def tokens(self) -> int: ...
    @property
    def delta(self) -> int: ...
    @property
    def keeps(self) -> list[Keep]:
        """What stays of them. It is done first, in order."""
    @property
    def anchor_positions(self) -> list[int]:
        """Frame positions of the anchor zone's slots, tombstones first."""

class Recall:
    @property
    def trigger(self) -> str:
        """One of "prompt", "recent", "periodic", "signal" and "tombstone"."""
    @property
    def blocks(self) -> int: ...
    @property
    def span(self) -> tuple[int, int]:
        """For "tombstone": the tokens of the stream that it stands for."""

class Placement:
    @property
    def page(self) -> PageRef: ...
    @property
    def first_token(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def details(self) -> bool:
        """Whether these are slots of Detail Tokens. Then `page` is all of the block."""

class MemoryOs:
    """The Memory OS: cpp/os/include/everlong/os/memory_os.h. An invalid config raises ValueError."""

    def __init__(self, config: MemoryOsConfig) -> None: ...
    def branch(self) -> MemoryOs:
        """Return a copy that archives nothing. Its events say where it left the stream."""
    def take_trace(self, branch: MemoryOs) -> None:
        """Take over the events of a branch() of this one."""
    def room(self) -> int: ...
    def next_position(self) -> int: ...
    def observe(
        self,
        tokens: int,
        origin: str,
        boundaries: Sequence[tuple[int, str]] = (),
        topic_probabilities: npt.NDArray[np.float32] = ...,
        tombstone_scores: Sequence[float] = (),
    ) -> list[Archive | Trim | Evict | Recall]:
        """Note tokens of an origin: "read", "prompt" or "generated". CapacityError when there is no room() for them.

        - boundaries: where blocks may end, (offset 0..tokens, "sentence" | "paragraph" | "turn" | "signal"), ascending.
        - topic_probabilities: from the learned trigger, one a token or none. Each says, once its token is read, how
          probably a topic ended topic_lookahead tokens before.
        - tombstone_scores: how much the newest token attends to each tombstone, one for each or none.
        """
    def raise_signal(self, signal: str) -> list[Archive | Trim | Evict | Recall]:
        """Note a signal, "summarize" or "retrieve", right after the newest token."""
    def end_of_text(self) -> list[Archive | Trim | Evict | Recall]: ...
    def choose(self, tokens: Sequence[int]) -> None:
        """Answer the oldest open Trim by tokens of the stream, the best first.

        Until all are answered every call that decides something raises ValueError. So does this where no answer is due,
        or the tokens are no answer.
        """
    def begin_prompt(self) -> list[Archive | Trim | Evict | Recall]: ...
    def recall(
        self,
        pages: Sequence[PageRef],
        conversation: Sequence[PageRef] = (),
        kept: Mapping[int, Sequence[int]] = ...,
        details: Sequence[tuple[int, int, int, int, int]] = ...,
    ) -> list[Placement]:
        """Place pages. kept: by block, the only tokens of its stream that come back of it.

        details: blocks that stand before the pages as Detail Tokens: block, stream, first token, one past the last, and
        how many slots, ValueError below 1.
        """
    def clear_recalled(self) -> None: ...
    def resume(
        self,
        stream_end: int,
        pages: Sequence[PageRef],
        *,
        rolling_from: int | None = None,
        read_until: int | None = None,
        anchor_zone: dict[str, list[Any]] | None = None,
        kept: dict[str, Any] | None = None,
        recall_counts: dict[str, Any] | None = None,
        cooldown_until: int = 0,
        archived_until: int | None = None,
    ) -> list[Placement]:
        """Go on in a new process. Each keyword is a field of memory_os.h's ResumeState.

        - recall_counts, cooldown_until: those of an earlier frame. What no frame could have is left out.
        - archived_until: what is fed from stream_end up to there is in the archive. ValueError where it is before
          stream_end.
        """
    def stop_archiving(self) -> None: ...
    @property
    def archiving(self) -> bool: ...
    @property
    def state(self) -> str:
        """One of "generating", "archiving" and "retrieving"."""
    @property
    def stream(self) -> int: ...
    @property
    def stream_end(self) -> int: ...
    @property
    def archived_until(self) -> int: ...
    @property
    def read_until(self) -> int:
        """One past the newest token that was read, not asked or generated."""
    @property
    def conversation(self) -> tuple[int, int]: ...
    @property
    def rolling(self) -> tuple[int, int]: ...
    @property
    def sinks(self) -> int: ...
    @property
    def anchor_zone(self) -> dict[str, list[Any]]:
        """tombstones: (begin, end, tokens); anchors: (begin, end); topics: first tokens of those not all kept yet."""
    @property
    def kept(self) -> dict[str, Any]:
        """until: chosen tokens before it stand in the zone; blocks: (begin, end, rung, tokens, the best first)."""
    @property
    def kept_held(self) -> list[int]:
        """Tokens of the stream that the kept zone holds, ascending."""
    @property
    def kept_shown(self) -> list[int]:
        """Those of them that no recall of their page hides."""
    @property
    def kept_position(self) -> int:
        """Frame position of the first that is shown. The others follow."""
    @property
    def open_from(self) -> int:
        """The first token of the open block."""
    @property
    def cooldown_until(self) -> int:
        """Signals before this token of the stream are passed over."""
    @property
    def recall_counts(self) -> dict[str, Any]:
        """since_recent, since_periodic, since_restored (None: nothing came back yet), in tokens; signal_waits."""
    @property
    def anchor_positions(self) -> list[int]:
        """Frame positions of the anchor zone's slots, tombstones first."""
    @property
    def recalled_tokens(self) -> int: ...
    @property
    def evicted(self) -> bool:
        """Whether anything has left the frame. Only then is there a recalled zone."""
    def trace(self) -> list[dict[str, Any]]:
        """Return dicts of what was decided, oldest first; memory_os.h's Event says what each field may be.

        Fields: stream, stream_position, state, what, begin, end, tokens, and those below. They are None where there is
        none.

        - restored: dicts of block, stream, begin, end.
        - trigger: of a recall, "prompt", "recent", "periodic", "signal" or "tombstone".
        - ended_by: of a block, "length", "sentence", "paragraph", "answer", "turn", "topic", "signal", "question" or
          "text".
        - branched_at: where the branch in which it was decided left the stream.
        """

class StagingBuffer:
    """Host memory of a TransferEngine's pool, pinned where there is a GPU. It goes back when nobody holds it.

    It must not be touched from a hand-over to the end of its transfer.
    """

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The memory itself, [bytes]. It keeps the buffer alive."""

class Transfer:
    """A batch of copies that was handed over."""

class StreamPoint:
    """A place in a GPU stream: what had been enqueued there when it was made."""

class TransferEngine:
    """Moves bytes between host and device through staging buffers, beside what computes. Thread-safe.

    `device` is a GPU's index: copies run on side streams, one a direction. None: the device is the host, and copies run
    on a worker thread. `stream` is the handle of the stream on which the device's side is used. A transfer begins after
    the point `after` and after earlier transfers in its direction. Nothing waits for it but what `order_after` and
    `wait` name. A worker thread knows no streams: its points hold nothing, and `order_after` waits.
    """

    def __init__(self, device: int | None, pool_bytes: int) -> None: ...
    def acquire(self, bytes: int) -> StagingBuffer:
        """Return a buffer of `bytes`. It waits for the oldest transfers when the pool is used up.

        CapacityError when the pool cannot hold it, or what is held was never handed over.
        """
    def try_acquire(self, bytes: int, keep_free: int = 0) -> StagingBuffer | None:
        """Do the same without waiting. None where there is no room for it and `keep_free` bytes now, or never."""
    def to_device(self, buffer: StagingBuffer, device_address: int, after: StreamPoint | None = None) -> Transfer:
        """Copy the whole buffer there, without waiting. `after`: the last use of what lies there."""
    def to_host(self, buffer: StagingBuffer, device_address: int, after: StreamPoint | None = None) -> Transfer:
        """Fill the whole buffer from there, without waiting. `after`: what writes that."""
    def point_of(self, stream: int) -> StreamPoint:
        """Return a point for what has been enqueued on the stream so far."""
    def order_after(self, transfer: Transfer, stream: int) -> None:
        """Start what is enqueued on the stream from now on after the transfer."""
    def wait(self, transfer: Transfer) -> None: ...

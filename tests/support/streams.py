"""Forty scripted streams through the public API, each with another config: what they do must not change by itself.

`python -m support.streams > out.json`, with tests/ on the path, writes all that is said of each stream: every event,
what was recalled and why, the tokens of answers, a digest of what stood in the frame and of the archive. `--digest`
prints a line a stream, and names of streams run these alone. Two trees that decide alike print the same on one machine;
another machine rounds the model otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import torch
from typer.testing import CliRunner

import everlong
from everlong import MemoryModel, Where
from everlong.cli.app import app
from everlong.data import shipped_books
from everlong.models.pack import pack_of
from support import byte_tokenizer, tiny_model, tiny_text_model
from support.stream_settings import LEARNED, STREAMS

# --- what no public name tells; adapt these alone when inner names change


def settle(mm: MemoryModel) -> None:
    """Wait until all that is done in the background is done."""
    mm.searcher.settle()


def resident(mm: MemoryModel) -> dict[str, Any]:
    """Return where the frame stands, and a digest of its keys, values and positions, or the text of one without."""
    frame: Any = mm.frame  # of keys and values, or of text
    decides = frame.os
    stands = {name: getattr(decides, name) for name in ("rolling", "conversation", "anchor_positions", "kept_shown")}
    stands |= {"next_position": decides.next_position(), "recalled_tokens": decides.recalled_tokens}
    if not hasattr(frame, "cache"):
        return stands | {"text": digest(bytes(str(frame.text), "utf-8"))}
    cache, slots = frame.cache, slice(frame.cache.begin, frame.cache.end)
    held = [cache.k[:, :, slots], cache.v[:, :, slots], cache.cos[slots], cache.sin[slots]]
    held += [tensor for _, tensor in sorted(cache.own.tensors().items())]
    return stands | {
        "slots": cache.end - cache.begin,
        "held": digest(*(t.contiguous().numpy().tobytes() for t in held)),
    }


def checkpoint(memory: everlong.Memory) -> Any:
    return json.loads(memory.core.manifest().attributes.get("frame", "null"))


def add_stream(memory: everlong.Memory) -> None:
    """Append the first block once more, as the beginning of another stream."""
    core, block = memory.core, memory.core.blocks.infos()[0]
    pages = core.blocks.pages_of(block.stream, block.begin, block.end)
    payload = torch.zeros(sum(core.page_bytes(page.end - page.begin) for page in pages), dtype=torch.uint8).numpy()
    core.blocks.read_pages(pages, payload)
    ids = core.blocks.token_ids(block.stream, block.begin, block.end)
    begin = core.blocks.stream_end(7)
    own: dict[str, Any] = {"stream": 7, "sink_tokens": 0, "source": "elsewhere", "tags": ["copied"]}
    core.blocks.append(begin=begin, end=begin + len(ids), created_at=5.0, token_ids=ids, payload=payload, **own)


CHAT = "{% for message in messages %}[{{ message['role'] }}: {{ message['content'] }}]{% endfor %}"
STEPS = (
    "read",
    "read",
    "ask",
    "ask",
    "ask",
    "look",
    "recall",
    "pages",
    "talk",
    "many",
    "perplexity",
    "signal",
    "forget",
)


class Run:
    """One stream on its way. `said` is what it has to tell."""

    def __init__(self, name: str, folder: Path) -> None:
        self.stream, self.rng, self.folder = STREAMS[name], Random(name), folder
        self.book = self.rng.choice(shipped_books()).text
        self.texts: list[str] = []
        self.hour = 0
        kind, rope = self.stream.model
        self.model = tiny_model(kind, rope) if rope else tiny_text_model(kind)
        self.tokenizer = byte_tokenizer()
        if self.stream.chat:
            self.tokenizer.chat_template = CHAT
        self.pack = folder / "pack" if self.stream.learned else None
        if self.pack is not None:
            pack_of(self.model, LEARNED[self.stream.learned](self.model)).save(self.pack)
        self.mm = self.opened()
        drawn = [self.rng.choice(STEPS) for _ in range(8)]
        self.steps = [
            "read",
            *self.stream.more,
            *drawn[:4],
            "ask",
            "reopen",
            *drawn[4:],
            "fork",
            "compact",
            "ask",
            "reopen",
            "ask",
        ]

    def opened(self) -> MemoryModel:
        folder = self.folder / "memory" if self.stream.folder else None
        return MemoryModel(self.model, self.tokenizer, folder, self.stream.config, pack=self.pack)

    def all(self) -> Iterator[dict[str, Any]]:
        """Yield what each step says, then all events, and what is left at the end."""
        for step in self.steps:
            self.hour += 1
            torch.manual_seed(self.hour)
            with mock.patch("time.time", return_value=1e9 + 3600.0 * self.hour):
                said = plain(getattr(self, f"_{step}")())
                settle(self.mm)
            yield {"step": step, "said": said, "resident": plain(resident(self.mm))}
        yield {"step": "end", "said": plain(self._reopen())}
        self.mm.close()

    def _read(self) -> Any:
        at, length = self.rng.randrange(len(self.book) - 2000), self.rng.randrange(150, 700)
        self.texts.append(self.book[at : at + (length if self.texts else 1300)])
        told: dict[str, Any] = {
            "tags": self.rng.choice([(), "blue", ("blue", "green")]),
            "happened": self.rng.choice([None, 3e8, 6e8]),
        }
        report = self.mm.read(self.texts[-1], source=f"text {self.rng.randrange(3)}", **told)
        return dataclasses.replace(report, seconds=0.0)

    def _question(self) -> str:
        text = self.rng.choice(self.texts)
        at = self.rng.randrange(len(text) - 40)
        return text[at : at + 40].strip() + "?"

    def _where(self) -> Where:
        return self.rng.choice([
            Where(source=("text 0", "text 1")), Where(tags="blue"), Where(role=("read", "said")), Where(role="asked"),
            Where(before=1e9 + 3600.0 * 4), Where(happened_after=4e8),
        ])  # fmt: skip

    def _ask(self) -> Any:
        return self.mm.generate(self._question(), max_new_tokens=self.rng.randrange(6, 20))

    def _look(self) -> Any:
        drawn: dict[str, Any] = self.rng.choice([{}, {"do_sample": True, "temperature": 0.8}])
        return self.mm.generate(self._question(), max_new_tokens=10, remember=False, where=self._where(), **drawn)

    def _recall(self) -> Any:
        return [self.mm.recall(self._question()), self.mm.recall(self._question(), where=self._where())]

    def _pages(self) -> Any:
        return self.mm.generate(self._question(), max_new_tokens=8, recall=self.mm.recall(self._question()))

    def _talk(self) -> Any:
        said = []
        for piece in self.mm.stream(self._question(), max_new_tokens=24):
            said.append(piece)
            if len(said) in (7, 15):
                self.mm.signal("retrieve" if len(said) == 7 else "summarize")
        return [said, self.mm.last_recalled, self.mm.last_confidence]

    def _messages(self) -> Any:
        turns = [{"role": role, "content": self._question()} for role in ("user", "assistant", "user")]
        return self.mm.generate(messages=turns, system="Answer.", max_new_tokens=8)

    def _many(self) -> Any:
        return self.mm.answer_many([self._question(), self._question()], 6, where=[Where(), self._where()])

    def _perplexity(self) -> Any:
        policy: Any = self.rng.choice([None, "recent", "random", "window"])
        return self.mm.perplexity(self.rng.choice(self.texts)[:120], policy=policy, seed=1)

    def _signal(self) -> None:
        for _ in range(2):
            self.mm.signal(self.rng.choice(["retrieve", "summarize"]))

    def _calibrate(self) -> Any:
        self.mm.read(self.book[3000:8000], source="long")
        return self.mm.calibrate(seed=1)

    def _other(self) -> None:
        add_stream(self.mm.memory)

    def _forget(self) -> Any:
        if self.rng.random() < 0.3:
            return self.mm.memory.forget(where=Where(source="text 2"))
        ids = [block.id for block in self.mm.memory.blocks()]
        return self.mm.memory.forget(self.rng.sample(ids, min(len(ids), 2)))

    def _compact(self) -> Any:
        self.mm.memory.compact()  # how many bytes are given back depends on when the catalog wrote its own
        return self.mm.memory.verify()

    def _fork(self) -> Any:
        """Branch the folder, and write all of it to one file."""
        if not self.stream.folder:
            return None
        self.mm.memory.flush()
        with self.mm.memory.fork(self.folder / "fork") as fork:
            fork.forget([fork.blocks()[0].id])
            fork.export(self.folder / "file")
        with everlong.Memory.import_file(self.folder / "file", None) as imported:
            return [imported.blocks(), digest((self.folder / "file").read_bytes())]

    def _reopen(self) -> Any:
        """Return all events, and what the memory holds. A memory in RAM stays open."""
        # What is read ahead, and whether it was in time, depends on the machine.
        events = [event for event in self.mm.trace() if event["what"] != "prefetch"]
        told = {"events": events, "blocks": self.mm.memory.blocks(), "stream": self.mm.stream_tokens}
        if not self.stream.folder:
            return told
        self.mm.close()
        shown = json.loads(CliRunner().invoke(app, ["inspect", str(self.folder / "memory"), "--json"]).stdout)
        for now in (
            "host_bytes",
            "catalog_bytes",
            "index_bytes",
            "disk_bytes",
            "dead_bytes",
        ):  # by how much was in RAM, and when
            shown["stats"].pop(now)
        with everlong.Memory.open(self.folder / "memory", read_only=True) as memory:
            told |= {"inspect": shown, "checkpoint": checkpoint(memory)}
        self.mm = self.opened()
        return told


def digest(*pieces: bytes) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def plain(said: Any) -> Any:
    """Return it as JSON keeps it: numbers whole, every field of a record."""
    if dataclasses.is_dataclass(said) and not isinstance(said, type):
        said = {field.name: getattr(said, field.name) for field in dataclasses.fields(said)}
    if isinstance(said, dict):
        return {str(name): plain(value) for name, value in said.items()}
    if isinstance(said, list | tuple | set | frozenset):
        return [plain(one) for one in (said if isinstance(said, list | tuple) else sorted(said))]
    return said.isoformat() if isinstance(said, datetime.datetime) else said


def run(name: str) -> list[dict[str, Any]]:
    """Run a stream in a folder and a cache of its own."""
    with contextlib.ExitStack() as around:
        folder = Path(around.enter_context(tempfile.TemporaryDirectory()))
        around.enter_context(mock.patch.dict(os.environ, {"EVERLONG_CACHE": str(folder / "cache")}))
        around.enter_context(warnings.catch_warnings(action="ignore"))
        return list(Run(name, folder).all())


def main() -> None:
    torch.set_num_threads(1)
    named = [one for one in sys.argv[1:] if one != "--digest"] or list(STREAMS)
    out = {}
    for name in named:
        began = time.monotonic()
        decided = run(name)
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        if "--digest" in sys.argv:  # nothing is kept: 41 streams come to some gigabytes
            print(digest(json.dumps(decided).encode()), f"{len(decided):3}", name, flush=True)
        else:
            out[name] = decided
    if "--digest" not in sys.argv:
        print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()

"""A memory as one page of HTML that needs nothing else. All that comes from the memory is text in it."""

from __future__ import annotations

import collections
import datetime
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everlong.text.notebook_html import CONVERSATION

if TYPE_CHECKING:
    from everlong.memory.memory import Memory
    from everlong.memory.records import Block

_BARS, _TOPICS = 48, 40  # at most


def page_of(memory: Memory, trace: Sequence[Mapping[str, Any]]) -> str:
    """Return the page, of the memory and of what a trace of `MemoryModel` says that came back."""
    import jinja2

    template = pathlib.Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    blocks, stats, manifest = memory.blocks(), memory.stats(), memory.core.manifest()
    sizes = [(label, f"{count:,}") for label, count in (("tokens", stats.tokens), ("blocks", stats.blocks))]
    for label, count in (("keys and values", stats.payload_bytes), ("on disk", stats.disk_bytes)):
        sizes.append((label, f"{count / 1e6:,.1f} MB"))
    return (
        jinja2.Environment(autoescape=True)
        .from_string(template)
        .render(
            name="in RAM" if memory.path is None else pathlib.Path(memory.path).name,
            model=manifest.attributes.get("model", "") or "a model without a name",
            made=_minute(datetime.datetime.now(datetime.UTC)),
            sizes=sizes,
            sources=_sources(blocks),
            bars=time_bars(blocks),
            topics=largest_topics(memory, blocks),
            found=_found(blocks, trace),
            health=_health(memory),
        )
    )


def _minute(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _tokens(blocks: Sequence[Block]) -> int:
    return sum(block.span[1] - block.span[0] for block in blocks)


def _sources(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return name, origin, size and times of each source, in the order in which they were first read."""
    of: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        of.setdefault((block.source, block.origin), []).append(block)
    return [
        {
            "name": name or CONVERSATION,
            "origin": origin,
            "tokens": _tokens(those),
            "blocks": len(those),
            "first": _minute(min(block.created_at for block in those)),
            "last": _minute(max(block.created_at for block in those)),
        }
        for (name, origin), those in of.items()
    ]


def time_bars(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return equal stretches of time, from the first block to the last, and the tokens of each."""
    if not blocks:
        return []
    times = [(block.happened or block.created_at).timestamp() for block in blocks]
    first, last = min(times), max(times)
    count = min(_BARS, len(set(times)))
    step = (last - first) / count or 1.0
    tokens = [[0, 0] for _ in range(count)]  # read, said
    for block, time in zip(blocks, times, strict=True):
        tokens[min(count - 1, int((time - first) / step))][block.role != "read"] += _tokens([block])
    most = max(map(sum, tokens))
    ends = [first, *(first + step * number for number in range(1, count - 1)), last][:count]
    return [
        {
            "when": _minute(datetime.datetime.fromtimestamp(end, datetime.UTC)),
            "read": read,
            "said": said,
            "read_share": round(100 * read / most, 2),
            "said_share": round(100 * said / most, 2),
        }
        for end, (read, said) in zip(ends, tokens, strict=True)
    ]


def largest_topics(memory: Memory, blocks: Sequence[Block]) -> list[tuple[str, int]]:
    """Return the largest topics of the graph with their blocks; without a graph, key phrases and tags."""
    names = memory.graph.names()
    topics = [(names[node.id], node.count) for node in memory.graph.nodes("topic") if names.get(node.id)]
    if not topics:
        topics = list(collections.Counter(itertools.chain(*(b.keyphrases + b.tags for b in blocks))).items())
    return sorted(topics, key=lambda topic: -topic[1])[:_TOPICS]


def _found(blocks: Sequence[Block], trace: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    source = {block.id: block.source or CONVERSATION for block in blocks}
    found: dict[str, dict[str, Any]] = {}
    for run in (run for event in trace if event.get("what") == "restore" for run in event.get("restored", ())):
        name = source.get(run["block"], "forgotten since")
        one = found.setdefault(name, {"name": name, "times": 0, "tokens": 0})
        one["times"] += 1
        one["tokens"] += run["end"] - run["begin"]
    return sorted(found.values(), key=lambda one: -one["tokens"])


def _health(memory: Memory) -> list[str]:
    stats = memory.stats()
    lines = [
        f"{stats.index_bytes / 1e6:,.1f} MB of indexes, and {stats.host_bytes / 1e6:,.1f} MB of payload and catalog, "
        "are in RAM."
    ]
    if stats.dead_bytes:
        lines.append(f"{stats.dead_bytes / 1e6:,.1f} MB are of forgotten blocks: `compact` gives them back.")
    else:
        lines.append("No bytes are of forgotten blocks.")
    return [*lines, "Checksums were not read for this page: `verify` reads all of it back."]

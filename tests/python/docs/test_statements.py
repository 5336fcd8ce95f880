"""What docs say of the code is what the code says: defaults, thresholds, sizes, and lists of what there is.

A row of a table is a page, a pattern whose group is what the page says, and where the code says it. So a test fails
where a page or the code changes alone. Figures that were measured are not here: their commands make them.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import shlex
import tomllib
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import everlong
import everlong.cli.app
from everlong import MemoryConfig, part_list
from support import REPOSITORY, TINY_KINDS
from support.models import KINDS
from support.stream_settings import STREAMS

DOCS = REPOSITORY / "docs"
FILES = sorted([*DOCS.rglob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"])
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = ("python", "cpp", "lab")  # where constants stand
PARTS = {name: part_list.part(name) for name in part_list.names() if part_list.package_of(name).startswith("everlong.")}
GROUPS: dict[str, Any] = {**{group: getattr(MemoryConfig(), group) for group in MemoryConfig.GROUPS}, **PARTS}

# --- what a page says


@functools.cache
def text_of(page: str) -> str:
    folder = REPOSITORY if page in ("README.md", "CONTRIBUTING.md") else DOCS
    return (folder / page).read_text(encoding="utf-8")


def line_of(page: str) -> str:
    """A page as one line."""
    return " ".join(text_of(page).split())


def table(page: str, head: str) -> list[list[str]]:
    """The rows, cell by cell, of the first table of a page whose head begins like that; without the head."""
    lines = text_of(page).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[at + 2 :]:
        if not line.lstrip().startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip(" |").split(" |")])
    return rows


def codes(text: str) -> list[str]:
    """What stands in backticks, without quotes."""
    return [code.strip('"') for code in re.findall(r"`([^`]+)`", text)]


def firsts(page: str, head: str) -> list[str]:
    """What stands in backticks in the first cells of a table."""
    return [code for cells in table(page, head) for code in codes(cells[0])]


_COUNTED = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SHARES = {
    "half": 1 / 2,
    "third": 1 / 3,
    "quarter": 1 / 4,
    "fifth": 1 / 5,
    "eighth": 1 / 8,
    "tenth": 1 / 10,
    "twentieth": 1 / 20,
}
_SHARES |= {"sixteenth": 1 / 16, "three quarters": 3 / 4, "four fifths": 4 / 5}
_WORDS = {**{word: float(number) for number, word in enumerate(_COUNTED)}, **_SHARES, "twice": 2.0, "fourfold": 4.0}
_WORDS |= {"half a million": 524_288.0, "half second": 0.5, "": 1.0}
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "minute": 60, "minutes": 60, "seconds": 1, "days": 86_400}


def number(text: str) -> float:
    """The number that a page says: "4,096", "two minutes", "256 KiB", "2^35", "a quarter", "half a second"."""
    text = text.strip().lower() if text.strip().lower() in _WORDS else text.strip()
    if text in _WORDS:
        return _WORDS[text]
    value, _, unit = text.rpartition(" ")
    if unit in _UNITS:
        return number(value) * _UNITS[unit]
    if "^" in text:
        base, _, exponent = text.partition("^")
        return float(int(base) ** int(exponent))
    return float(text.replace(",", ""))


# --- what the code says

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.LShift: operator.lshift,
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    assert isinstance(node, ast.Tuple), ast.dump(node)
    return tuple(_value(one) for one in node.elts)


@functools.cache
def _sources() -> tuple[tuple[str, str], ...]:
    files = (file for folder in SOURCES for file in sorted((REPOSITORY / folder).rglob("*")))
    return tuple(
        (file.relative_to(REPOSITORY).as_posix(), file.read_text(encoding="utf-8"))
        for file in files
        if file.suffix in (".py", ".h", ".cc") and "tests" not in file.parts
    )


def constant(name: str) -> Any:
    """The value of a constant, or the default of a field, as its file sets it: `NAME`, or `NAME@END-OF-THE-PATH`.

    It is read from the text, so it may be private, and its file may move to another folder.
    """
    name, _, end = name.partition("@")
    line = re.compile(rf"^[\w\s:<>]*?(?<![\w.]){name}(?:: [^=\n]+)? = ([^;#\n]+)", re.MULTILINE)
    found = {path: match[1] for path, text in _sources() if path.endswith(end) and (match := line.search(text))}
    assert len(found) == 1, f"{name} is set in {sorted(found) or 'no file'}"
    text = re.sub(r"\b\w+\{([\d']+)\}", r"\1", next(iter(found.values()))).replace("'", "").strip(" ,")
    return _value(ast.parse(text, mode="eval").body)


def names(name: str) -> tuple[str, ...]:
    """The texts of a tuple or a dict of the package, by the name that it has in its file."""
    found = [
        text for path, text in _sources() if path.endswith(".py") and re.search(rf"^{name}\b.*= [({{]", text, re.M)
    ]
    assert len(found) == 1, f"{name} is set in {len(found)} files"
    for node in ast.parse(found[0]).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            return tuple(ast.literal_eval(node.value))  # type: ignore[attr-defined]  # of an assignment
    raise AssertionError(name)


def setting(path: str) -> Any:
    """The default of a setting, as `search.groups`."""
    group, _, name = path.partition(".")
    return getattr(GROUPS[group], name)


def choices(path: str) -> set[str]:
    """The names that a setting may have."""
    group, _, name = path.partition(".")
    return set(_literals(typing.get_type_hints(type(GROUPS[group]))[name]))


def _literals(kind: Any) -> Iterator[str]:
    if typing.get_origin(kind) is typing.Literal:
        yield from map(str, typing.get_args(kind))
    for one in typing.get_args(kind):
        yield from _literals(one)


# --- settings, wherever they stand

# `search.groups` (4): what stands behind a setting is its default.
DEFAULT = re.compile(r"`([a-z_]+\.[a-z_]+)` \(([\d.,]+)\)")
NAMED = re.compile(rf"(?:{'|'.join(GROUPS)})\.[a-z_]+")
OF_AN_ANSWER = {f"answer.{name}" for name in vars(everlong.Answer)["__dataclass_fields__"]}


def in_backticks() -> list[tuple[str, str]]:
    """What stands in backticks in any page, by page; fences left out."""
    found = []
    for file in FILES:
        text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        found += [(file.name, code) for code in re.findall(r"`([^`\n]+)`", text)]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_a_number_behind_a_setting_is_its_default(file: Any) -> None:
    for path, told in DEFAULT.findall(file.read_text(encoding="utf-8")):
        assert number(told) == setting(path), path


def test_defaults_are_told_in_many_places() -> None:
    assert sum(len(DEFAULT.findall(file.read_text(encoding="utf-8"))) for file in FILES) >= 18


def test_settings_that_are_named_are_there() -> None:
    named = {
        code for _, code in in_backticks() if NAMED.fullmatch(code.partition("=")[0]) and code != "frame.safetensors"
    }
    assert len(named) >= 60
    for code in sorted(named - OF_AN_ANSWER - {"answer.quoted"}):
        path, _, value = code.replace('"', "").partition("=")
        setting(path)
        if value and not re.fullmatch(r"[A-Z]", value) and ";" not in value:
            MemoryConfig().with_settings(["writer.tokens=32", "frame.tombstones=1", f"{path}={value}"])


def test_settings_of_commands_are_taken() -> None:
    given = {one for file in FILES for one in re.findall(r"--set ([\w.]+=[\w.,]+)", file.read_text(encoding="utf-8"))}
    given -= {one for one in given if "surprise" in one or one.startswith("group.")}  # examples of a part and a form
    assert len(given) >= 25
    for one in sorted(given):
        MemoryConfig().with_settings(["writer.tokens=32", "frame.tombstones=1", one])


def test_the_table_of_what_comes_back_has_the_defaults() -> None:
    rows = table("guides/choosing-an-index.md", "| setting | default | meaning |")
    assert len(rows) >= 10
    for name, told, _ in rows:
        (path,) = codes(name)
        default = setting(path)
        said = {"none": None, "true": True, "false": False}.get(told, codes(told)[0] if "`" in told else told)
        assert said == default or (isinstance(said, str) and number(said) == default), path


def test_the_table_of_what_lies_on_a_gpu_has_the_defaults() -> None:
    for names, told, _ in table("guides/choosing-an-index.md", "| setting | default | bounds |"):
        for path in codes(names):
            assert number(told.removesuffix(" each")) == setting(path), path


# A setting, the page with a table of its choices, and those that the table leaves to other places.
CHOICES: list[tuple[str, str, set[str]]] = [
    ("answer.policy", "guides/policies.md", set()),
    ("answer.recall_mode", "guides/policies.md", {"kv", "text", "kept"}),
    ("archive.codec", "guides/policies.md", {"e4m3-plain", "e5m2-plain"}),
    ("search.embedding_index", "guides/choosing-an-index.md", set()),
    ("search.heads_keys", "guides/choosing-an-index.md", set()),
]


@pytest.mark.parametrize(("path", "page", "elsewhere"), CHOICES, ids=[path for path, _, _ in CHOICES])
def test_a_table_of_choices_has_all_of_them_and_marks_the_default(path: str, page: str, elsewhere: set[str]) -> None:
    rows = table(page, f"| `{path}` |")
    assert {code for cells in rows for code in codes(cells[0])} | elsewhere == choices(path)
    assert [codes(cells[0])[0] for cells in rows if "(default)" in cells[0]] == [setting(path)]
    for name in elsewhere:
        assert re.search(rf"\W{name}\W", line_of(page)), name


# --- numbers

Expected = str | Callable[[], float]


def tokens_of(**shape: int) -> float:
    """Bytes of a token's numbers and scales."""
    return shape["heads"] * (shape["numbers"] + 4 * shape["numbers"] / shape["page"])


def quoted_tokens() -> float:
    """The longest quote."""
    return float(constant("_LEAST_TOKENS, _MOST_TOKENS@quotes.py")[1])


def port() -> float:
    """The port of `everlong serve`."""
    command = typer.main.get_command(everlong.cli.app.app).commands["serve"]  # type: ignore[attr-defined]  # of a group
    return float(next(one.default for one in command.params if one.name == "port"))


def fuzzed_seconds() -> float:
    return float(re.findall(r"SECONDS_EACH:-(\d+)", (REPOSITORY / "fuzz" / "run.sh").read_text())[0])


NUMBERS: list[tuple[str, str, Expected]] = [
    # A setting by its path, a constant by its name, or what follows from them.
    ("how-it-works.md", r"\| sinks \| (\d+) \|", "frame.sink_tokens"),
    ("how-it-works.md", r"\| recalled \| up to ([\d,]+) \|", "frame.recalled_tokens"),
    ("how-it-works.md", r"\| rolling \| ([\d,]+) to", "frame.rolling_tokens"),
    (
        "how-it-works.md",
        r"\| rolling \| [\d,]+ to ([\d,]+) \|",
        lambda: setting("frame.rolling_tokens") + setting("frame.evict_tokens"),
    ),
    ("how-it-works.md", r"span of the stream, up to (\d+) tokens", "archive.block_tokens"),
    ("how-it-works.md", r"consists of \*pages\* of (\d+) tokens", "archive.page_tokens"),
    ("how-it-works.md", r"From ([\d,]+) pages on", "kCoarseFrom"),
    (
        "how-it-works.md",
        r"pages on, ([a-z ]+) tokens",
        lambda: constant("kCoarseFrom") * setting("archive.page_tokens"),
    ),
    ("how-it-works.md", r"Only the best (\w+) of the pages", lambda: 1 / constant("kShareOfFew")),
    ("how-it-works.md", r"or (\w+) of many, and at most", lambda: 1 / constant("kShareOfMany")),
    ("how-it-works.md", r"of many, and at most ([\d,]+), is then scored", "kMostSurvivors"),
    ("how-it-works.md", r"(\w+) parts of the index look for pages", lambda: len(setting("search.index"))),
    ("how-it-works.md", r"(\w+) groups are recalled", "search.groups"),
    ("lab/measured/indexes.md", r"Past ([\d,]+) pages, half a million tokens, heads search", "kCoarseFrom"),
    (
        "lab/measured/indexes.md",
        r"they begin at \[([a-z ]+)\]",
        lambda: constant("kCoarseFrom") * setting("archive.page_tokens"),
    ),
    ("glossary.md", r"at most (\d+) tokens by default", "archive.block_tokens"),
    ("limits.md", r"at most ([\d,]+) tokens and a block or two", "CHECKPOINT_TOKENS"),
    ("guides/memory-life.md", r"saved every ([\d,]+) tokens", "CHECKPOINT_TOKENS"),
    ("format.md", r"makes one every ([\d,]+) tokens of a text", "CHECKPOINT_TOKENS"),
    ("lab/design-map.md", r"every (\d+) tokens the 3 newest blocks", "answer.recent_every"),
    ("lab/design-map.md", r"every 512 tokens the (\d+) newest blocks", "answer.recent_blocks"),
    ("lab/design-map.md", r"protection for (\d+) tokens", "answer.protect_tokens"),
    ("lab/design-map.md", r"Blocks have up to (\d+) tokens, not 4,096", "archive.block_tokens"),
    ("lab/design-map.md", r"the frame of ([\d,]+) slots must hold", "frame.tokens"),
    ("lab/design-map.md", r"(\d+) sinks instead of 5", "frame.sink_tokens"),
    ("lab/design-map.md", r"one token of (\w+), halved", "frame.kept_share"),
    ("lab/design-map.md", r"at most ([\d,]+) of a million are left", "most@tag_tree.h"),
    # The guide to policies.
    ("guides/policies.md", r"The frame has ([\d,]+) slots", "frame.tokens"),
    ("guides/policies.md", r"64 of (\d+)\. When the N slots", "archive.block_tokens"),
    (
        "guides/policies.md",
        r"`frame\.kept_share` \(8\): (\d+) of 512",
        lambda: setting("archive.block_tokens") / setting("frame.kept_share"),
    ),
    ("guides/policies.md", r"`archive\.block_tokens` with it below (\d+)", "archive.block_tokens"),
    (
        "guides/policies.md",
        r"less than a (\w+) of `frame\.rolling_tokens` warns",
        lambda: 1 / constant("_MOST_TURNS@kv_frame.py"),
    ),
    ("guides/policies.md", r"each in N \+ (\d) slots", "BRACKET_TOKENS"),
    (
        "guides/policies.md",
        r"an (\w+) of a block's bytes at `frame\.kept_share=8`",
        lambda: 1 / setting("frame.kept_share"),
    ),
    # Choosing an index.
    (
        "guides/choosing-an-index.md",
        r"\[(\d+) bytes a token\]\(#keys-in-a-byte\) where they share two KV heads of 64",
        lambda: tokens_of(heads=2, numbers=64, page=setting("archive.page_tokens")),
    ),
    ("guides/choosing-an-index.md", r"one vector for (\d+) tokens", "TOKENS_A_VECTOR"),
    ("guides/choosing-an-index.md", r"Every (\d+) tokens of a page have a vector", "TOKENS_A_VECTOR"),
    ("guides/choosing-an-index.md", r"128 numbers for 4 tokens, 384 for (\d+), 384 for 64\)", "SENTENCE_TOKENS"),
    ("guides/choosing-an-index.md", r"A page alone scores (\w+) the cosine", "SENTENCE_WEIGHT"),
    ("guides/choosing-an-index.md", r"knows less than (\w+) of the characters", "_KNOWN@encoder/runtime.py"),
    ("guides/choosing-an-index.md", r"so many seconds at most and at (\d+) places at least", "_FIRST_CANDIDATES"),
    ("guides/choosing-an-index.md", r"once a memory has (\d+) pages", "MIN_CALIBRATION_PAGES"),
    (
        "guides/choosing-an-index.md",
        r"pages, some ([\d,]+) tokens",
        lambda: constant("MIN_CALIBRATION_PAGES") * setting("archive.page_tokens") // 1000 * 1000,
    ),
    ("guides/choosing-an-index.md", r"Below (\d+) pages it is found again", "FEWEST_PAGES"),
    ("guides/choosing-an-index.md", r"From (\d+) pages on it also serves", "FEWEST_PAGES"),
    ("guides/choosing-an-index.md", r"(\w+) groups answered better than one", "search.groups"),
    ("guides/choosing-an-index.md", r"compares the best (\w+) as wholes", "MOST_COMPARED"),
    ("guides/choosing-an-index.md", r"longer than (\d+) tokens is cut", lambda: quoted_tokens()),
    ("guides/choosing-an-index.md", r"`confidence` falls to ([a-z ]+)\.", "DISAGREEING"),
    ("guides/choosing-an-index.md", r"the last turn's (\d+) rarest tokens", "_SAID_TOKENS"),
    ("lab/measured/indexes.md", r"of words, ([\d.]+) by default", "WORDS_WEIGHT"),
    ("lab/measured/indexes.md", r"question and sentence as wholes, ([\d.]+), which", "WHOLE_WEIGHT"),
    ("lab/measured/indexes.md", r"the encoder computes for the (\w+) that are best", "MOST_COMPARED"),
    # Reading and asking.
    ("guides/read-and-ask.md", r"greedy and has (\d+) tokens at most", "NEW_TOKENS@decoding.py"),
    ("guides/read-and-ask.md", r"recall\.confidence` of all passages add up to it\. Below ([\d.]+)", "UNSURE_BELOW"),
    ("guides/read-and-ask.md", r"where the confidence is below ([\d.]+)\.", "UNSURE_BELOW"),
    ("guides/read-and-ask.md", r"a line every (\w+ seconds)", "EVERY@progress.py"),
    ("cli.md", r"a line every (\w+ seconds)", "EVERY@progress.py"),
    ("guides/own-model.md", r"`\$EVERLONG_CACHE_GB` at most \(default (\d+)\)", "_DEFAULT_GB"),
    ("guides/gpu.md", r"weights of at most ([a-z]+ [a-z]+) of its free memory", "_GPU_SHARE"),
    ("guides/gpu.md", r"From its (fifth) token on", lambda: {4: 1 / 5}[constant("_TOKENS_BEFORE")]),
    # A memory's life, and what lies on disk.
    ("guides/memory-life.md", r"([\d]+ KiB) that the memory keeps", "kReserveBytes"),
    ("guides/memory-life.md", r"cached in up to an (\w+) of the budget", lambda: 1 / constant("kCatalogShare")),
    (
        "guides/memory-life.md",
        r"Payload gets what they leave, but at least an (\w+)\.",
        lambda: 1 / constant("kLeastPayloadShare"),
    ),
    ("guides/memory-life.md", r"Every ([\d,]+) tokens, memory that the forwards freed", "kTrimTokens"),
    ("guides/memory-life.md", r"if the process has grown by (\d+ MiB) since", "kGrownHeap"),
    ("lab/measured/speed.md", r"goes back to the system every ([\d,]+) tokens", "kTrimTokens"),
    ("format.md", r"# A memory on disk, format (\d)", "kFormatVersion"),
    ("format.md", r"\| `format_version` \| integer \| (\d) \|", "kFormatVersion"),
    ("format.md", r"`user_version` = (\d) is the number of its schema", "kCatalogSchema"),
    ("format.md", r"`EVLEXPRT`, uint32 version (\d)", "kExportVersion"),
    ("format.md", r"version of the record: (\d)", "kRecordVersion"),
    ("format.md", r"begins at a multiple of (\d+), and its length", "kRecordAlignment"),
    ("format.md", r"reserve (\d+ KiB) of nothing", "kReserveBytes"),
    ("format.md", r"in order of appending, below (\d\^\d+);", lambda: constant("kLargestBlockId") + 1),
    ("format.md", r"topics from (\d\^\d+) on", "kFirstTopic"),
    ("format.md", r"A block has at most (\d+) tensors", "kMaxBlockTensors"),
    ("format.md", r"tensors, of at most (\d+ MiB) together", "kMaxBlockTensorBytes"),
    ("format.md", r"which; 1 to (\d+) bytes of UTF-8", "kMaxTensorName"),
    ("format.md", r"one int64 a dimension, at most (\d+)", "kMaxTensorDimensions"),
    ("format.md", r"ids of at most (\d+) bytes", "kMostPackBytes"),
    ("format.md", r"A name is 1 to (\d+) of `a-z", "kLongestName"),
    ("format.md", r"V has one for every (\d+) numbers of a token", "kStepsGroup"),
    ("format.md", r"`sentence\.PACK` has one for every (\d+)\.", "SENTENCE_TOKENS"),
    ("format.md", r"a shift of 0 to (\d+);", "kTransformMostShift"),
    ("format.md", r"which sum to ([\d,]+)\. Symbol 31", lambda: 2 ** constant("kTransformFrequencyBits")),
    ("format.md", r"Symbol (\d+), the escape", lambda: 2 * constant("kTransformReach") + 1),
    ("security.md", r"Of more than (\d+ MiB) that are to be read", "kBelievedBytes"),
    ("security.md", r"one byte in (\d+) must be on the disk", "kMostCompressed"),
    ("security.md", r"look at the memory's number every ([a-z ]+),", "_LOOK_AGAIN@serve/answering.py"),
    ("security.md", r"in a sweep each (minute)\.", "_SWEEP_SECONDS"),
    # Files.
    ("guides/files.md", r"The child has (\w+ minutes)", "seconds@files/parsing.py"),
    ("guides/files.md", r"minutes, (\d GiB) of RAM", "ram@files/parsing.py"),
    ("guides/files.md", r"A file of more than (\d+ MiB)", "file_bytes@files/parsing.py"),
    ("guides/files.md", r"more than (\d+ MiB) of text are refused", "text_bytes@files/parsing.py"),
    ("guides/files.md", r"plain text of at most (\d+ KiB)", "SMALL@files/parsing.py"),
    ("guides/files.md", r"at most (\w+) deep", "_MOST_NESTED_FILES"),
    ("guides/files.md", r"more than ([\d,]+) headings or rows", "_SHORT_SECTIONS"),
    ("guides/files.md", r"shorter than (\d+) characters each", "_LETTERS_A_SECTION"),
    ("guides/files.md", r"or has more than (\d+ KiB), is not obeyed", "_LARGEST_IGNORE"),
    ("guides/files.md", r"those behind ([\d,]+) with wildcards", "MOST_PATTERNS"),
    # A service.
    ("guides/service.md", r"Then `http://127\.0\.0\.1:(\d+)` is a page", lambda: port()),
    ("guides/service.md", r"Up to (\w+) answers are under way at once", "at_once@service_data/limits.py"),
    ("guides/service.md", r"more than (\d+) newer turns were kept", "conversations@service_data/limits.py"),
    ("guides/service.md", r"Headers must be whole after (\d+ seconds)", "header_seconds@service_data/limits.py"),
    ("guides/service.md", r"A body below (\d KiB) a second", "body_rate@service_data/limits.py"),
    ("guides/service.md", r"half of the ([\d,]+) connections", "connections@service_data/limits.py"),
    ("guides/service.md", r"are kept for (\d+ days), with their questions", "STORED_SECONDS"),
    ("guides/service.md", r"during which the service died (\w+) is set aside", "_MOST_CRASHES"),
    ("guides/service.md", r"Below (\d+) % the page says", lambda: 100 * constant("UNSURE_BELOW")),
    # The graph.
    ("guides/graph.md", r"it lies within ([\d.]+) R of the centre", "kFarthest@growing_topics.cc"),
    ("guides/graph.md", r"its radius is above ([\d.]+) R", "kSplitFrom"),
    ("guides/graph.md", r"or it has more than ([\d,]+) members", "most_members@gardener.h"),
    ("guides/graph.md", r"its centre is nearer by a (\w+)", lambda: round(1 - constant("kMoveBelow"), 9)),
    ("guides/graph.md", r"and a (\w+) larger a level up", lambda: constant("growth@gardener.h") - 1),
    ("guides/graph.md", r"Up to ([\d,]+) topics on a level", "looked_at@gardener.h"),
    ("guides/graph.md", r"the search's (\d+) best pages", "kStarts@memory_walk.cc"),
    ("guides/graph.md", r"in the (\w+) topics nearest to the question", "kNearestTopics"),
    ("guides/graph.md", r"sees (\d+) shares of each way", lambda: len(everlong._core.WALK_FEATURES)),
    ("guides/graph.md", r"(\w+) hops in a row", "hops@walker.h"),
    ("guides/graph.md", r"hops in a row, (\d+) ways", "nodes@walker.h"),
    ("guides/graph.md", r"(\w+) as many loads as `search\.groups`", "_WALKED_AHEAD"),
    ("guides/graph.md", r"(\w+) words, and names of two words, that are frequent", "TAGS_A_BLOCK"),
    ("guides/graph.md", r"the first (\d+) tokens of the block", "FIRST_TOKENS"),
    ("guides/graph.md", r"in the background, (\w+) blocks at once", "_BATCH@model_tags.py"),
    ("guides/graph.md", r"Of more than ([\d,]+) blocks those with the rarest tags", "most@tag_tree.h"),
    # Evaluations.
    ("lab/evaluating.md", r"a first look: (\d)K tokens", lambda: constant("QUICK_LENGTH") // 1024),
    ("lab/evaluating.md", r"one question a task, (\w+) baselines", lambda: len(names("QUICK_BASELINES"))),
    ("lab/evaluating.md", r"4 questions each, (\d+) baselines", lambda: len(names("DEFAULT_BASELINES"))),
    ("lab/evaluating.md", r"20 tasks, (\d+) questions each", "count@eval/suite.py"),
    ("lab/measured/demo.md", r"though not under ([\d,]+) and 15", "FEWEST_TOKENS"),
    ("lab/measured/demo.md", r"though not under 100,000 and (\d+)", lambda: 3 * constant("FEWEST_FACTS")),
    ("integrations/lm-eval.md", r"the longest question; ([\d,]+) unless set", "question_characters@lm_eval.py"),
    # What proves it.
    ("CONTRIBUTING.md", r"a line for each of (\d+) scripted streams", lambda: len(STREAMS)),
    ("CONTRIBUTING.md", r"read from disk, (\d+) s each", lambda: fuzzed_seconds()),
    ("CONTRIBUTING.md", r"were tampered with, (\d+) s", lambda: 2 * fuzzed_seconds()),
]


def expected(said: Expected) -> float:
    if callable(said):
        return said()
    return float(setting(said) if said.partition(".")[0] in GROUPS and "@" not in said else constant(said))


@pytest.mark.parametrize(
    ("page", "pattern", "code"), NUMBERS, ids=[f"{page}: {pattern}" for page, pattern, _ in NUMBERS]
)
def test_a_number_is_that_of_the_code(page: str, pattern: str, code: Expected) -> None:
    told = re.findall(pattern, line_of(page))
    assert len(told) == 1, f"{page} says it {len(told)} times"
    assert number(told[0]) == expected(code)


def test_the_ladder_of_kept_tokens() -> None:
    """limits.md: 64 tokens of a block, then 32, 16 and 8. The guide: 3,456 slots span some 100,000 tokens."""
    block, share, rungs = setting("archive.block_tokens"), setting("frame.kept_share"), setting("frame.kept_rungs")
    ladder = [block // share >> rung for rung in range(rungs)]
    first, *rest = ladder
    cut = f"cuts what was written for {first} tokens down to {', '.join(map(str, rest[:-1]))} and {rest[-1]}"
    assert cut in line_of("limits.md")
    told = re.findall(r"So ([\d,]+) slots span ([\d,]+) tokens", line_of("guides/policies.md"))
    slots, span = map(number, told[0])
    assert sum(slots / rungs / kept * block for kept in ladder) == pytest.approx(span, rel=0.05)


def test_bytes_of_a_token_by_codec() -> None:
    """The formula of limits.md gives the table beside it, for the default codec and pages."""
    formula = r"KV heads x \(2 head_dim \+ 3 head_dim / (\d+) \+ 4\) bytes in every archived layer, with pages of (\d+)"
    ((half, page),) = re.findall(formula, line_of("limits.md"))
    assert int(page) == setting("archive.page_tokens") == 2 * int(half)
    assert setting("archive.codec") == "e4m3"
    for model, layers, heads, width in (("SmolLM2-135M", 30, 3, 64), ("Qwen3-8B's shape", 36, 8, 128)):
        row = next(
            cells for cells in table("limits.md", "  | | `bf16` | `e4m3`, the default") if cells[0].startswith(model)
        )
        told = layers * heads * (2 * width + 3 * width / int(half) + 4) * 1e6 / 1e9
        assert float(row[2]) == round(told, 1)
        name = model.removesuffix("'s shape")
        assert re.search(rf"\b{told:.0f}(?: GB)? for {name}\b", line_of("README.md"))


# --- lists

INDEX = choices("search.index")
LISTS: list[tuple[str, Callable[[], Sequence[str]], Callable[[], Sequence[str] | set[str]]]] = [
    ("index parts, to choose", lambda: firsts("guides/choosing-an-index.md", "| part | sees"), lambda: INDEX),
    (
        "index parts, by default",
        lambda: codes(
            re.findall(r"The default is `\((.*?)\)`", line_of("guides/choosing-an-index.md"))[0].replace('"', "`")
        ),
        lambda: setting("search.index"),
    ),
    (
        "index parts, how it works",
        lambda: re.findall(r"^- \*\*(\w+)\.\*\*", text_of("how-it-works.md"), re.MULTILINE),
        lambda: setting("search.index"),
    ),
    (
        "index parts, the glossary",
        lambda: re.findall(r"one way to find pages: ([\w, ]+) \|", line_of("glossary.md"))[0].split(", "),
        lambda: INDEX,
    ),
    (
        "files of an index",
        lambda: firsts("format.md", "| file | what |"),
        lambda: INDEX,
    ),
    (
        "codecs on disk",
        lambda: firsts("format.md", "| `codec` | a code |"),
        lambda: choices("archive.codec"),
    ),
    ("parts", lambda: firsts("guides/policies.md", "| part | what it does"), lambda: set(PARTS)),
    (
        "parts that run by default",
        lambda: [
            codes(part)[0]
            for part, _, default in table("guides/policies.md", "| part | what it does")
            if default.startswith("on where")
        ],
        lambda: {one.name for one in part_list.default_parts()},
    ),
    (
        "nodes of a graph",
        lambda: firsts("guides/graph.md", "| node | what it is"),
        lambda: typing.get_args(typing.get_type_hints(everlong.graph.Node)["kind"]),
    ),
    (
        "edges of a graph",
        lambda: codes(re.findall(r"Edges are (.*?)\. ", line_of("guides/graph.md"))[0]),
        lambda: typing.get_args(typing.get_type_hints(everlong.graph.Edge)["kind"]),
    ),
    (
        "fields of what was recalled",
        lambda: codes(dict(table("cli.md", "| command | keys |"))["each of `recalled`"]),
        lambda: list(everlong.Recall.__dataclass_fields__),
    ),
    (
        "baselines",
        lambda: firsts("lab/evaluating.md", "| baseline | what it is"),
        lambda: {*names("DEFAULT_BASELINES"), "survey"},
    ),
    (
        "architectures held to be exact",
        lambda: firsts("guides/own-model.md", "| model type | RoPE"),
        lambda: [KINDS[kind][0] for kind, _ in TINY_KINDS],
    ),
    (
        "steps before a change lands",
        lambda: [code.removeprefix("make ") for code in firsts("CONTRIBUTING.md", "| step | what must hold")],
        lambda: re.findall(r"^(?:if .*)?\bstep ([\w-]+)", (REPOSITORY / ".ci" / "run").read_text(), re.MULTILINE),
    ),
    (
        "stages of the check on a GPU",
        lambda: firsts("guides/gpu.md", "| stage | what it does"),
        lambda: re.findall(
            r'"(\w+)": \d+', re.findall(r"^STAGES = (.*)$", (REPOSITORY / "gpu" / "check").read_text(), re.M)[0]
        ),
    ),
    (
        "tools of MCP",
        lambda: codes(re.findall(r"The tools are (.*?);", line_of("guides/service.md"))[0]),
        lambda: re.findall(
            r"@server\.tool\(.*\n +async def (\w+)", (REPOSITORY / "python/everlong/serve/mcp_tools.py").read_text()
        ),
    ),
    (
        "notebooks",
        lambda: firsts("guides/notebooks.md", "| notebook | shows |"),
        lambda: [file.name for file in (REPOSITORY / "notebooks").glob("*.ipynb")],
    ),
    (
        "everlong's own tags",
        lambda: [code.partition(":")[2].strip("=") for code in firsts("format.md", "| tag begins with |")],
        lambda: {
            name for _, text in _sources() for name in re.findall(r'(?:\b_OWN\}|OWN_TAG\}|"everlong:)(\w+)=', text)
        },
    ),
]


@pytest.mark.parametrize(("told", "there"), [row[1:] for row in LISTS], ids=[row[0] for row in LISTS])
def test_a_list_has_all_of_them(told: Callable[[], Sequence[str]], there: Callable[[], Any]) -> None:
    assert sorted(told()) == sorted(there())


# What is read, as the guide's table begins its rows, and the module that reads it.
READERS = {
    "PDF": "pdf",
    "HTML, XHTML": "html",
    "EPUB": "epub",
    "Word: DOCX, DOCM, DOTX, DOTM; ODT, OTT": "word",
    "PowerPoint: PPTX, PPTM, PPSX, POTX and others; ODP, ODG": "slides",
    "Excel: XLSX, XLSM, XLTX, XLTM; ODS": "sheets",
    "RTF": "rtf",
    "tables of text: CSV, TSV": "tables",
    "Jupyter notebook": "notebook",
    "Markdown": "plain",
    "code": "plain",
    "mail: EML, mbox, EMLX, MHTML, files of a Maildir": "mail",
    "subtitles: SRT, WebVTT, ASS, SSA, SBV": "subtitles",
    "ChatGPT's and Claude's `conversations.json`": "chats",
    "chats of WhatsApp (text), Telegram, Slack and Signal (JSON)": "chats",
    "zip, tar, gzip, bzip2 and xz of these, and attachments of a mail": "archive",
    "any other text": "plain",
}
# Readers that no row names: they share a row with another, or say why a file is not read.
_BESIDE = {"odf", "ole", "compressed", "mailbox"}


def test_which_files_are_read() -> None:
    assert [cells[0] for cells in table("guides/files.md", "| file | cited by |")] == list(READERS)
    there = {
        file.stem
        for room in ("files", "office")
        for file in (REPOSITORY / "python/everlong" / room).glob("*.py")
        if re.search(r"^def (read\w*|members|messages|unpacked)\(\w+: (bytes|str, \w+: )", file.read_text(), re.M)
    }
    assert there - _BESIDE == set(READERS.values())


def test_which_parts_are_at_work_by_default() -> None:
    """learned.md: what is on is among the default parts and searches; what is off is not, or waits to be told."""
    on = {cells[0] for cells in table("learned.md", "| part | for | by default") if cells[2].startswith("on")}
    default = {one.name for one in part_list.default_parts()}
    assert on == {"towers", "encoder"} == default - {"kv_writer", "adapter"}
    assert setting("kv_writer.kept") is False
    assert setting("frame.tombstones") == setting("frame.kept_tokens") == 0
    for said in ("the towers and the text encoder", "The KV writer and an adapter are on the list of default parts"):
        assert said in line_of("lab/design-map.md")


def test_which_packs_have_towers() -> None:
    folders = {file.parent.name for file in (REPOSITORY / "lab/everlong_lab/packs").glob("*/towers.safetensors")}
    for page, models in (
        (
            "how-it-works.md",
            re.findall(r"(\S+) and (\S+) have them; a model without a pack", line_of("how-it-works.md"))[0],
        ),
        (
            "guides/choosing-an-index.md",
            re.findall(r"Towers of (\S+) and of (\S+) \(Q4_K_M\) are in", line_of("guides/choosing-an-index.md"))[0],
        ),
    ):
        found = {
            next(one for one in folders if name.lower().startswith(one) or one.startswith(name.lower()))
            for name in models
        }
        assert found == folders, page
    assert not list((REPOSITORY / "lab/everlong_lab/packs").glob("*/adapter.safetensors"))  # "none is shipped"


def help_of(*command: str) -> str:
    return CliRunner().invoke(everlong.cli.app.app, [*command, "--help"], env={"COLUMNS": "200"}).output


def test_how_many_tasks_a_suite_has() -> None:
    tasks = {}
    for suite in ("all", "ruler", "babi"):
        said = " ".join(re.sub(r"[^\w ,.]", " ", help_of("eval", suite)).split())
        tasks[suite] = len(re.findall(r"The tasks (.*?)\.", said)[0].split(", "))
    guide = line_of("lab/evaluating.md")
    assert f"{tasks['all']} tasks, 4 questions each" in guide
    ((ruler, babi),) = re.findall(r"\| (\w+) in the style of RULER.*?\| `babi` \| (\w+) tasks", guide)
    assert (number(ruler), number(babi)) == (tasks["ruler"], tasks["babi"])


# --- names

EXTRAS = PYPROJECT["optional-dependencies"]


def test_releases_that_are_named_are_those_of_pyproject() -> None:
    bounds = dict(re.findall(r"^(\w+)>=([\d.]+,<[\d.]+)$", "\n".join(PYPROJECT["dependencies"]), re.MULTILINE))
    bounds["Python"] = PYPROJECT["requires-python"].removeprefix(">=")
    rows = {
        cells[0].partition(" ")[0].rstrip(","): cells[1]
        for cells in table("guides/read-and-ask.md", "| what | version")
    }
    for name in ("Python", "torch", "transformers"):
        lowest, above = bounds[name].split(",<")
        major, _, minor = above.partition(".")
        assert rows[name] == f"{lowest} to {major}.{int(minor) - 1}", name
    assert f"Python {rows['Python']}" in line_of("README.md")
    assert f'"torch>={bounds["torch"]}"' in line_of("guides/read-and-ask.md")


def test_extras_that_are_named_are_there() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
    named = {extra for some in re.findall(r"(?:everlong|\.)\[([a-z0-9,-]+)\]", text) for extra in some.split(",")}
    named |= set(re.findall(r"\bextra `([\w-]+)`", text))
    assert len(named) >= 8
    assert named <= EXTRAS.keys()


def test_environment_variables_that_are_named_are_read() -> None:
    named = {name for file in FILES for name in re.findall(r"\bEVERLONG_[A-Z_]+\b", file.read_text(encoding="utf-8"))}
    named = {
        re.sub("(?<=EVERLONG_STORE_).*", "", name) for name in named
    }  # of campaigns: what follows is a test's name
    folders = ("python", "cpp", "hip", "cmake", "notebooks", "tests", ".ci")
    files = [
        file for folder in folders for file in (REPOSITORY / folder).rglob("*") if file.suffix not in (".so", ".gz")
    ]
    here = "test_statements.py"
    read = set()
    for file in [*files, REPOSITORY / "CMakeLists.txt", REPOSITORY / "Makefile"]:
        if file.is_file() and file.name != here and file.stat().st_size < 1 << 20:
            read |= set(re.findall(r"\bEVERLONG_[A-Z_]+\b", file.read_text(encoding="utf-8", errors="replace")))
    assert len(named) >= 8
    assert named <= read


def test_targets_of_make_that_are_named_are_there() -> None:
    makefiles = (REPOSITORY / "Makefile", REPOSITORY / "benchmarks" / "figures.mk")
    targets = {name for file in makefiles for name in re.findall(r"^([a-z-]+):", file.read_text(), re.MULTILINE)}
    named = {name for file in FILES for name in re.findall(r"(?:`|^)make ([a-z-]+)", file.read_text(), re.MULTILINE)}
    assert len(named) >= 15
    assert named <= targets


# Words that stand for others, and what begins a file of an index (format.md).
FORMS = ("PART", "TASK", "COMMAND", "$task")


def commands() -> list[str]:
    """The `everlong ...` lines of all pages, in fences and in backticks, without what stands behind a pipe."""
    found = set()
    for file in FILES:
        if file.name == "format.md":  # files of an index begin with such words
            continue
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        fenced = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        lines = [line.strip() for block in fenced for line in block.splitlines()]
        for line in [*lines, *re.findall(r"`([^`\n]+)`", text)]:
            if re.match(r"everlong [a-z]", line):
                found.add(re.split(r" [|>&#] | > |[|;…]", line)[0].strip())
    return sorted(line for line in found if not any(form in line for form in FORMS))


@pytest.mark.slow  # options of parts stand in modules that import torch
def test_commands_that_are_named_are_there_with_their_options() -> None:
    lines = commands()
    assert len(lines) >= 60
    for line in lines:
        command: Any = typer.main.get_command(everlong.cli.app.app)
        words = shlex.split(line)[1:]
        while hasattr(command, "get_command") and words and not words[0].startswith("-"):
            command = command.get_command(typer.Context(command), words.pop(0))
            assert command is not None, line
        parameters = command.get_params(typer.Context(command))
        options = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
        assert {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} <= options, line

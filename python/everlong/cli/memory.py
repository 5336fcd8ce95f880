"""`everlong read | rebuild | ask | chat | inspect`: a memory from the outside."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlong.cli.app import (
    ChatTemplateKwargs,
    Json,
    Length,
    MemoryFolder,
    OwnLength,
    StoredModel,
    System,
    app,
    model_for,
    model_of,
    parse_chat_template_kwargs,
    print_json,
    print_json_line,
    require_exists,
    set_config,
    startup_status,
)
from everlong.cli.batch_questions import ask_all, questions_in
from everlong.cli.contents import print_blocks, print_sources
from everlong.cli.interrupts import interruption_message
from everlong.cli.options import FilterOptions, ModelOptions, grouped
from everlong.cli.unfinished import stored_in, unfinished_notes, unfinished_of
from everlong.text.notebook_html import CONVERSATION
from everlong.text.progress import show_working
from everlong.text.terminal import escape_controls, escaping_console, print_escaped

if TYPE_CHECKING:
    from everlong.generation.memory_model import MemoryModel
    from everlong.memory import Memory
    from everlong.retrieval.recall import Recall

_CITED_CHARACTERS = 200


@app.command()
@grouped
def read(
    *,
    files: Annotated[list[Path], typer.Argument(help="Files of text, or folders of them.")],
    memory: MemoryFolder,
    model: StoredModel = "",
    source: Annotated[str, typer.Option(help="Name in citations; by default the file's name.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A tag to ask by later; may be given several times.")] = None,
    happened: Annotated[str, typer.Option(help="When the told events happened: 2024-05-03, or 7d, 12h, 30m ago.")] = "",
    again: Annotated[
        bool, typer.Option(help="Read a file again even if it was read before and has not changed.")
    ] = False,
    loading: ModelOptions,
    as_json: Json = False,
) -> None:
    """Read files into a memory, which is made if it does not exist.

    Plain text, Markdown and code are read, and with the extra `files` also PDF, HTML, EPUB, DOCX, PPTX, XLSX, CSV,
    notebooks, mail, subtitles, exported chats, and zip archives of these. A file without text is passed over, and the
    rest is read. After an interruption, the same command goes on where the reading stopped. A file that the memory
    already holds is not read again.
    """
    from everlong.cli.reading import InputFile, files_in, read_files
    from everlong.memory.where import parse_time

    for file in files:
        require_exists(file, folder=file.is_dir())
    when = parse_time(happened) if happened else None
    found = InputFile(files_in(files, memory))  # files without text are reported before a memory is made
    named = startup_status(model_for(memory, model), quiet=as_json)
    interruption_message(lambda: stored_in(memory))
    with attached(loading, named, memory) as mm:
        how = {"source": source, "tags": tag or (), "happened": when, "again": again}
        read_files(mm, found, as_json=as_json, **how)


@app.command()
@grouped
def rebuild(
    *,
    old: Annotated[Path | None, typer.Argument(help="Folder of the old memory.")] = None,
    memory: MemoryFolder,
    model: StoredModel = "",
    index: Annotated[
        bool, typer.Option("--index", help="Only complete this memory's index. No old memory is named.")
    ] = False,
    loading: ModelOptions,
    as_json: Json = False,
) -> None:
    """Rebuild a memory for another model with the same tokenizer, from the text of an old memory.

    Every block is read again, and keeps its name, tags, role and time. After an interruption, the same command goes on
    where the rebuilding stopped. With --index, blocks that lack vectors get them, from their token ids alone.
    """
    if index != (old is None):
        raise typer.BadParameter("name an old memory, or give --index to complete this one's index")
    if old is None:
        _complete_index(memory, model, loading, as_json=as_json)
        return
    require_exists(old, folder=True)
    named = startup_status(model_for(memory, model), quiet=as_json)
    interruption_message(lambda: stored_in(memory))
    with attached(loading, named, memory) as mm:
        report = mm.rebuild(old, progress=not as_json)
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    known = f" after {report.resumed_tokens:,} that were there" if report.resumed_tokens else ""
    rate = report.tokens / report.seconds if report.seconds > 0 else 0.0
    print_escaped(f"{memory}: {report.tokens:,} tokens{known}, {report.blocks} blocks, {rate:,.0f} tokens/s")


def _complete_index(memory: Path, model: str, loading: ModelOptions, *, as_json: bool) -> None:
    from everlong.frame.parts import needs_of

    require_exists(memory, folder=True)
    named = startup_status(model_for(memory, model), quiet=as_json)
    interruption_message(lambda: "what was made so far is kept")
    with attached(loading, named, memory) as mm:
        with show_working("vectors are made for blocks that lack them", enabled=not as_json):
            mm.searcher.settle()
        blocks = mm.memory.stats().blocks
        there = [kind for one in mm.frame.parts.retrievers for kind in needs_of(one).kinds]
        found = {kind: blocks - len(mm.memory.core.index.blocks_without_meaning(kind)) for kind in there}
    if as_json:
        print_json({"blocks": blocks, "vectors": found})
        return
    print_escaped(
        f"{memory}: {', '.join(f'{count} of {blocks} blocks have vectors of {kind}' for kind, count in found.items())}"
    )


@app.command()
@grouped
def ask(
    *,
    memory: MemoryFolder,
    question: Annotated[str | None, typer.Argument(help="The question, in quotes.")] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="File of many questions, asked in one load of the model. Each line is a JSON object with question "
            "and, if needed, source, tags and answer. Each printed line is one too; `right` says whether the answer is "
            "in the text. Answers are greedy, by default of at most 64 tokens.",
        ),
    ] = None,
    model: StoredModel = "",
    max_new_tokens: OwnLength = None,
    system: System = None,
    remember: Annotated[
        bool | None,
        typer.Option(
            "--remember/--no-remember",
            help="Keep question and answer in the memory; by default where it may be written to.",
            show_default=False,
        ),
    ] = None,
    no_recall: Annotated[
        bool, typer.Option("--no-recall", help="Answer from the window alone: the newest text.")
    ] = False,
    survey: Annotated[
        bool,
        typer.Option(
            "--survey",
            help="Look at every line of the text, and answer from those that tell of the question: for how many, "
            "all of which, the most frequent. Nothing is remembered.",
        ),
    ] = False,
    within: FilterOptions,
    loading: ModelOptions,
    chat_template_kwargs: ChatTemplateKwargs = "",
    as_json: Json = False,
) -> None:
    """Answer a question from a memory; the citations follow the answer.

    Question and answer are remembered, as in chat, unless another process is writing to the memory; with --remember
    that is an error. Questions of --questions are not remembered. A line's own source or tags replace --source or
    --tag.
    """
    if (question is None) == (questions is None):
        raise typer.BadParameter("expected one question, or a file of them: --questions FILE")
    if questions is not None and remember:
        raise typer.BadParameter("--remember is for one question; those of --questions are not remembered")
    if survey and (questions is not None or remember or no_recall):
        raise typer.BadParameter("--survey is for one question, without --remember and --no-recall")
    if questions is not None:
        require_exists(questions, folder=False)
    listed = questions_in(questions) if questions is not None else []
    where = within.where()
    variables = parse_chat_template_kwargs(chat_template_kwargs)
    kept = model_of(memory)  # a question makes no memory, not even for a named model
    named = startup_status(model or kept, quiet=as_json)
    host_bytes = set_config(loading.settings).archive.host_bytes
    interruption_message(lambda: f"{memory} keeps what it had")
    with (
        _open(memory, host_bytes, to_write=bool(remember)) as opened,
        attached(loading, named, opened) as mm,
    ):
        how: dict[str, Any] = {"chat_template_kwargs": variables, "system": system}
        if question is None:
            with show_working(f"answering {len(listed)} questions", enabled=True):
                ask_all(mm, listed, where, print_json_line, max_new_tokens, recall=not no_recall, **how)
            return
        if survey:
            answer = mm.survey(question, max_new_tokens, where=where, progress=not as_json, **how)
        else:
            how |= {"recall": not no_recall, "remember": remember is not False}
            with show_working("searching and answering", enabled=not as_json):
                answer = mm.generate(question, max_new_tokens, where=where, **how)
        evicted = mm.frame.os.evicted
        unfinished, notes = unfinished_of(opened), unfinished_notes(opened, memory)
    if as_json:
        print_json({**dataclasses.asdict(answer), "unfinished": unfinished})
        return
    print_escaped(answer.text.strip(), lines=True)
    report = [citation(recall) for recall in answer.recalled if recall.used]
    if answer.unsure:
        report.append(doubt(answer.confidence))
    if not answer.recalled and survey:
        report.append("[no line was noted: none has what the question names]")
    elif not answer.recalled and not no_recall:
        why = "nothing was read that may come back" if evicted else "all of the text is in the frame"
        report.append(f"[nothing came back: {why}]")
    for note in report + notes:
        print_escaped("\n" + escape_controls(note), lines=True)


def attached(loading: ModelOptions, model: str, memory: Path | Memory) -> MemoryModel:
    from everlong.generation.memory_model import MemoryModel

    if not loading.settings:
        return MemoryModel(*loading.load(model), memory)
    (network, tokenizer), config = loading.load_configured(model, text_alone=_text_alone(memory))
    return MemoryModel(network, tokenizer, memory, config)


def _text_alone(memory: Path | Memory) -> bool:
    """Return whether the memory exists and has no keys and values."""
    from everlong.memory import Memory

    if isinstance(memory, Memory):
        return memory.core.manifest().text_alone
    if not Memory.exists(memory):
        return False
    with Memory.open(memory, read_only=True) as there:
        return there.core.manifest().text_alone


def _open(memory: Path, host_bytes: int | None, *, to_write: bool) -> Memory:
    """Open a memory for writing if possible, to keep what is found out about it; a question can do with reading.

    With `to_write`, raises MemoryBusyError or MemoryIOError instead.
    """
    from everlong.errors import MemoryBusyError, MemoryIOError
    from everlong.memory import Memory

    try:
        return Memory.open(memory, host_bytes=host_bytes)
    except (MemoryBusyError, MemoryIOError):
        if to_write:
            raise
        return Memory.open(memory, read_only=True, host_bytes=host_bytes)


def citation(recall: Recall) -> str:
    """Return one line: where a passage stands, and how it begins."""
    line = " ".join(recall.passage.split())[:_CITED_CHARACTERS]
    name = ", ".join(filter(None, (recall.source or CONVERSATION, recall.place)))
    how = ", as Detail Tokens" if recall.as_details else ""
    report = recall.told and f", {recall.told[:16].replace('T', ' ')}"
    return f"[{name}{report}, tokens {recall.span[0]:,}-{recall.span[1]:,}, block {recall.block_id}{how}] {line}"


def doubt(confidence: float | None) -> str:
    """Return one line: that the memory is unsure, and how much."""
    return f"[memory unsure: the answer is among these with {100 * (confidence or 0):.0f} % probability]"


@app.command()
@grouped
def chat(
    *,
    memory: MemoryFolder,
    model: StoredModel = "",
    max_new_tokens: Length = 256,
    system: System = None,
    within: FilterOptions,
    loading: ModelOptions,
    chat_template_kwargs: ChatTemplateKwargs = "",
    timeline: Annotated[
        Path | None, typer.Option(help="File for a picture of what came back when: .png or .svg; or .json, for `plot`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a turn.")] = False,
) -> None:
    """Talk with a memory, line by line; questions and answers become part of it.

    By default, what was read and said comes back, but not what was asked; --role chooses otherwise. --source, --tag
    and the like hide all other text, and so earlier lines, which have no source and no tags.

    /sources lists what was read. /forget NAME forgets a source; where several have the name, use a path. /quit or
    Ctrl-D ends. Ctrl-C stops an answer; at the prompt it ends, too. --system stands before the first line and is
    remembered with it. Answers are decoded by the model's own settings. A memory that does not exist is made, by
    default with the embedded model.
    """
    where = within.where(answers_as_read=True)
    variables = parse_chat_template_kwargs(chat_template_kwargs)
    if timeline is not None and not timeline.parent.is_dir():
        raise FileNotFoundError(f"--timeline: there is no folder {timeline.parent}")
    if timeline is not None and timeline.suffix != ".json":
        from everlong.pictures import require_matplotlib

        require_matplotlib()
    named = startup_status(model_for(memory, model), quiet=as_json)
    interruption_message(lambda: stored_in(memory))
    with attached(loading, named, memory) as mm, contextlib.ExitStack() as last:
        if timeline is not None:
            last.callback(_draw_timeline, mm, timeline)
        for note in () if as_json else unfinished_notes(mm.memory, memory):
            print_escaped(note, stderr=True)
        while (line := _next_line(prompt="" if as_json else "> ")) is not None:
            if line.startswith("/"):
                if line == "/quit":
                    break
                result = _obey(mm, line)
                print_escaped(json.dumps({"command": line, "text": result}) if as_json else result, lines=True)
            elif line:
                turn_system, system = system, None  # only the first line has it: it is remembered like an answer
                streamed = mm.stream(
                    line, max_new_tokens, system=turn_system, chat_template_kwargs=variables, where=where
                )
                try:
                    _show(mm, line, streamed, as_json=as_json)
                except ValueError as error:  # only this line is bad; the next one may be text
                    print_escaped(error, stderr=True)


def _draw_timeline(mm: MemoryModel, file: Path) -> None:
    from everlong.pictures.timeline import draw_timeline

    mm.frame.end_of_text()
    if file.suffix == ".json":
        file.write_text(json.dumps({"events": mm.trace()}), encoding="utf-8")
    else:
        draw_timeline(mm.trace(), file)


def _next_line(*, prompt: str) -> str | None:
    """Return the next line of standard input, stripped; None at its end. Only a terminal shows the prompt."""
    try:
        return input(prompt if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _obey(mm: MemoryModel, line: str) -> str:
    from everlong.memory.sources import source_meant, sources
    from everlong.memory.where import Where

    command, _, name = line.partition(" ")
    if command == "/sources":
        listed = [f"{escape_controls(source.shown)}: {source.tokens:,} tokens" for source in sources(mm.memory)]
        return "\n".join(listed) or "nothing yet"
    if command == "/forget" and name:
        name = source_meant(mm.memory, name.strip())
        by_path = name != "" and not mm.memory.blocks(name, limit=1)
        blocks = mm.memory.forget(where=Where(origin=name)) if by_path else mm.memory.forget(source=name)
        return f"{blocks} blocks forgotten; what was said last stays before the model until newer text takes its place"
    return "there is /sources, /forget NAME and /quit"


def _show(mm: MemoryModel, question: str, answer: Generator[str], *, as_json: bool) -> None:
    from everlong.generation.answer import is_unsure

    pieces = []
    try:
        for piece in answer:
            pieces.append(piece)
            if not as_json:
                print_escaped(piece, lines=True, end="")
    except KeyboardInterrupt:
        pass  # the answer stops here; what was said stays said
    finally:
        answer.close()
    recalled = mm.last_recalled
    if as_json:
        turn = {
            "question": question,
            "text": "".join(pieces),
            "recalled": [dataclasses.asdict(r) for r in recalled],
            "confidence": mm.last_confidence,
            "unfinished": unfinished_of(mm.memory),
        }
        print_json_line(turn)
        return
    print_escaped("")
    notes = [citation(recall) for recall in recalled if recall.used]
    if is_unsure(mm.last_confidence):
        notes.append(doubt(mm.last_confidence))
    for note in notes:
        escaping_console(stderr=True).print(escape_controls(note), style="dim", highlight=False, soft_wrap=True)


@app.command()
def inspect(
    memory: Annotated[Path, typer.Argument(help="Folder of the memory.")],
    blocks: Annotated[bool, typer.Option(help="List every block.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one page of HTML to this file instead.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a memory holds and for which model, without loading the model."""
    from everlong.memory import Memory
    from everlong.memory.sources import sources
    from everlong.retrieval.profile import load_profile

    with Memory.open(memory, read_only=True) as kept:
        if html is not None:
            html.write_text(kept.report(), encoding="utf-8")
            return
        manifest = kept.core.manifest()
        profile = load_profile(kept.core)
        report: dict[str, Any] = {
            "model": manifest.attributes.get("model", ""),
            "geometry": {
                "layers": manifest.layers,
                "kv_heads": manifest.kv_heads,
                "head_dim": manifest.head_dim,
                "page_tokens": manifest.page_tokens,
                "codec": manifest.codec,
            },
            "fingerprint": {"weights": manifest.weights, "rope": manifest.rope, "tokenizer": manifest.tokenizer},
            "stats": dataclasses.asdict(kept.stats()),
            "retrieval_heads": None if profile is None else [list(head[:2]) for head in profile.heads],
            "sources": sources(kept),
            "unfinished": unfinished_of(kept),
        }
        notes = unfinished_notes(kept, memory)
        if blocks:
            report["blocks"] = kept.blocks()
    if as_json:
        for name in ("sources", "blocks"):
            if name in report:
                report[name] = [dataclasses.asdict(one) for one in report[name]]
        print_json(report)
        return
    _print_inspection(memory, report)
    for note in notes:
        print_escaped(note)


def _print_inspection(folder: Path, report: dict[str, Any]) -> None:
    geometry, stats = report["geometry"], report["stats"]
    text_alone = geometry["layers"] == 0
    payload, disk = (f"{stats[key] / 1e6:,.1f} MB" for key in ("payload_bytes", "disk_bytes"))
    kept = "text alone" if text_alone else f"{payload} of KV ({geometry['codec']})"
    if stats["detail_bytes"] > 0:
        kept += f", {stats['detail_bytes'] / 1e6:,.1f} MB of Detail Tokens"
    if stats["kept_bytes"] > 0:
        kept += f", {stats['kept_bytes'] / 1e6:,.1f} MB of chosen tokens"
    print_escaped(
        f"{folder}: {stats['tokens']:,} tokens in {stats['blocks']:,} blocks, {stats['pages']:,} pages; "
        f"{kept}, {disk} on disk"
    )
    heads = report["retrieval_heads"]
    named = "not calibrated yet" if heads is None else "retrieval heads " + ", ".join(f"{a}.{b}" for a, b in heads)
    shape = f"{geometry['layers']} layers, {geometry['kv_heads']} KV heads of {geometry['head_dim']}; {named}"
    print_escaped(
        f"model {report['model'] or 'without a name'}: "
        f"{'any of its tokenizer' if text_alone else shape}; pages of {geometry['page_tokens']} tokens"
    )
    print_sources(report["sources"])
    print_blocks(report.get("blocks", ()))

"""`everlong demo`, `everlong eval ...`, `everlong plot`: seeing that it works, and how well."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from everlong.cli.app import (
    DEFAULT_MODEL,
    ChatTemplateKwargs,
    Device,
    Dtype,
    Json,
    Model,
    Settings,
    app,
    load_configured,
    on_device,
    parse_chat_template_kwargs,
    print_json,
)
from everlong.corpora.tasks import SUITES, TASKS


class _Suites(TyperGroup):
    """A group that says what there is when it is asked for what there is not."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            own = [name for name in self.commands if name not in TASKS]
            raise ValueError(f"no suite or task {cmd_name!r}; suites: {', '.join(own)}; tasks: {', '.join(TASKS)}")
        return command


eval_app = typer.Typer(
    cls=_Suites, no_args_is_help=True, help="Measure a memory: suites of tasks against baselines, perplexity."
)
app.add_typer(eval_app, name="eval")

Seed = Annotated[int, typer.Option(help="Of facts, places and orders: the same seed, the same questions.")]
Corpus = Annotated[
    Path | None, typer.Option(help="More books, where the shipped ones are too short: a folder of .txt or a tar.xz.")
]


@app.command()
def demo(
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of books to read, all of them; by default 250,000, cut to --minutes.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Cut tokens and facts to what these minutes allow; by default 6.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for memory, report and picture.")] = Path("runs/demo"),
    corpus: Corpus = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """A real model reads books that it cannot hold, and answers from them."""
    from everlong.eval.demo import run_demo

    report = run_demo(
        tokens=tokens,
        minutes=minutes,
        out=out,
        corpus=corpus,
        console=Console(quiet=as_json),
        dtype=dtype or None,
        **on_device(device),
    )
    if as_json:
        print_json(report.to_dict())


@eval_app.command("niah")
def eval_niah(
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[int | None, typer.Option(help="Longest haystack; 32,768 by default.")] = None,
    lengths: Annotated[str, typer.Option(help="Where to ask, ascending: 32K,128K; instead of --tokens.")] = "",
    facts: Annotated[int, typer.Option(help="Facts of each kind at each length.")] = 10,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds of facts, by commas: pass-key,uuid,name (the default),best-thing,quote; paraphrase: 48 "
            "facts that are asked for in other words."
        ),
    ] = "",
    seed: Seed = 0,
    corpus: Corpus = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the memory of every length here, to ask again at once.")
    ] = None,
    settings: Settings = None,
    chat_template_kwargs: ChatTemplateKwargs = "",
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Needle in a haystack: facts planted in books, asked with memory, by the window alone, on the gold text."""
    from everlong.cli.settings import parse_lengths
    from everlong.eval.answers import dtype_of
    from everlong.eval.niah import READ_AS, NiahConfig, print_niah, run_niah

    stops = parse_lengths(lengths) if lengths else ()
    if stops and tokens not in (None, stops[-1]):
        raise ValueError(f"--tokens {tokens} and --lengths {lengths}: the longest of these is another")
    config = NiahConfig(
        lengths=stops,
        facts_per_kind=facts,
        seed=seed,
        tokens=stops[-1] if stops else tokens or 32_768,
        chat_template_kwargs=parse_chat_template_kwargs(chat_template_kwargs),
    )
    if kinds:
        config = dataclasses.replace(config, kinds=tuple(kinds.split(",")))  # type: ignore[arg-type]  # checked there
    errors = Console(stderr=True)
    network, memory_config = load_configured(model, settings, dtype=dtype or dtype_of(keep, READ_AS), device=device)
    report = run_niah(
        network,
        config,
        memory_config=memory_config,
        corpus=corpus,
        keep=keep,
        log=_line_by_line(errors),
        progress=errors.is_terminal,
    )
    print_json(report.to_dict()) if as_json else print_niah(report, Console())


@eval_app.command("ppl")
def eval_ppl(
    model: Model = DEFAULT_MODEL,
    places: Annotated[int, typer.Option(help="Places in books that are scored.")] = 8,
    corpus: Corpus = None,
    kept: Annotated[int, typer.Option(help='Slots of a zone "kept", one frame for each Trimmer that there is.')] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of what is known so far; a run goes on there.")] = None,
    seed: Seed = 0,
    settings: Settings = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Perplexity of what follows: window alone, recalled blocks, random pages, full attention."""
    from everlong.eval.answers import dtype_of
    from everlong.eval.ppl import FILE, PplConfig, print_ppl, run_ppl, trimmers_for

    network, memory_config = load_configured(model, settings, dtype=dtype or dtype_of(out, FILE), device=device)
    report = run_ppl(
        network,
        PplConfig(places=places, kept_tokens=kept, kept_by=trimmers_for(network[0]) if kept else (), seed=seed),
        corpus=corpus,
        memory_config=memory_config,
        out=out,
        log=_line_by_line(Console(stderr=True)),
    )
    print_json(report.to_dict()) if as_json else print_ppl(report, Console())


@eval_app.command("meaning")
def eval_meaning(
    model: Model = DEFAULT_MODEL,
    stories: Annotated[bool, typer.Option(help="Ask FairytaleQA of stories that nothing was trained on.")] = True,
    lengths: Annotated[
        str, typer.Option(help="Ask paraphrases and drawn facts in books of so many tokens, ascending: 128K,384K.")
    ] = "",
    pack: Annotated[
        str, typer.Option(help="What was trained for the model: auto, a folder, or none for the memory without.")
    ] = "auto",
    corpus: Corpus = None,
    keep: Annotated[Path | None, typer.Option(help="Folder for the memories and the whole reports.")] = None,
    fitting: Annotated[
        bool, typer.Option(help="Ask what the fusion is fitted on instead, and keep every part's rankings.")
    ] = False,
    answers: Annotated[int, typer.Option(help="Answer so many questions of each kind, too.")] = 0,
    settings: Settings = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Is what answers found where the question has other words: every part of the index, and all of them."""
    from everlong.cli.settings import parse_lengths
    from everlong.parts.towers.measure import print_meaning, run_meaning

    loaded, memory_config = load_configured(model, settings, dtype=dtype or None, device=device)
    reports = run_meaning(
        loaded,
        stories=stories,
        lengths=parse_lengths(lengths) if lengths else (),
        pack=None if pack == "none" else pack,
        memory_config=memory_config,
        corpus=corpus,
        keep=keep,
        fitting=fitting,
        answers=answers,
        log=_line_by_line(Console(stderr=True)),
    )
    if as_json:
        print_json({name: report.summary() for name, report in reports.items()})
        return
    print_meaning(reports, Console())


@eval_app.command("walker")
def eval_walker(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books, author--title.txt; by default those that are shipped.")
    ] = None,
    texts: Annotated[int, typer.Option(help="With chains of facts, of these books in turn.")] = 6,
    tokens: Annotated[int, typer.Option(help="Of a text.")] = 20_000,
    chains: Annotated[int, typer.Option(help="Of a text: a third each of one, two and three facts.")] = 39,
    loads: Annotated[str, typer.Option(help="Page groups that are loaded, by commas.")] = "3,4,6",
    pack: Annotated[
        str, typer.Option(help="The Walker's, and the towers' that are searched by: auto, or a folder.")
    ] = "auto",
    by_words: Annotated[bool, typer.Option(help="Search by words alone; the model reads nothing.")] = False,
    work: Annotated[Path, typer.Option(help="Folder of vectors: a run that was cut short goes on.")] = Path(
        "runs/eval-walker"
    ),
    seed: Annotated[int, typer.Option(help="Of the chains, and where they stand.")] = 1,
    questions: Annotated[
        Path | None, typer.Option(help="In place of chains: MuSiQue's or HotpotQA's, as HippoRAG prepares them.")
    ] = None,
    passages: Annotated[Path | None, typer.Option(help="Their corpus.")] = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Does the Walker load all that a question needs: beside flat searches, a beam, and personalised PageRank."""
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.multi_hop import multi_hop_text
    from everlong.corpora.walks import draw_walk_texts
    from everlong.errors import EverlongError
    from everlong.memory.fingerprint import Fingerprint
    from everlong.models import load
    from everlong.models.fingerprint import weights_fingerprint
    from everlong.models.pack import open_pack
    from everlong.parts.towers.model import TOWERS, LateTowers
    from everlong.parts.walker.measure import measure_walker, print_walker
    from everlong.parts.walker.model import shipped_walker, walker_of
    from everlong.training.walks import read_walk_texts

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    found = open_pack(pack, Fingerprint(weights_fingerprint(network), rope="", tokenizer=""))
    walker = (None if found is None else walker_of(found)) or shipped_walker()
    if walker is None:
        raise EverlongError("there is no Walker: `everlong train walker` makes one")
    if (questions is None) != (passages is None):
        raise typer.BadParameter("--questions and --passages belong together")
    if questions is not None and passages is not None:
        drawn = [multi_hop_text(tokenizer, questions, passages)]
    else:
        drawn = draw_walk_texts(
            tokenizer, books_of(text or ()), texts=texts, tokens=tokens, chains=chains, split="test", seed=seed
        )
    towers = None
    if found is not None and TOWERS in found.parts and not by_words:
        towers = (found.parts[TOWERS].id, LateTowers.of_part(found.parts[TOWERS]))
    memories = read_walk_texts(
        network,
        tokenizer,
        towers,
        drawn,
        work,
        progress=lambda what, done, of: console.print(f"{what}: {done} of {of}"),
    )
    report = measure_walker(
        walker,
        memories,
        towers="" if towers is None else towers[0],
        loads=[int(count) for count in loads.split(",")],
        log=lambda line: console.print(line, highlight=False),
    )
    print_json(report.to_dict()) if as_json else print_walker(report, Console())


@eval_app.command("trigger")
def eval_trigger(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Books beside those that are shipped, author--title.txt, whose pieces are joined."),
    ] = None,
    splices: Annotated[int, typer.Option(help="Texts of six pieces of books each.")] = 8,
    means: Annotated[
        str, typer.Option(help="Mean lengths of blocks that are asked for, of books as they are; or none.")
    ] = "128,192,256,320",
    pack: Annotated[str, typer.Option(help="What was trained for the model: auto, or a folder.")] = "auto",
    settings: Settings = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Does the learned trigger see where topics end, and how long do blocks come to be."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.parts.trigger.measure import print_topics, run_topics, trigger_pack

    loaded, memory_config = load_configured(model, settings, dtype=dtype or None, device=device)
    report = run_topics(
        loaded,
        trigger_pack(loaded, pack),
        books=books_of(text or ()),
        splices=splices,
        means=() if means == "none" else parse_lengths(means),
        memory_config=memory_config,
        log=_line_by_line(Console(stderr=True)),
    )
    print_json(report.to_dict()) if as_json else print_topics(report, Console())


@eval_app.command("trimmer")
def eval_trimmer(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books beside those that are shipped, that places are drawn from.")
    ] = None,
    budgets: Annotated[str, typer.Option(help="Tokens kept of a block of 512, by commas.")] = "16,32,64,128",
    places: Annotated[int, typer.Option(help="Of prose, 4 blocks each.")] = 12,
    fact_blocks: Annotated[int, typer.Option(help="Blocks of books with five planted facts each.")] = 8,
    story_blocks: Annotated[int, typer.Option(help="Blocks of FairytaleQA's val stories, four questions each.")] = 8,
    seed: Seed = 0,
    pack: Annotated[str, typer.Option(help="What was trained for the model: auto, or a folder.")] = "auto",
    beside: Annotated[
        list[Path] | None, typer.Option(help="Folders of packs with other Trimmers, each a row by its folder's name.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="File for the report, as far as it is known; `everlong plot` draws it.")
    ] = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """What is lost where few tokens of a block are kept: by the Trimmer, and by what others keep."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.models import load
    from everlong.parts.trimmer.measure import (
        TrimmingConfig,
        TrimmingReport,
        print_trimming,
        run_trimming,
        trimmer_pack,
    )

    def known(report: TrimmingReport) -> None:
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            keep.write_text(json.dumps(report.to_dict()) + "\n", encoding="utf-8")

    loaded = load(model, dtype or None, **on_device(device))
    report = run_trimming(
        loaded,
        trimmer_pack(loaded, pack),
        TrimmingConfig(parse_lengths(budgets), places, fact_blocks, story_blocks, seed),
        books=books_of(text or ()),
        beside={folder.name: trimmer_pack(loaded, folder) for folder in beside or ()},
        known=known,
        log=_line_by_line(Console(stderr=True)),
    )
    print_json(report.to_dict()) if as_json else print_trimming(report, Console())


@eval_app.command("tombstones")
def eval_tombstones(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books beside those that are shipped, that texts are drawn from.")
    ] = None,
    documents: Annotated[int, typer.Option(help="Texts that are measured.")] = 6,
    calibration: Annotated[int, typer.Option(help="Texts, of other books, that heads and threshold come from.")] = 3,
    heads: Annotated[int, typer.Option(help="That are chosen.")] = 16,
    writer: Annotated[bool, typer.Option("--writer", help="Tombstones are the KV writer's, no means.")] = False,
    seed: Seed = 0,
    work: Annotated[
        Path | None, typer.Option(help="Folder for what was heard, a file a text; a run goes on there.")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Folder for the same of the other kind, with or without --writer: both.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Put heads and threshold into the pack of the model.")] = False,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Does attention to a tombstone say that what it stands for is needed (the part `tombstones`)."""
    from everlong.corpora.boundaries import books_of
    from everlong.models import load
    from everlong.parts.tombstones.measure import TombstonesConfig, keep_heads, print_tombstones, run_tombstones

    loaded = load(model, dtype or None, **on_device(device))
    config = TombstonesConfig(documents=documents, calibration=calibration, heads=heads, seed=seed, writer=writer)
    log = _line_by_line(Console(stderr=True))
    chosen, report = run_tombstones(loaded, config, work, books_of(text) if text else (), log, beside=beside)
    if keep:
        log(f"kept in {keep_heads(loaded[0], model, chosen, report)}")
    print_json(report.to_dict()) if as_json else print_tombstones(report, Console())


@eval_app.command("writer")
def eval_writer(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books beside those that are shipped, that places are drawn from.")
    ] = None,
    slots: Annotated[str, typer.Option(help="For all eight evicted blocks, by commas.")] = "32,64,128,256",
    places: Annotated[int, typer.Option(help="In books, eight blocks each.")] = 24,
    seed: Seed = 0,
    pack: Annotated[str, typer.Option(help="What was trained for the model: auto, or a folder.")] = "auto",
    beside: Annotated[Path | None, typer.Option(help="Another pack, whose KV writer is measured, too.")] = None,
    why: Annotated[int, typer.Option(help="Places in books whose blocks answer questions or do not; 0: none.")] = 0,
    stories: Annotated[int, typer.Option(help="The same in stories, with questions that people asked.")] = 0,
    again: Annotated[int, typer.Option(help="Pages that are said again; 0: none.")] = 0,
    fitted: Annotated[int, typer.Option(help="Of these, which vectors are fitted to in 200 steps, too.")] = 4,
    tokens: Annotated[str, typer.Option(help="Vectors of a page that is said again, by commas.")] = "4,8,16,32",
    page_tokens: Annotated[int, typer.Option(help="Of a page that is said again, up to 512.")] = 64,
    keep: Annotated[Path | None, typer.Option(help="File for the reports, as far as they are known.")] = None,
    work: Annotated[Path, typer.Option(help="Folder of states.")] = Path("runs/writer-eval"),
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """What stands for evicted blocks: Detail Tokens, kept tokens, what the KV writer made of them, at equal slots."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.models import load
    from everlong.models.pack import pack_of_model
    from everlong.parts.writer.measure import WritingConfig, print_writing, run_writing
    from everlong.parts.writer.measure_again import print_reconstructing, run_reconstructing
    from everlong.parts.writer.measure_deciding import print_explaining, run_explaining, unseen_blocks

    reports: dict[str, Any] = {}

    def known(name: str, report: Any) -> None:
        reports[name] = report.to_dict()
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            keep.write_text(json.dumps(reports) + "\n", encoding="utf-8")

    loaded = load(model, dtype or None, **on_device(device))
    found, books = pack_of_model(loaded[0], pack), books_of(text or ())
    log, console = _line_by_line(Console(stderr=True)), Console(quiet=as_json)
    if places:
        config = WritingConfig(parse_lengths(slots), places, seed)
        print_writing(
            run_writing(
                loaded,
                found,
                config,
                books=books,
                beside=None if beside is None else pack_of_model(loaded[0], beside),
                known=lambda report: known("behind blocks", report),
                log=log,
            ),
            console,
        )
    for about, blocks in unseen_blocks(loaded[1], books, places=why, stories=stories, seed=seed + 1).items():
        explained = run_explaining(loaded, found, blocks, work=work / about.replace(" ", "-"), log=log)
        known(f"why, {about}", explained)
        print_explaining(explained, about, console)
    if again:
        counts = parse_lengths(tokens)
        said = run_reconstructing(
            loaded,
            found,
            pages=again,
            page_tokens=page_tokens,
            tokens=counts,
            fitted=fitted,
            work=work / "again",
            books=books,
            log=log,
        )
        known("again", said)
        print_reconstructing(said, console)
    if as_json:
        print_json(reports)


@eval_app.command("retrieve")
def eval_retrieve(
    model: Model = DEFAULT_MODEL,
    text: Annotated[list[Path] | None, typer.Option(help="Books of frames; by default those that are shipped.")] = None,
    fitted_on: Annotated[
        list[Path] | None, typer.Option(help="Books by which what is not learned is given a threshold.")
    ] = None,
    frames: Annotated[int, typer.Option(help="Of stories and books, three questions each.")] = 64,
    tokens: Annotated[str, typer.Option(help="Of a frame, by commas: one number is drawn each time.")] = "192,384,768",
    pack: Annotated[str, typer.Option(help="What was trained for the model: auto, or a folder.")] = "auto",
    seed: Seed = 0,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Whether something is to come back for a question: <RETRIEVE>, the trigger, words, always, and chance."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.frames import frame_texts
    from everlong.corpora.pairs import Split, load_pairs
    from everlong.corpora.record import Record
    from everlong.models import load
    from everlong.models.pack import pack_of_model
    from everlong.parts.retrieve.measure import print_retrieving, run_retrieving

    loaded, pairs = load(model, dtype or None, **on_device(device)), load_pairs(["fairytale"])

    def some(books: list[Path] | None, split: Split, seed: int) -> list[Record]:
        read, lengths = books_of(books or ()), parse_lengths(tokens)
        return frame_texts(loaded[1], read, pairs, count=frames, split=split, tokens=lengths, seed=seed)

    drawn, others = some(text, "test", seed), some(fitted_on or text, "fit", seed + 1)
    log = _line_by_line(Console(stderr=True))
    report = run_retrieving(loaded, pack_of_model(loaded[0], pack), drawn, others, seed=seed, log=log)
    if as_json:
        print_json(report.to_dict())
        return
    print_retrieving(report, Console())


def _line_by_line(console: Console) -> Callable[[str], None]:
    """A log that prints what it is told as it is: no markup, a line a line."""
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def _suite_command(suite: str) -> Callable[..., None]:
    """`everlong eval SUITE`."""

    def command(
        model: Model = DEFAULT_MODEL,
        settings: Settings = None,
        baseline: Annotated[
            list[str] | None, typer.Option(help="Compare with NAME or NAME:setting=value; again for more.")
        ] = None,
        lengths: Annotated[str, typer.Option(help="Tokens, such as 4K,32K,1M; all are one reading.")] = "",
        count: Annotated[int, typer.Option(help="Questions of each task at each length; 0: 4, or 1 if quick.")] = 0,
        quick: Annotated[bool, typer.Option(help="A first look, in minutes.")] = False,
        out: Annotated[
            Path | None, typer.Option(help="Folder of memory, answers, report; a run goes on there.")
        ] = None,
        plot: Annotated[bool, typer.Option(help="Draw the report's pictures into the folder.")] = False,
        seed: Seed = 0,
        corpus: Corpus = None,
        chat_template_kwargs: ChatTemplateKwargs = "",
        dtype: Dtype = "",
        device: Device = "",
        as_json: Json = False,
    ) -> None:
        run_and_report(
            suite,
            model=model,
            settings=tuple(settings or ()),
            baselines=tuple(baseline or ()),
            lengths=lengths,
            count=count,
            quick=quick,
            out=out,
            plot=plot,
            seed=seed,
            corpus=corpus,
            chat_template_kwargs=chat_template_kwargs,
            dtype=dtype,
            device=device,
            as_json=as_json,
        )

    command.__doc__ = (
        f"The tasks {', '.join(task.name for task in SUITES[suite])}." if suite in SUITES else TASKS[suite].__doc__
    )
    return command


for _name in (*SUITES, *TASKS):
    eval_app.command(_name, hidden=_name in TASKS)(_suite_command(_name))


def run_and_report(
    suite: str,
    *,
    model: str,
    settings: tuple[str, ...],
    baselines: tuple[str, ...],
    lengths: str,
    count: int,
    quick: bool,
    out: Path | None,
    plot: bool,
    seed: int,
    corpus: Path | None,
    chat_template_kwargs: str,
    dtype: str,
    device: str,
    as_json: bool,
) -> None:
    """Run a suite, keep its report as `report.json` and its tables as `report.md` in its folder, and show it."""
    from everlong.cli.settings import parse_lengths
    from everlong.eval.answers import dtype_of
    from everlong.eval.baselines import baseline_of
    from everlong.eval.report import markdown, print_suite
    from everlong.eval.suite import DEFAULT_BASELINES, FILE, QUICK_BASELINES, SuiteConfig, run_suite
    from everlong.pictures import require_matplotlib

    config = SuiteConfig.quick(suite) if quick else SuiteConfig(suites=(suite,))
    variables = parse_chat_template_kwargs(chat_template_kwargs)
    config = dataclasses.replace(config, seed=seed, chat_template_kwargs=variables)
    if lengths:
        config = dataclasses.replace(config, lengths=parse_lengths(lengths))
    if count:
        config = dataclasses.replace(config, count=count)
    chosen = baselines or (QUICK_BASELINES if quick else DEFAULT_BASELINES)
    for spec in chosen:
        baseline_of(spec)
    if plot:
        require_matplotlib()
    folder = out if out is not None else Path("runs/eval") / (f"{suite}-quick" if quick else suite)
    console = Console(stderr=as_json)
    network, memory_config = load_configured(model, settings, dtype=dtype or dtype_of(folder, FILE), device=device)
    report = run_suite(
        network,
        config,
        chosen,
        out=folder,
        memory_config=memory_config,
        corpus=corpus,
        log=_line_by_line(console),
        progress=console.is_terminal,
    )
    file = folder / "report.json"
    file.write_text(json.dumps(report) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(report), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        print_suite(report, console)
        console.print(f"report: {file}", markup=False, soft_wrap=True)
    if plot:
        from everlong.pictures import draw_report

        for picture in draw_report(report, folder):
            console.print(f"picture: {picture}", markup=False, soft_wrap=True)


@app.command("plot")
def plot_report(
    file: Annotated[Path, typer.Argument(help="JSON of eval, of a trace, or of a demo.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures; beside the file by default.")] = None,
) -> None:
    """Draw what a report says: PNG and SVG, from its JSON alone."""
    from everlong.pictures import draw_report, require_matplotlib

    require_matplotlib()
    report = json.loads(file.read_text(encoding="utf-8"))
    for picture in draw_report(report, out if out is not None else file.parent):
        typer.echo(picture)

"""`everlong train ...`: what learns, trained for a model of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from everlong.cli.app import DEFAULT_MODEL, Device, Dtype, Json, Model, app, on_device, print_json

if TYPE_CHECKING:
    from everlong.models.pack import Pack

train_app = typer.Typer(no_args_is_help=True, help="Train what a memory has learned for a model: its pack.")
app.add_typer(train_app, name="train")

Layers = Annotated[str, typer.Option(help="Whose states are read, by commas; by default some in the middle.")]
Seed = Annotated[int, typer.Option(help="The same seed on the same machine: the same bits.")]
Minutes = Annotated[float | None, typer.Option(help="Of training, at most; what it needs is computed before.")]
Work = Annotated[Path, typer.Option(help="Folder of states and checkpoints: a run that was cut short goes on.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the pack; by default where this model's is looked for.")]
Teacher = Annotated[
    str, typer.Option(help="A sentence encoder whose similarities are taught, too: minilm, a name, or none.")
]


@train_app.callback()
def train() -> None:
    """Parts by name, or all of them. What else was trained for the model stays in its pack."""


@train_app.command("all")
def train_all(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books, author--title.txt; by default those that are shipped.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help='Pairs of your own, beside the shipped sets: lines of JSON, {"question": "", "passage": ""}.'
        ),
    ] = None,
    parts: Annotated[
        str, typer.Option(help="Which, by commas: towers, trigger, trimmer, writer, kv-writer, walker, adapter.")
    ] = "towers,trigger,trimmer,walker",
    minutes: Annotated[
        float | None, typer.Option(help="No part begins later; each trains for its share of what is left.")
    ] = None,
    teacher: Teacher = "minilm",
    seed: Seed = 0,
    work: Work = Path("runs/pack"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """One part after the other. A run that was cut short goes on, and trains no part again that is done."""
    from everlong.models import load
    from everlong.models.fingerprint import weights_fingerprint
    from everlong.models.pack import load_pack, pack_folder_of
    from everlong.training.all_parts import train_parts

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    folder = out or pack_folder_of(weights_fingerprint(network))
    trained = train_parts(
        network,
        tokenizer,
        [part for part in parts.split(",") if part],
        text=text or (),
        data=data or (),
        work=work,
        out=folder,
        minutes=minutes,
        seed=seed,
        teacher=_encoder_of(teacher),
        progress=_told(console),
        say=lambda line: console.print(line, highlight=False),
    )
    made = {part: dict(load_pack(folder).parts[part].made) for part in trained}
    if as_json:
        print_json({"folder": str(folder), "parts": made})
        return
    for part, said in made.items():
        _print_figures(console, f"{part}, trained in {said['minutes']} minutes", said)
    console.print(f"the pack: {folder}", highlight=False, soft_wrap=True)


@train_app.command("towers")
def train_towers(
    model: Model = DEFAULT_MODEL,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help='Pairs of your own, beside the shipped sets: lines of JSON, {"question": "", "passage": ""}.'
        ),
    ] = None,
    sets: Annotated[
        str, typer.Option(help="Shipped sets, by commas: fairytale,squad,natural; or none.")
    ] = "fairytale,squad,natural",
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text that nobody asks about: wrong passages, among which a fact is looked for."),
    ] = None,
    layers: Layers = "",
    steps: Annotated[int, typer.Option(help="Of training.")] = 2000,
    minutes: Minutes = None,
    teacher: Teacher = "minilm",
    details: Annotated[
        str, typer.Option(help="Read passages as Detail Tokens of this pack's writer: auto, or a folder.")
    ] = "",
    stories: Annotated[int, typer.Option(help="To train on, of FairytaleQA's; 0: all.")] = 0,
    seed: Seed = 0,
    work: Work = Path("runs/towers"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The towers, by which a memory is searched by meaning: from questions and the passages that answer them."""
    from everlong.corpora.pairs import load_pairs, with_stories
    from everlong.models import load
    from everlong.models.pack import pack_with
    from everlong.parts.towers.train import TowerTraining
    from everlong.training.run import train_towers as train_them

    console = Console(stderr=True)
    pairs = load_pairs([name for name in sets.split(",") if name and name != "none"], data or (), foreign=text or ())
    pairs = with_stories(pairs, stories) if stories else pairs
    network, tokenizer = load(model, dtype or None, **on_device(device))

    def checked(step: int, found: dict[str, float]) -> None:
        shares = ", ".join(f"{name} {100 * found[name]:.1f} %" for name in ("@1", "@4") if name in found)
        console.print(f"step {step:,}: loss {found['loss']:.3f}; held out: {shares or 'nothing'}", highlight=False)

    pack = train_them(
        network,
        tokenizer,
        pairs,
        work=work,
        layers=_numbers(layers),
        training=TowerTraining(steps=steps, minutes=minutes, seed=seed),
        teacher=_encoder_of(teacher),
        writer=pack_with("writer", "writer", network, details).parts["writer"] if details else None,
        progress=_told(console),
        check=checked,
    )
    _keep(pack, "towers", out, console, as_json=as_json)


@train_app.command("trigger")
def train_trigger(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Books, author--title.txt, whose pieces are joined; by default those that are shipped."),
    ] = None,
    splices: Annotated[int, typer.Option(help="Texts of six pieces of books each.")] = 36,
    dialogues: Annotated[bool, typer.Option(help="Learn from the shipped dialogues (TIAGE), too.")] = True,
    layers: Layers = "",
    steps: Annotated[int, typer.Option(help="Of training, at most.")] = 600,
    minutes: Minutes = None,
    seed: Seed = 0,
    work: Work = Path("runs/trigger"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The trigger, by which blocks end where a topic does: from joined pieces of books and dialogues."""
    from everlong.corpora.boundaries import books_of, trigger_texts
    from everlong.models import load
    from everlong.parts.trigger.train import TriggerTraining
    from everlong.training.run import train_trigger as train_it

    console = Console(stderr=True)
    texts = trigger_texts(books_of(text or ()), splices=splices, with_dialogues=dialogues, seed=seed)
    network, tokenizer = load(model, dtype or None, **on_device(device))

    def checked(step: int, found: dict[str, float]) -> None:
        console.print(f"step {step:,}: loss {found['loss']:.3f}; held out {found['held out']:.3f}", highlight=False)

    pack = train_it(
        network,
        tokenizer,
        texts,
        work=work,
        layers=_numbers(layers),
        training=TriggerTraining(steps=steps, minutes=minutes, seed=seed),
        progress=_told(console),
        check=checked,
    )
    _keep(pack, "trigger", out, console, as_json=as_json)


@train_app.command("trimmer")
def train_trimmer(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books that are read; by default those that are shipped.")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Streams of two blocks of books, half of these with planted facts.")
    ] = 24,
    stories: Annotated[
        int, typer.Option(help="Streams of stories of FairytaleQA, with the questions about them.")
    ] = 12,
    units: Annotated[int, typer.Option(help="Of the hidden layer; 0: a linear map alone.")] = 64,
    weights: Annotated[
        str,
        typer.Option(
            help="What attention counts, by commas: while a block is repeated, from text that goes on, from questions."
        ),
    ] = "1,20,6",
    in_model: Annotated[
        int, typer.Option(help="Steps of a second stage, whose gradient goes through the model; 0: none.")
    ] = 0,
    with_adapter: Annotated[
        bool, typer.Option("--with-adapter", help="Of that stage: an adapter, too, that answers from what was kept.")
    ] = False,
    scenarios: Annotated[
        int, typer.Option(help="Texts of that stage: facts in prose, topics that change, facts far apart, prose.")
    ] = 48,
    layers: Layers = "",
    minutes: Minutes = None,
    seed: Seed = 0,
    work: Work = Path("runs/trimmer"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The Trimmer, which says what tokens of a block are worth keeping: from what they are attended by."""
    from everlong.corpora.attended import trim_texts
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.pairs import load_pairs
    from everlong.corpora.scenarios import draw_scenarios
    from everlong.models import load
    from everlong.parts.trimmer.in_model import InModelTraining
    from everlong.parts.trimmer.train import TrimmerTraining, weights_of
    from everlong.training.run import train_trimmer as train_it

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    pairs = load_pairs(["fairytale"]) if stories else None
    books = books_of(text or ())
    texts = trim_texts(tokenizer, books, pairs, samples=samples, stories=stories, seed=seed)

    def checked(step: int, found: dict[str, float]) -> None:
        held_out = found["error"] if "error" in found else found["held out"]
        loss = f"loss {found['loss']:.3f}; " if "loss" in found else ""
        console.print(f"step {step:,}: {loss}held out {held_out:.3f}", highlight=False)

    pack = train_it(
        network,
        tokenizer,
        texts,
        work=work,
        layers=_numbers(layers),
        settings={"units": units},
        training=TrimmerTraining(weights_of(weights), minutes=minutes, seed=seed),
        scenarios=draw_scenarios(tokenizer, books, scenarios, seed=seed) if in_model else (),
        in_model=InModelTraining(steps=in_model, minutes=minutes, seed=seed) if in_model else None,
        with_adapter=with_adapter,
        progress=_told(console),
        check=checked,
    )
    _keep(pack, "trimmer", out, console, as_json=as_json)


@train_app.command("walker")
def train_walker(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books in which chains of facts are planted; by default the shipped ones.")
    ] = None,
    texts: Annotated[int, typer.Option(help="That the model reads, for the vectors of its towers.")] = 6,
    words_alone: Annotated[int, typer.Option(help="Further texts that are searched by words alone.")] = 30,
    tokens: Annotated[int, typer.Option(help="Of a text.")] = 20_000,
    chains: Annotated[int, typer.Option(help="Of a text: a third each of one, two and three facts.")] = 30,
    pack: Annotated[str, typer.Option(help="The pack whose towers are searched by: auto, a folder, or none.")] = "auto",
    minutes: Minutes = None,
    seed: Seed = 0,
    work: Work = Path("runs/walker"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The Walker, which goes on from what a search found to what that names: from chains of facts in books."""
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.walks import draw_walk_texts
    from everlong.memory.fingerprint import Fingerprint
    from everlong.models import load
    from everlong.models.fingerprint import weights_fingerprint
    from everlong.models.pack import open_pack
    from everlong.parts.walker.train import WalkerTraining
    from everlong.training.run import train_walker as train_it

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    prints = Fingerprint(weights_fingerprint(network), rope="", tokenizer="")
    drawn = draw_walk_texts(
        tokenizer,
        books_of(text or ()),
        texts=texts + words_alone,
        tokens=tokens,
        chains=chains,
        split="train",
        seed=seed,
    )

    def checked(round_: int, found: dict[str, float]) -> None:
        console.print(f"round {round_}: of questions held out all found {found['all found']:.3f}", highlight=False)

    trained = train_it(
        network,
        tokenizer,
        drawn[:texts],
        work=work,
        pack=open_pack(None if pack == "none" else pack, prints),
        words_alone=drawn[texts:],
        training=WalkerTraining(minutes=minutes, seed=seed),
        progress=_told(console),
        check=checked,
    )
    _keep(trained, "walker", out, console, as_json=as_json)


@train_app.command("adapter")
def train_adapter(
    model: Model = DEFAULT_MODEL,
    data: Annotated[
        list[Path] | None,
        typer.Option(help='Pairs of your own to plant in the stories: lines of JSON, {"question": "", "passage": ""}.'),
    ] = None,
    sets: Annotated[
        str, typer.Option(help="Shipped sets, by commas; fairytale is the text that others are planted in.")
    ] = "fairytale,squad,natural",
    tokens: Annotated[int, typer.Option(help="Of the memory that questions are asked to.")] = 160_000,
    steps: Annotated[int, typer.Option(help="Of training, of eight questions each.")] = 150,
    minutes: Minutes = None,
    seed: Seed = 0,
    work: Work = Path("runs/adapter"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The adapter, which helps a model to answer from what came back as it does on the right passage alone."""
    from everlong.corpora.pairs import load_pairs
    from everlong.models import load
    from everlong.parts.adapter.train import AdapterTraining
    from everlong.training.run import train_adapter as train_it

    console = Console(stderr=True)
    pairs = load_pairs([name for name in sets.split(",") if name], data or ())
    network, tokenizer = load(model, dtype or None, **on_device(device))

    def checked(step: int, found: dict[str, float]) -> None:
        console.print(f"step {step:,}: held out {found['held out']:.3f} nats a token", highlight=False)

    pack = train_it(
        network,
        tokenizer,
        pairs,
        work=work,
        tokens=tokens,
        training=AdapterTraining(steps=steps, minutes=minutes, seed=seed),
        progress=_told(console),
        check=checked,
    )
    _keep(pack, "adapter", out, console, as_json=as_json)


@train_app.command("retrieve")
def train_retrieve(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books that facts are planted in; by default those that are shipped.")
    ] = None,
    frames: Annotated[int, typer.Option(help="Of stories and books, with three questions each.")] = 400,
    tokens: Annotated[str, typer.Option(help="Of a frame, by commas: one number is drawn each time.")] = "192,384,768",
    steps: Annotated[int, typer.Option(help="Of training, of four frames each.")] = 100,
    minutes: Minutes = None,
    seed: Seed = 0,
    work: Work = Path("runs/retrieve"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """<RETRIEVE>: that a model says it at the end of a question whose answer has left the frame."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.frames import frame_texts
    from everlong.corpora.pairs import Split, load_pairs
    from everlong.corpora.record import Record
    from everlong.models import load
    from everlong.parts.retrieve.train import RetrieveTraining
    from everlong.training.run import train_retrieve as train_it

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    books, pairs = books_of(text or ()), load_pairs(["fairytale"])
    training = RetrieveTraining(steps=steps, tokens=parse_lengths(tokens), minutes=minutes, seed=seed)

    def some(split: Split, count: int) -> list[Record]:
        return frame_texts(tokenizer, books, pairs, count=count, split=split, tokens=training.tokens, seed=seed)

    drawn = [*some("train", frames), *some("fit", max(2, frames // 12))]
    pack = train_it(network, tokenizer, drawn, work=work, training=training, check=_checked(console))
    _keep(pack, "retrieve", out, console, as_json=as_json)


@train_app.command("dnii")
def train_dnii(
    memory: Annotated[Path, typer.Argument(help='A memory whose pages are searched by search.embedding_index="dnii".')],
    questions: Annotated[
        Path | None, typer.Option(help="Questions of your own, a line each; by default those of the shipped sets.")
    ] = None,
    encoder: Annotated[str, typer.Option(help="Of the memory's pages.")] = "minilm",
    probes: Annotated[
        int, typer.Option(help="Lists in which what is nearest to a held-out question is looked for.")
    ] = 8,
    steps: Annotated[int, typer.Option(help="Of training, of 256 questions each.")] = 600,
    minutes: Minutes = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The router of a memory's learned lists: which of them hold what is nearest to a question."""
    from everlong.corpora.pairs import load_pairs
    from everlong.parts.router.train import RouterTraining, train_router_of
    from everlong.retrieval.embedding import load_encoder

    console = Console(stderr=True)
    if questions is None:
        pairs = load_pairs()
        words = [pairs.questions[at].words for at in pairs.of_split("train")]
    else:
        words = [line for line in questions.read_text("utf-8").splitlines() if line.strip()]
    training = RouterTraining(steps=steps, probes=probes, minutes=minutes, seed=seed)

    def checked(step: int, found: dict[str, float]) -> None:
        console.print(f"step {step:,}: {found['found']:.1%} in the first {training.probes} lists", highlight=False)

    trained = train_router_of(memory, load_encoder(encoder), words, training=training, progress=checked)
    before, after = trained.log[0]["found"], max(entry["found"] for entry in trained.log)
    if as_json:
        print_json({"questions": len(words), "lists": len(trained.router.lists), "log": list(trained.log)})
        return
    console.print(
        f"of what is nearest to questions that were held out, the first {training.probes} of "
        f"{len(trained.router.lists):,} lists hold {after:.1%}, by nearest centroid {before:.1%}",
        highlight=False,
    )


@train_app.command("writer")
def train_writer(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books that are read; by default those that are shipped.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Streams of eight blocks of books.")] = 16,
    tokens: Annotated[
        str, typer.Option(help="Detail Tokens of a block, by commas: one number is drawn each time.")
    ] = "4,8,16,32",
    steps: Annotated[int, typer.Option(help="Of training, of two lessons each.")] = 500,
    again: Annotated[float, typer.Option(help="Lessons of saying pages again, for each of going on.")] = 2.0,
    why: Annotated[float, typer.Option(help="Lessons of telling why a block is wanted, for each of going on.")] = 1.0,
    lora: Annotated[int, typer.Option(help="Rank of maps beside the model's that learn to read them; 0: none.")] = 4,
    told: Annotated[int, typer.Option(help="Places in books with questions that a block answers, or does not.")] = 240,
    stories: Annotated[int, typer.Option(help="The same in stories, with questions that people asked.")] = 120,
    pack: Annotated[
        str, typer.Option(help="Whose Trimmer says which words it begins with: auto, a folder, or none.")
    ] = "auto",
    begin: Annotated[
        str, typer.Option(help="Go on from this pack's writer, of the same --lora: auto, or a folder.")
    ] = "",
    layers: Layers = "",
    minutes: Minutes = None,
    seed: Seed = 0,
    work: Work = Path("runs/writer"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The writer, which makes Detail Tokens of a block: so that a model goes on behind them as behind the block."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.evicted import evicted_texts
    from everlong.corpora.pairs import load_pairs
    from everlong.corpora.told import told_of_both
    from everlong.models import load
    from everlong.models.pack import pack_of_model, pack_with
    from everlong.parts.trimmer.model import trimmer_of
    from everlong.parts.writer.train import WriterTraining
    from everlong.training.run import train_writer as train_it

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    books = books_of(text or ())
    texts = evicted_texts(tokenizer, books, samples=samples, seed=seed)
    training = WriterTraining(
        steps=steps,
        tokens=parse_lengths(tokens),
        again=again,
        # What was begun says pages again from few vectors already.
        rising=0.0 if begin else WriterTraining.rising,
        why=why,
        lora=lora,
        seed=seed,
        minutes=minutes,
    )
    trained = train_it(
        network,
        tokenizer,
        texts,
        told_of_both(tokenizer, books, load_pairs(["fairytale"]), places=told, stories=stories, seed=seed)
        if why
        else (),
        trimmer=None if pack == "none" else trimmer_of(pack_of_model(network, pack)),
        begun=pack_with("writer", "writer", network, begin).parts["writer"] if begin else None,
        work=work,
        layers=_numbers(layers),
        training=training,
        progress=_told(console),
        check=_checked(console),
    )
    _keep(trained, "writer", out, console, as_json=as_json)


@train_app.command("kv-writer")
def train_kv_writer(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books that are read; by default those that are shipped.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Streams of eight blocks of books.")] = 48,
    tokens: Annotated[
        str, typer.Option(help="Tokens kept of a block of 512, by commas: one number is drawn each time.")
    ] = "4,8,16,32,64,128",
    steps: Annotated[int, typer.Option(help="Of training, of four lessons each.")] = 400,
    minutes: Minutes = None,
    pack: Annotated[str, typer.Option(help="Whose Trimmer chooses the tokens: auto, or a folder.")] = "auto",
    seed: Seed = 0,
    work: Work = Path("runs/writer"),
    out: Out = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The KV writer, which puts more into the keys and values of the tokens that the Trimmer keeps of a block."""
    from everlong.cli.settings import parse_lengths
    from everlong.corpora.boundaries import books_of
    from everlong.corpora.evicted import evicted_texts
    from everlong.models import load
    from everlong.models.pack import pack_with
    from everlong.parts.kv_writer.train import KvWriterTraining
    from everlong.parts.trimmer.model import TRIMMER, Trimmer
    from everlong.training.run import train_kv_writer as train_it

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    trimmer = Trimmer.of_part(pack_with(TRIMMER, "Trimmer", network, pack).parts[TRIMMER])
    texts = evicted_texts(tokenizer, books_of(text or ()), samples=samples, seed=seed)
    trained = train_it(
        network,
        texts,
        trimmer,
        work=work,
        training=KvWriterTraining(steps=steps, tokens=parse_lengths(tokens), seed=seed, minutes=minutes),
        progress=_told(console),
        check=_checked(console),
    )
    _keep(trained, "kv-writer", out, console, as_json=as_json)


def _checked(console: Console) -> Callable[[int, dict[str, float]], None]:
    def said(step: int, found: dict[str, float]) -> None:
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in found.items() if name not in ("step", "minutes"))
        console.print(f"step {step:,} ({found['minutes']:.1f} minutes): {losses}", highlight=False)

    return said


def _encoder_of(teacher: str) -> Any:
    from everlong.retrieval.embedding import load_encoder

    return None if teacher in ("", "none") else load_encoder(teacher)


def _numbers(layers: str) -> list[int]:
    return [int(layer) for layer in layers.split(",") if layer]


def _told(console: Console) -> Callable[[str, int, int], None]:
    """Every fiftieth of what is counted, and the last."""

    def said(what: str, done: int, of: int) -> None:
        if done == of or done % 50 == 0:
            console.print(f"{what}: {done:,} of {of:,}", highlight=False)

    return said


def _keep(pack: Pack, part: str, out: Path | None, console: Console, *, as_json: bool) -> None:
    """Put a trained part into its model's pack, beside what is there, and say how it was made."""
    from everlong.models.pack import pack_folder_of

    folder = out or pack_folder_of(pack.model)
    pack.save(folder)
    made = pack.parts[part].made
    if as_json:
        print_json({"folder": str(folder), **made})
        return
    _print_figures(console, f"trained on {made['data']} in {made['minutes']} minutes; the pack: {folder}", made)


def _print_figures(console: Console, head: str, made: Mapping[str, Any]) -> None:
    console.print(head, highlight=False)
    for name, found in made["figures"].items():
        figures = ", ".join(f"{what} {figure:.3f}" for what, figure in found.items())
        console.print(f"  {name}: {figures}", highlight=False)

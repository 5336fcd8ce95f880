"""`everlong train ...`: what learns, trained for a model of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from everlong.cli.app import DEFAULT_MODEL, Device, Dtype, Json, Model, app, on_device, print_json

train_app = typer.Typer(no_args_is_help=True, help="Train what a memory has learned for a model: its pack.")
app.add_typer(train_app, name="train")


@train_app.callback()
def train() -> None:
    """Parts by name."""


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
    layers: Annotated[str, typer.Option(help="Whose states are read, by commas; by default three in the middle.")] = "",
    steps: Annotated[int, typer.Option(help="Of training.")] = 2000,
    minutes: Annotated[float | None, typer.Option(help="Of training, at most; states are computed before.")] = None,
    teacher: Annotated[
        str, typer.Option(help="A sentence encoder whose similarities are taught, too: minilm, a name, or none.")
    ] = "minilm",
    seed: Annotated[int, typer.Option(help="The same seed on the same machine: the same bits.")] = 0,
    work: Annotated[
        Path, typer.Option(help="Folder of states and checkpoints: a run that was cut short goes on.")
    ] = Path("runs/towers"),
    out: Annotated[
        Path | None, typer.Option(help="Folder of the pack; by default where this model's is looked for.")
    ] = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The towers, by which a memory is searched by meaning: from questions and the passages that answer them."""
    from everlong.learned.pack import pack_folder_of
    from everlong.models import load
    from everlong.retrieval.embedding import load_encoder
    from everlong.training.data import load_pairs
    from everlong.training.run import train_towers as train_them
    from everlong.training.towers import TowerTraining

    console = Console(stderr=True)
    pairs = load_pairs([name for name in sets.split(",") if name and name != "none"], data or (), foreign=text or ())
    network, tokenizer = load(model, dtype or None, **on_device(device))
    encoder = None if teacher in ("", "none") else load_encoder(teacher)

    def said(what: str, done: int, of: int) -> None:
        if done == of or done % 50 == 0:
            console.print(f"{what}: {done:,} of {of:,}", highlight=False)

    def checked(step: int, found: dict[str, float]) -> None:
        shares = ", ".join(f"{name} {100 * found[name]:.1f} %" for name in ("@1", "@4") if name in found)
        console.print(f"step {step:,}: loss {found['loss']:.3f}; held out: {shares or 'nothing'}", highlight=False)

    pack = train_them(
        network,
        tokenizer,
        pairs,
        work=work,
        layers=[int(layer) for layer in layers.split(",") if layer],
        training=TowerTraining(steps=steps, minutes=minutes, seed=seed),
        teacher=encoder,
        progress=said,
        check=checked,
    )
    folder = out or pack_folder_of(pack.model)
    pack.save(folder)
    made = pack.parts["towers"].made
    if as_json:
        print_json({"folder": str(folder), **made})
        return
    console.print(f"trained on {made['data']} in {made['minutes']} minutes; the pack: {folder}", highlight=False)
    for split, found in made["figures"].items():
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.items())
        console.print(f"{split} stories, right section of all: {shares}", highlight=False)


@train_app.command("trigger")
def train_trigger(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Books, author--title.txt, whose pieces are joined; by default those that are shipped."),
    ] = None,
    splices: Annotated[int, typer.Option(help="Texts of six pieces of books each.")] = 36,
    dialogues: Annotated[bool, typer.Option(help="Learn from the shipped dialogues (TIAGE), too.")] = True,
    layers: Annotated[str, typer.Option(help="Whose states are read, by commas; by default one in the middle.")] = "",
    steps: Annotated[int, typer.Option(help="Of training, at most.")] = 600,
    minutes: Annotated[float | None, typer.Option(help="Of training, at most; states are computed before.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed on the same machine: the same bits.")] = 0,
    work: Annotated[Path, typer.Option(help="Folder of states: a run that was cut short goes on.")] = Path(
        "runs/trigger"
    ),
    out: Annotated[
        Path | None, typer.Option(help="Folder of the pack; by default where this model's is looked for.")
    ] = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The trigger, by which blocks end where a topic does: from joined pieces of books and dialogues.

    What else was trained for the model stays in the pack.
    """
    from everlong.learned.pack import pack_folder_of
    from everlong.models import load
    from everlong.training.boundaries import books_of, trigger_texts
    from everlong.training.run import train_trigger as train_it
    from everlong.training.trigger import TriggerTraining

    console = Console(stderr=True)
    texts = trigger_texts(books_of(text or ()), splices=splices, with_dialogues=dialogues, seed=seed)
    network, tokenizer = load(model, dtype or None, **on_device(device))

    def said(what: str, done: int, of: int) -> None:
        if done == of or done % 50 == 0:
            console.print(f"{what}: {done:,} of {of:,}", highlight=False)

    def checked(step: int, found: dict[str, float]) -> None:
        console.print(f"step {step:,}: loss {found['loss']:.3f}; held out {found['held out']:.3f}", highlight=False)

    pack = train_it(
        network,
        tokenizer,
        texts,
        work=work,
        layers=[int(layer) for layer in layers.split(",") if layer],
        training=TriggerTraining(steps=steps, minutes=minutes, seed=seed),
        progress=said,
        check=checked,
    )
    folder = out or pack_folder_of(pack.model)
    pack.save(folder)
    made = pack.parts["trigger"].made
    if as_json:
        print_json({"folder": str(folder), **made})
        return
    console.print(f"trained on {made['data']} in {made['minutes']} minutes; the pack: {folder}", highlight=False)
    for split, found in made["figures"].items():
        shares = ", ".join(f"{name} {share:.3f}" for name, share in found.items())
        console.print(f"{split}, average precision: {shares}", highlight=False)


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
    minutes: Annotated[float | None, typer.Option(help="Of training, at most; the memory is read before.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed on the same machine: the same bits.")] = 0,
    work: Annotated[
        Path, typer.Option(help="Folder of the memory, answers and checkpoints: a run that was cut short goes on.")
    ] = Path("runs/adapter"),
    out: Annotated[
        Path | None, typer.Option(help="Folder of the pack; by default where this model's is looked for.")
    ] = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The adapter, which helps a model to answer from what came back as it does on the right passage alone.

    What else was trained for the model stays in the pack.
    """
    from everlong.learned.pack import pack_folder_of
    from everlong.models import load
    from everlong.training.adapter import AdapterTraining
    from everlong.training.data import load_pairs
    from everlong.training.run import train_adapter as train_it

    console = Console(stderr=True)
    pairs = load_pairs([name for name in sets.split(",") if name], data or ())
    network, tokenizer = load(model, dtype or None, **on_device(device))

    def said(what: str, done: int, of: int) -> None:
        console.print(f"{what}: {done:,} of {of:,}", highlight=False)

    def checked(step: int, found: dict[str, float]) -> None:
        console.print(f"step {step:,}: held out {found['held out']:.3f} nats a token", highlight=False)

    pack = train_it(
        network,
        tokenizer,
        pairs,
        work=work,
        tokens=tokens,
        training=AdapterTraining(steps=steps, minutes=minutes, seed=seed),
        progress=said,
        check=checked,
    )
    folder = out or pack_folder_of(pack.model)
    pack.save(folder)
    made = pack.parts["adapter"].made
    if as_json:
        print_json({"folder": str(folder), **made})
        return
    console.print(f"trained on {made['questions']:,} questions in {made['minutes']} minutes; the pack: {folder}")
    for name, found in made["figures"].items():
        shares = ", ".join(f"{when} {value:.3f}" for when, value in found.items())
        console.print(f"{name}: {shares}", highlight=False)


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
    layers: Annotated[str, typer.Option(help="Whose states are read, by commas; by default two in the middle.")] = "",
    minutes: Annotated[float | None, typer.Option(help="Of training, at most; states are computed before.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed on the same machine: the same bits.")] = 0,
    work: Annotated[Path, typer.Option(help="Folder of states: a run that was cut short goes on.")] = Path(
        "runs/trimmer"
    ),
    out: Annotated[
        Path | None, typer.Option(help="Folder of the pack; by default where this model's is looked for.")
    ] = None,
    dtype: Dtype = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """The Trimmer, which says what tokens of a block are worth keeping: from what they are attended by.

    What else was trained for the model stays in the pack.
    """
    from everlong.learned.pack import pack_folder_of
    from everlong.models import load
    from everlong.training.attended import trim_texts
    from everlong.training.boundaries import books_of
    from everlong.training.data import load_pairs
    from everlong.training.run import train_trimmer as train_it
    from everlong.training.trimmer import TrimmerTraining, weights_of

    console = Console(stderr=True)
    network, tokenizer = load(model, dtype or None, **on_device(device))
    pairs = load_pairs(["fairytale"]) if stories else None
    texts = trim_texts(tokenizer, books_of(text or ()), pairs, samples=samples, stories=stories, seed=seed)

    def said(what: str, done: int, of: int) -> None:
        console.print(f"{what}: {done:,} of {of:,} texts", highlight=False)

    def checked(step: int, found: dict[str, float]) -> None:
        console.print(f"step {step:,}: loss {found['loss']:.3f}; held out {found['error']:.3f}", highlight=False)

    pack = train_it(
        network,
        tokenizer,
        texts,
        work=work,
        layers=[int(layer) for layer in layers.split(",") if layer],
        settings={"units": units},
        training=TrimmerTraining(weights_of(weights), minutes=minutes, seed=seed),
        progress=said,
        check=checked,
    )
    folder = out or pack_folder_of(pack.model)
    pack.save(folder)
    made = pack.parts["trimmer"].made
    if as_json:
        print_json({"folder": str(folder), **made})
        return
    console.print(f"trained on {made['data']} in {made['minutes']} minutes; the pack: {folder}", highlight=False)
    for split, found in made["figures"].items():
        shares = ", ".join(f"{name} {share:.3f}" for name, share in found.items())
        console.print(f"{split}: {shares}", highlight=False)

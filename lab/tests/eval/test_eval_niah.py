"""NIAH end to end with a reader whose right and wrong answers are known beforehand."""

import dataclasses
import io
import json
import pathlib
import re
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from rich.console import Console

from everlong import Answer, MemoryConfig, MemoryModel, ReadReport, Recall, SearchConfig
from everlong.memory import Memory
from everlong.models.provenance import provenance
from everlong_lab.corpora.haystack import Haystack
from everlong_lab.eval.answers import settings_of
from everlong_lab.eval.niah import (
    NiahConfig,
    NiahReport,
    ask_haystack,
    ask_in_kept,
    plan_haystack,
    summarise,
)
from everlong_lab.eval.statistics import wilson_interval
from everlong_lab.eval.tables import print_report
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.texts import paragraph_books

TOKENIZER = byte_tokenizer()
CONFIG = NiahConfig(tokens=24_000, depths=5, facts_per_kind=4, gold_tokens=512, seed=3)
KEYS = (
    "accuracy",
    "oracle_accuracy",
    "window_accuracy",
    "recall_at_k",
    "by_length",
    "by_depth",
    "by_kind",
    "config",
    "model",
)


def stated_in(text: str, question: str) -> str:
    """The statement in `text` that answers, found by the question's own words."""
    stem = re.sub(r"^What is (.*)\?$", r"\1", question)
    stem = stem[0].upper() + stem[1:]
    match = re.search(re.escape(stem) + r" is [^.]*\.(?: Remember it: [^.]*\.)?", text)
    return match.group(0) if match else "I do not know."


class Network(torch.nn.Module):
    """Answers from its prompt alone, as the gold text is asked; the last line is the question."""

    name_or_path = "known-answers"
    device = torch.device("cpu")
    dtype = torch.float16
    config = None

    def __init__(self) -> None:
        super().__init__()
        self.decoded: list[dict[str, Any]] = []
        self.prompts: list[str] = []

    def generate(self, input_ids: torch.Tensor, **how: Any) -> torch.Tensor:
        self.decoded.append(how)
        self.prompts.append(TOKENIZER.decode(input_ids[0]))
        passage, _, question = self.prompts[-1].rpartition("\n\n")
        reply = TOKENIZER(stated_in(passage, question), add_special_tokens=False, return_tensors="pt")["input_ids"]
        return torch.cat([input_ids, reply], dim=1)


class Reader:
    """The face of a MemoryModel over plain text: finds every fact but those of the kinds that it `forgets`."""

    def __init__(self, forgets: tuple[str, ...] = (), window: int = 2_000, before: str = "") -> None:
        self.model, self.tokenizer = Network(), TOKENIZER
        self.config = MemoryConfig(search=SearchConfig(groups=2))
        self.text = before
        self.forgets = forgets
        self.window = window
        self.remembered: list[bool] = []

    @property
    def stream_tokens(self) -> int:
        return len(self.text)

    def read(self, text: str, source: str = "", progress: bool = False) -> ReadReport:
        self.text += text
        return ReadReport(len(text), 1, 0.5)

    def generate(
        self, question: str, max_new_tokens: int, remember: bool = True, recall: bool = True, **how: Any
    ) -> Answer:
        self.remembered.append(remember)
        self.model.decoded.append(how)
        if not recall:
            return Answer(stated_in(self.text[-self.window :], question), 1, (), "stop", (0,))
        if any(word in question for word in self.forgets):
            return Answer("I do not know.", 1, (), "stop", (0,))
        reply = stated_in(self.text, question)
        begin = self.text.index(reply)
        spans = [(0, 100), (begin - 5, begin + len(reply) + 5)]
        groups = tuple(Recall(1, span, 1.0, "", self.text[slice(*span)], "", ("lexical",), "read") for span in spans)
        return Answer(reply, 1, groups, "stop", (0,))

    def answer_many(
        self, questions: Sequence[str], max_new_tokens: int, on_answer: Any = None, **how: Any
    ) -> list[Answer]:
        answers = []
        for number, question in enumerate(questions):
            answers.append(self.generate(question, max_new_tokens, remember=False, **how))
            if on_answer is not None:
                on_answer(number, answers[-1])
        return answers


def evaluate(reader: Reader, config: NiahConfig = CONFIG) -> NiahReport:
    return ask_haystack(reader, plan_haystack(paragraph_books(4, 60), TOKENIZER, config), config)


def test_a_reader_that_finds_all_scores_all() -> None:
    reader = Reader()
    report = evaluate(reader)
    assert report.accuracy == report.oracle_accuracy == report.recall_at_k == 1.0
    assert all(asked.recalled_rank == 2 for asked in report.questions)
    assert report.model == "known-answers"
    assert report.to_dict()["made_with"] == [provenance(reader.model)]
    assert not any(reader.remembered)


def test_no_way_of_asking_is_punished_for_repeating_its_prompt() -> None:
    reader = Reader()
    report = evaluate(reader)
    gold = len({asked.question for asked in report.questions})
    assert len(reader.model.decoded) == 2 * len(report.questions) + gold
    for how in reader.model.decoded:
        assert (how["repetition_penalty"], how["no_repeat_ngram_size"]) == (1.0, 0)


@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}])
def test_variables_of_the_chat_template_reach_every_way_of_asking(variables: dict[str, Any]) -> None:
    reader = Reader()
    reader.tokenizer = byte_tokenizer()
    reader.tokenizer.chat_template = (
        "{{ messages[-1]['content'] }}<assistant>{% if enable_thinking is false %}<think/>{% endif %}"
    )
    report = evaluate(reader, dataclasses.replace(CONFIG, chat_template_kwargs=variables))
    gold = "<assistant><think/>" if variables else "<assistant>"
    assert reader.model.prompts
    assert all(prompt.endswith(f"?{gold}") for prompt in reader.model.prompts)
    asked = [how for how in reader.model.decoded if "chat_template_kwargs" in how]
    assert len(asked) == 2 * len(report.questions), "with the memory and by the window"
    assert all(how["chat_template_kwargs"] == variables for how in asked)
    assert report.config["chat_template_kwargs"] == variables


def test_the_window_alone_finds_what_is_in_it() -> None:
    report = evaluate(Reader(window=2_000))
    for asked in report.questions:
        assert asked.window_right == (asked.length - asked.span[0] <= 2_000), asked
    assert 0.0 < report.window_accuracy < 0.5


def test_a_kind_that_is_forgotten_scores_nothing() -> None:
    report = evaluate(Reader(forgets=("UUID",)))
    assert report.by_kind["uuid"].accuracy == report.by_kind["uuid"].recall_at_k == 0.0
    assert report.by_kind["pass-key"].accuracy == report.by_kind["name"].accuracy == 1.0
    assert report.by_kind["uuid"].oracle_accuracy == 1.0
    missed = sum(asked.kind == "uuid" for asked in report.questions)
    assert report.accuracy == pytest.approx(1 - missed / len(report.questions))


def test_a_reader_that_knows_nothing_scores_nothing() -> None:
    report = evaluate(Reader(forgets=("What",), window=0))
    assert report.accuracy == report.recall_at_k == 0.0
    assert report.intervals["accuracy"][0] == 0.0


def test_every_length_has_every_depth() -> None:
    report = evaluate(Reader())
    lengths = sorted({asked.length for asked in report.questions})
    assert [abs(length - target) < 300 for length, target in zip(lengths, CONFIG.checkpoints(), strict=True)] == [
        True
    ] * 3
    for length in lengths:
        assert {asked.depth_bin for asked in report.questions if asked.length == length} == set(range(CONFIG.depths))
    assert list(report.by_depth) == ["0.1", "0.3", "0.5", "0.7", "0.9"]
    assert [int(length) for length in report.by_length] == lengths


def test_without_filling_there_are_just_so_many_facts() -> None:
    config = dataclasses.replace(CONFIG, facts_at_every_length=False, window_at_every_length=False)
    report = evaluate(Reader(), config)
    longest = report.at_longest()
    assert len(longest) == 12
    assert sorted(asked.kind for asked in longest) == sorted(config.kinds * 4)
    for asked in report.questions:
        assert (asked.window_reply is not None) == (asked.length == report.longest)


def test_spans_are_those_of_the_stream_when_something_was_read_before() -> None:
    reader = Reader(before="Read long ago. " * 50)
    report = evaluate(reader)
    for asked in report.questions:
        assert reader.text[slice(*asked.span)] == stated_in(reader.text, asked.question)
    assert report.recall_at_k == 1.0


def test_a_group_that_holds_half_of_a_fact_does_not_count() -> None:
    class Halves(Reader):
        def generate(self, *args: Any, **kwargs: Any) -> Answer:
            answer = super().generate(*args, **kwargs)
            halves = [dataclasses.replace(group, span=(group.span[0], group.span[1] - 15)) for group in answer.recalled]
            return dataclasses.replace(answer, recalled=tuple(halves))

    assert evaluate(Halves()).recall_at_k == 0.0


def test_json_has_the_keys_and_reads_back() -> None:
    report = evaluate(Reader())
    read_back = json.loads(json.dumps(report.to_dict()))
    assert set(KEYS) <= set(read_back)
    assert read_back["config"]["tokens"] == CONFIG.tokens
    assert read_back["config"]["dtype"] == "float16"
    assert read_back["config"]["memory"]["search"]["groups"] == 2
    assert read_back["config"]["memory"].keys() == MemoryConfig().to_dict().keys()
    assert len(read_back["questions"]) == len(report.questions)
    assert {"question", "reply", "right", "oracle_reply", "window_reply", "recalled_rank"} <= set(
        read_back["questions"][0]
    )


def test_same_seed_same_questions() -> None:
    first, second, other = (
        [asked.question for asked in evaluate(Reader(), dataclasses.replace(CONFIG, seed=seed)).questions]
        for seed in (3, 3, 4)
    )
    assert first == second
    assert first != other


def test_printing_says_the_rates() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    report = evaluate(Reader(forgets=("UUID",)))
    print_report(report, console)
    text = console.export_text()
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    rows = {name: cells for name, *cells in lines}
    assert len(rows) == len(lines) == 3 + 3, "a row for every kind and for every length"
    in_window = {kind: [one.window_right for one in report.questions if one.kind == kind] for kind in CONFIG.kinds}
    for kind, found in in_window.items():
        n, forgotten = len(found), kind == "uuid"
        low, high = wilson_interval(0 if forgotten else n, n)
        share = "0%" if forgotten else "100%"
        window = f"{sum(map(bool, found)) / n:.0%}"
        assert rows[kind] == [str(n), "100%", window, share, f"{low:.0%} - {high:.0%}", share]
    for length in {one.length for one in report.questions}:
        asked = [one for one in report.questions if one.length == length]
        assert rows[f"{length:,}"][0] == str(len(asked))
        assert rows[f"{length:,}"][3] == f"{sum(one.kind != 'uuid' for one in asked) / len(asked):.0%}"
    assert f"known-answers: {report.tokens:,} tokens read" in text


def test_nothing_asked_is_an_error() -> None:
    with pytest.raises(ValueError, match="no question"):
        summarise([], CONFIG, "m", 1, {})


@pytest.mark.parametrize(
    "settings",
    [{"depths": 0}, {"facts_per_kind": 0}, {"tokens": 0}, {"kinds": ()}, {"lengths": (10, 5)}, {"lengths": (10, 20)}],
)
def test_bad_settings_are_said(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"empty|ascend"):
        NiahConfig(**settings)


@pytest.mark.slow
def test_kept_memories_are_asked_again_without_reading(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = NiahConfig(tokens=6_000, lengths=(3_000, 6_000), depths=2, facts_per_kind=1, kinds=("name",), seed=3)
    haystack = plan_haystack(paragraph_books(4, 60), TOKENIZER, config)
    model = tiny_model()
    opened: list[pathlib.Path] = []

    def open_memory(folder: pathlib.Path) -> MemoryModel:
        opened.append(folder)
        return MemoryModel(model, TOKENIZER, folder, TINY_MEMORY)

    def ask(folder: pathlib.Path, of: Haystack = haystack) -> NiahReport:
        return ask_in_kept(open_memory, of, config, folder)

    fresh = MemoryModel(model, TOKENIZER, None, TINY_MEMORY)
    at_once = ask_haystack(fresh, haystack, config)
    fresh.close()
    # Cut short in the middle of the first length, as everlong noted that at first.
    with open_memory(tmp_path / "reading.everlong") as mm:
        mm.read(haystack.parts[0].text[:1_000], source=haystack.parts[0].source)
        mm.memory.core.set_attribute(
            "reading", json.dumps({"source": haystack.parts[0].source, "stream": 0, "begin": 0})
        )
    kept = ask(tmp_path)
    # An interruption in the middle of the asking: the last answer is half written.
    (answers,) = tmp_path.glob("answers-*.jsonl")
    assert kept.made_with == [provenance(model)]
    whole = answers.read_bytes()
    answers.write_bytes(whole[: whole[:-1].rfind(b"\n") + 20])
    with monkeypatch.context() as patch:
        patch.setattr("everlong_lab.eval.niah.run.provenance", lambda _: {"everlong": "9.9.9"})
        assert ask(tmp_path).made_with == [provenance(model), {"everlong": "9.9.9"}]
    answers.write_bytes(whole[: whole[:-1].rfind(b"\n") + 20])
    again = ask(tmp_path)
    assert again.made_with == kept.made_with
    assert len(again.questions) == len(kept.questions)
    assert again.questions[:-1] == kept.questions[:-1]  # their seconds too: not asked again
    assert len(answers.read_bytes().splitlines()) == len(whole.splitlines())
    lengths = [haystack.parts[parts - 1].end for parts in haystack.checkpoints]
    assert [folder.name for folder in opened[-2:]] == [f"{length}.everlong" for length in lengths]
    assert again.seconds["read"] == 0.0
    assert [asked.groups for asked in again.questions] == [asked.groups for asked in kept.questions]
    uncut = ask(tmp_path / "uncut")
    for one in (kept, uncut):
        assert [asked.span for asked in one.questions] == [asked.span for asked in at_once.questions]
    assert [asked.groups for asked in uncut.questions] == [asked.groups for asked in at_once.questions]

    # Other variables of the chat template are other answers; without any they are those of before there were such.
    config = dataclasses.replace(config, chat_template_kwargs={"enable_thinking": False})
    ask(tmp_path)
    of_variables = [settings_of(file).get("chat_template_kwargs") for file in tmp_path.glob("answers-*.jsonl")]
    assert sorted(of_variables, key=bool) == [None, {"enable_thinking": False}]

    other = plan_haystack(paragraph_books(4, 60), TOKENIZER, dataclasses.replace(config, seed=4))
    with pytest.raises(ValueError, match="another haystack"):
        ask(tmp_path, other)


def in_bf16() -> Any:
    model = tiny_model()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return model


@pytest.mark.slow
def test_a_reading_does_not_go_on_in_another_dtype(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = NiahConfig(tokens=3_000, lengths=(1_500, 3_000), depths=2, facts_per_kind=1, kinds=("name",), seed=3)
    haystack = plan_haystack(paragraph_books(4, 60), TOKENIZER, config)

    kept = tmp_path / "kept"

    def ask(model: Any) -> NiahReport:
        return ask_in_kept(lambda folder: MemoryModel(model, TOKENIZER, folder, TINY_MEMORY), haystack, config, kept)

    def no_fork(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("everlong_lab.eval.niah.run.store_fork", no_fork)
        with pytest.raises(KeyboardInterrupt):
            ask(in_bf16())
    with pytest.raises(ValueError, match=r"kept began in bfloat16, this model is in float32: name a new folder"):
        ask(tiny_model())
    assert ask(in_bf16()).config["dtype"] == "bfloat16"
    assert ask(tiny_model()).config["dtype"] == "float32", "nothing is read"
    # Of a run before dtypes were kept.
    (kept / "reading.jsonl").unlink()
    assert ask(in_bf16()).seconds["read"] == 0.0
    (kept / "reading.jsonl").write_text('{"settings": {"dty')
    shutil.rmtree(kept / f"{haystack.tokens}.everlong")
    assert ask(tiny_model()).config["dtype"] == "float32"
    assert settings_of(kept / "reading.jsonl") == {"dtype": "float32"}


def test_a_fork_that_was_cut_short_is_made_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = NiahConfig(tokens=3_000, lengths=(3_000,), depths=2, facts_per_kind=1, kinds=("name",), seed=3)
    haystack = plan_haystack(paragraph_books(4, 60), TOKENIZER, config)
    model = tiny_model()
    fork = Memory.fork

    def open_memory(folder: pathlib.Path) -> MemoryModel:
        return MemoryModel(model, TOKENIZER, folder, TINY_MEMORY)

    def half(self: Memory, path: pathlib.Path) -> Memory:
        fork(self, path).close()
        (path / "manifest.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Memory, "fork", half)
        with pytest.raises(KeyboardInterrupt):
            ask_in_kept(open_memory, haystack, config, tmp_path)
    report = ask_in_kept(open_memory, haystack, config, tmp_path)
    assert len(report.questions) == 1
    assert report.config["memory"]["frame"]["tokens"] == TINY_MEMORY.frame.tokens
    assert not list(tmp_path.glob("*.begun"))

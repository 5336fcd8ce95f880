"""Published benchmarks' files, as small made-up ones, are read as their authors write them, and asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import everlong.cli.app
from everlong_lab.eval.published.example import Example, Text, chosen, shared_words
from everlong_lab.eval.published.formats import examples_in
from everlong_lab.eval.published.run import run_published
from support import TINY_MEMORY, byte_tokenizer, tiny_model

LETTERS = {f"choice_{letter}": f"option {letter}" for letter in "ABCD"}
LONGBENCH = [
    {
        "_id": "66f3",
        "domain": "Single-Document QA",
        "sub_domain": "Financial",
        "difficulty": "hard",
        "length": "short",
        "question": "Which one?",
        **LETTERS,
        "answer": "C",
        "context": "A long report.",
    }
]
BABILONG = [{"input": "Mary went to the kitchen. " * 3, "question": "Where is Mary? ", "target": "kitchen"}]
PASSKEY = [
    {"id": 0, "context": "The pass key is 71432.", "input": "What is the pass key?", "answer": ["71432"], "options": []}
]
CHOICE = [
    {"id": 4, "context": "A book.", "input": "Who?", "answer": ["Ann"], "options": ["Ben", "Ann", "Cy", "Di"]},
]
RULER = [
    {
        "index": 3,
        "input": "Some special magic numbers are hidden.\nOne of the numbers for x is: 12.\nAnother for x is: 34.\n"
        "What are all the special magic numbers for x mentioned in the provided text?",
        "outputs": ["12", "34"],
        "length": 60,
        "answer_prefix": " The numbers are",
    }
]
NOLIMA = [
    {
        "id": "0401",
        "reasoning_type": "world_knowledge",
        "system_prompt": "",
        "task_template": "{haystack} {question}",
        "needle": "Actually, {CHAR} lives next to {1}.",
        "questions": {"onehop": "Which character has been to {2}?", "twohop": "Which character has been to {3}?"},
        "character_set": ["Yuki", "Stuart"],
        "tests": {"T1": {"input_args": ["the Kiasma museum", "Helsinki", "Uusimaa"]}},
    }
]
LONGMEMEVAL = [
    {
        "question_id": "e47b",
        "question_type": "single-session-user",
        "question": "What did I study?",
        "answer": "Business",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ["s1", "s2"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 03:00"],
        "haystack_sessions": [
            [{"role": "user", "content": "I studied business.", "has_answer": True}],
            [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}],
        ],
        "answer_session_ids": ["s1"],
    }
]
TURN = {"role": "user", "content": "I moved to Chennai.", "time_anchor": "March-01-2024", "id": 1}
PROBES = {
    "knowledge_update": [{"question": "Where do I live?", "answer": "Chennai", "rubric": ["Chennai"]}],
    "abstention": [{"question": "Which car?", "ideal_response": "That was not said.", "rubric": ["none"]}],
}
BEAM = [
    {"conversation_id": "1", "chat": [[{**TURN, "content": "first"}], [TURN]], "probing_questions": repr(PROBES)},
    {
        "conversation_id": "2",
        "chat": [{"plan-10": [{"turns": [[{**TURN, "content": "tenth"}]]}], "plan-2": [{"turns": [[TURN]]}]}],
        "probing_questions": PROBES,
    },
]


def write(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows) if file.suffix == ".jsonl" else json.dumps(rows)
    file.write_text(text, encoding="utf-8")
    return file


def write_all(folder: Path) -> Path:
    write(folder / "longbench" / "data.json", LONGBENCH)
    write(folder / "babilong" / "qa1" / "4k.json", BABILONG)
    write(folder / "infinite" / "passkey.jsonl", PASSKEY)
    write(folder / "infinite" / "longbook_choice_eng.jsonl", CHOICE)
    write(folder / "ruler" / "niah_multivalue" / "validation.jsonl", RULER)
    write(folder / "nolima" / "needlesets" / "needle_set.json", NOLIMA)
    (folder / "nolima" / "haystack").mkdir()
    (folder / "nolima" / "haystack" / "book.txt").write_text("It was a long day. " * 200)
    write(folder / "longmemeval_s.json", LONGMEMEVAL)
    write(folder / "beam" / "100K.json", BEAM)
    (folder / "beam" / "notes.json").write_text('["no rows"]')
    return folder


def test_every_format_is_read(tmp_path: Path) -> None:
    found = {one.id: one for one in examples_in(write_all(tmp_path), 2000)}
    assert len(found) == 12
    long = found["66f3"]
    assert (long.answers, long.scoring, long.texts) == (("C",), "choice", (Text("A long report.", "context"),))
    assert "(B) option B" in long.question
    (babi,) = [one for one in found.values() if one.task == "qa1/4k"]
    assert (babi.answers, babi.question) == (("kitchen",), "Where is Mary?  Answer with one word.")
    assert found["passkey/0"].answers == ("71432",)
    assert (found["longbook_choice_eng/4"].answers, found["longbook_choice_eng/4"].scoring) == (("B",), "choice")
    ruler = found["niah_multivalue/3"]
    assert ruler.question.startswith("What are all the special magic numbers for x")
    assert ruler.question.endswith(" The numbers are")
    assert "12" in ruler.texts[0].text
    assert ruler.score("12 and 35") == 0.5
    near, far = found["0401/T1/onehop"], found["0401/T1/twohop"]
    assert (near.question, near.answers) == ("Which character has been to Helsinki?", ("Yuki",))
    assert far.question == "Which character has been to Uusimaa?"
    assert "Actually, Stuart lives next to the Kiasma museum." in far.texts[0].text
    assert far.texts[0].text.index("Actually") > near.texts[0].text.index("Actually")
    dialogue = found["e47b"]
    assert dialogue.question.startswith("Today is 2023/05/30")
    assert [text.happened for text in dialogue.texts] == ["2023-05-20T02:21:00", "2023-05-21T03:00:00"]
    assert "user: I studied business." in dialogue.texts[0].text
    assert [text.text for text in found["2/abstention/0"].texts] == ["user: I moved to Chennai.", "user: tenth"]
    assert found["2/abstention/0"].texts is found["2/knowledge_update/0"].texts
    assert found["1/knowledge_update/0"].answers == ("Chennai",)
    assert found["1/abstention/0"].answers == ("That was not said.",)


@pytest.mark.parametrize(
    ("reply", "letter"),
    [("The correct answer is (B).", "B"), ("(c)", ""), ("C", "C"), ("Answer: D, as A is wrong", "D"), ("Nobody", "")],
)
def test_which_option_a_reply_chooses(reply: str, letter: str) -> None:
    assert chosen(reply) == letter


def test_how_replies_are_scored() -> None:
    def scored(scoring: Any, reply: str, *answers: str) -> float:
        return Example("", "", (), "", answers, scoring).score(reply)

    assert scored("any", "It is the Kitchen!", "kitchen") == 1
    assert scored("any", "It is the kitchenette", "kitchen") == 0
    assert scored("all", "12, 34 and 56", "12", "34", "99", "11") == 0.5
    assert scored("words", "red boat", "a red boat", "blue") == pytest.approx(0.8)
    assert shared_words("", "x") == 0


def test_what_is_no_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of the formats longbench-v2"):
        list(examples_in(write(tmp_path / "a.json", [{"a": 1}]), 100))
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        list(examples_in(tmp_path / "b.json", 100))
    with pytest.raises(ValueError, match="has no haystack"):
        list(examples_in(write(tmp_path / "n" / "needlesets" / "a.json", NOLIMA), 100))


@pytest.mark.slow
def test_a_run_goes_on_and_counts_what_was_answered(tmp_path: Path) -> None:
    data, out = write_all(tmp_path / "data"), tmp_path / "out"
    model = (tiny_model(), byte_tokenizer())
    report = run_published(model, data, out=out, limit=1, length=500, memory_config=TINY_MEMORY)
    assert report["all"]["everlong"]["n"] == len(report["questions"]) == 10
    lines = (out / "answers.jsonl").read_bytes()
    (out / "answers.jsonl").write_bytes(b"\n".join(lines.split(b"\n")[:-3]) + b"\n")
    again = run_published(model, data, out=out, limit=1, length=500, memory_config=TINY_MEMORY)
    assert [one["replies"] for one in again["questions"]] == [one["replies"] for one in report["questions"]]
    with pytest.raises(ValueError, match="another folder"):
        run_published(model, data, out=out, limit=1, length=400, memory_config=TINY_MEMORY)


def test_questions_of_one_text_are_answered_at_once(tmp_path: Path) -> None:
    """With the replies that they have one after another, in fewer forwards."""
    data = write(tmp_path / "beam" / "100K.json", BEAM)
    model = tiny_model()
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))

    def replies(at_once: int) -> tuple[list[Any], int]:
        forwards.clear()
        config = TINY_MEMORY.changed(answer={"at_once": at_once})
        report = run_published((model, byte_tokenizer()), data, out=tmp_path / str(at_once), memory_config=config)
        return [one["replies"] for one in report["questions"]], len(forwards)

    alone, one_by_one = replies(1)
    together, joint = replies(8)
    assert len(alone) == 4
    assert together == alone
    assert joint < 0.7 * one_by_one


@pytest.mark.slow
def test_the_command_prints_scores(saved_model: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "passkey.jsonl", PASSKEY)
    given = ["eval", "published", "--data", file, "--model", saved_model, "--out", tmp_path / "out"]
    done = CliRunner().invoke(everlong.cli.app.app, [*map(str, given), "--set", "search.index=lexical"])
    assert done.exit_code == 0, done.output
    assert "passkey" in done.output
    assert json.loads((tmp_path / "out" / "report.json").read_text())["kind"] == "published"
    wrong = CliRunner().invoke(everlong.cli.app.app, ["eval", "published", "--data", str(tmp_path / "none")])
    assert wrong.exit_code == 1

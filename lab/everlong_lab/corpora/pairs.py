"""Questions with the passages that answer them: what the towers learn from, and what they are measured on.

FairytaleQA and sentences of SQuAD and Natural Questions lie in the package (data/qa, with their licences). A user's own
pairs are lines of JSON, `{"question": ..., "passage": ...}`. Foreign text, which has no questions, gives wrong
passages, so that a fact is looked for among pages that have nothing to do with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from everlong.errors import EverlongError
from everlong_lab.data.qa import qa_lines

Split = Literal["train", "fit", "test"]  # learned from; stops learning and fits what is left; nothing is fitted on it
SETS = ("fairytale", "squad", "natural")
FOREIGN = "foreign"

# Foreign text: characters of a piece, about those of a page, and pieces that are read as one run.
_FOREIGN_CHARACTERS = 280
_FOREIGN_PIECES = 24

# Shares of the stories of FairytaleQA's train split, by a hash of their names. Early stopping and the weights of the
# fusion are fitted on the first; nothing is fitted on the second. All others are trained on; the val split is test.
_FIT_SHARE = 0.1
_TEST_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Text:
    """A text to read as one run: a story's sections, or one passage."""

    name: str
    pieces: tuple[str, ...]
    split: Split
    origin: str  # one of SETS, FOREIGN, or a file's name


@dataclasses.dataclass(frozen=True)
class Question:
    words: str
    text: int  # which of the texts answers it
    pieces: tuple[int, ...]  # which of its pieces do
    kind: str = ""  # in FairytaleQA: "explicit", or "implicit": not said in so many words
    answers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Pairs:
    texts: tuple[Text, ...]
    questions: tuple[Question, ...]

    def of_split(self, split: Split) -> list[int]:
        """Return the numbers of the split's questions."""
        return [at for at, question in enumerate(self.questions) if self.texts[question.text].split == split]

    def origins(self) -> dict[str, int]:
        """Return how many questions are trained on, by where they come from."""
        counts: dict[str, int] = {}
        for at in self.of_split("train"):
            origin = self.texts[self.questions[at].text].origin
            counts[origin] = counts.get(origin, 0) + 1
        return counts


def load_pairs(
    names: Iterable[str] = SETS,
    files: Sequence[str | pathlib.Path] = (),
    *,
    foreign: Sequence[str | pathlib.Path] = (),
    foreign_characters: int = 800_000,
) -> Pairs:
    """Load sets by name, files of a user's own, and foreign text.

    Foreign text is at most `foreign_characters`, the same number from each file's beginning. Raises EverlongError for a
    line that is no pair, with its place.
    """
    texts: list[Text] = []
    questions: list[Question] = []
    for name in names:
        if name == "fairytale":
            _add_stories(texts, questions)
        else:
            _add_passages(name, _lines_of(name), texts, questions)
    for file in files:
        _add_passages(str(file), _own_lines(pathlib.Path(file)), texts, questions)
    for file in foreign:
        words = pathlib.Path(file).read_text("utf-8", errors="replace")[: foreign_characters // len(foreign)]
        texts.extend(_foreign_texts(pathlib.Path(file).name, words))
    return Pairs(tuple(texts), tuple(questions))


def with_stories(pairs: Pairs, count: int) -> Pairs:
    """Return the same pairs with `count` of the stories that are trained on; all held-out stories stay."""
    train = [at for at, text in enumerate(pairs.texts) if text.split == "train" and text.origin == "fairytale"]
    out = set(train[count:])
    kept = [at for at in range(len(pairs.texts)) if at not in out]
    number = {at: place for place, at in enumerate(kept)}
    questions = [
        dataclasses.replace(question, text=number[question.text])
        for question in pairs.questions
        if question.text in number
    ]
    return Pairs(tuple(pairs.texts[at] for at in kept), tuple(questions))


def split_of(story: str) -> Split:
    """Return the split of a story in FairytaleQA's train split."""
    at = int(hashlib.sha256(story.encode()).hexdigest()[:8], 16) / 2**32
    return "fit" if at < _FIT_SHARE else "test" if at < _FIT_SHARE + _TEST_SHARE else "train"


def _add_stories(texts: list[Text], questions: list[Question]) -> None:
    for part in ("train", "val"):
        number: dict[str, tuple[int, dict[str, int]]] = {}
        for line in qa_lines(f"fairytale-{part}-stories"):
            sections = line["sections"]
            number[line["story"]] = len(texts), {key: at for at, key in enumerate(sections)}
            split: Split = split_of(line["story"]) if part == "train" else "test"
            texts.append(Text(line["story"], tuple(sections.values()), split, "fairytale"))
        for line in qa_lines(f"fairytale-{part}-questions"):
            text, sections = number[line["story"]]
            pieces = tuple(sections[key] for key in line["sections"])
            questions.append(Question(line["question"], text, pieces, line["kind"], tuple(line["answers"])))


def _foreign_texts(name: str, words: str) -> Iterator[Text]:
    pieces = textwrap.wrap(words, _FOREIGN_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    for at in range(0, len(pieces), _FOREIGN_PIECES):
        yield Text(name, tuple(pieces[at : at + _FOREIGN_PIECES]), "train", FOREIGN)


def _lines_of(name: str) -> Iterator[Mapping[str, Any]]:
    files = {"squad": "squad-sentences", "natural": "natural-questions"}
    if name not in files:
        raise EverlongError(f"there is no set {name!r}; there are {', '.join(SETS)}")
    return qa_lines(files[name])


def _own_lines(file: pathlib.Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                pair = json.loads(line)
                words = pair["question"], pair["passage"]
            except (ValueError, KeyError, TypeError) as error:
                raise EverlongError(f"{file}, line {number}: expected a question and a passage ({error})") from None
            if not all(isinstance(word, str) and word.strip() for word in words):
                raise EverlongError(f"{file}, line {number}: question and passage are text, and not empty")
            yield pair


def _add_passages(
    origin: str, lines: Iterable[Mapping[str, Any]], texts: list[Text], questions: list[Question]
) -> None:
    known: dict[str, int] = {}
    for line in lines:
        passage = line["passage"]
        if passage not in known:
            known[passage] = len(texts)
            texts.append(Text("", (passage,), "train", origin))
        answers = (line["answer"],) if "answer" in line else ()
        questions.append(Question(line["question"], known[passage], (0,), answers=answers))

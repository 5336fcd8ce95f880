"""Books in which chains of facts are planted (corpora/chains.py): what the Walker learns from and is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlong.data import Book
from everlong.text.encoding import encode
from everlong_lab.corpora.chains import ChainSplit, draw_chains
from everlong_lab.corpora.planted import with_statements
from everlong_lab.corpora.record import Question, Record
from everlong_lab.corpora.seeds import draws


def draw_walk_texts(
    tokenizer: Any,
    books: Sequence[Book],
    *,
    texts: int,
    tokens: int,
    chains: int,
    split: ChainSplit,
    seed: int,
) -> list[Record]:
    """Return `texts` texts of `tokens` tokens each, of the books in turn, with `chains` chains of facts each.

    The chains have one, two and three facts in turn. The spans of a question are those of its chain's statements.
    Raises ValueError where the books are too short.
    """
    random = draws(seed, f"walks {split}")
    drawn = []
    for number in range(texts):
        book = books[number % len(books)]
        characters = 6 * tokens
        first = int(random.integers(max(1, len(book.text) - characters))) if len(book.text) > characters else 0
        text = encode(tokenizer, book.text[first : first + characters])
        planted = draw_chains(random, [1 + at % 3 for at in range(chains)], split)
        statements = [(at, statement) for at, chain in enumerate(planted) for statement in chain.statements]
        order = random.permutation(len(statements))  # one chain's facts may stand anywhere
        ids, places, _ = with_statements(tokenizer, text, [statements[at][1] for at in order], tokens, random)
        spans: list[list[tuple[int, int]]] = [[] for _ in planted]
        of_statement = dict(zip(order.tolist(), places, strict=True))
        for at, (chain, _) in enumerate(statements):
            spans[chain].append(of_statement[at])
        questions = [
            Question(chain.question, (chain.answer,), tuple(own)) for chain, own in zip(planted, spans, strict=True)
        ]
        drawn.append(Record(f"{book.name} {number}", "book", split, ids, tuple(questions)))
    return drawn

"""Where tasks take their keys and values from: drawn from a seed, nothing twice while the pools last."""

from __future__ import annotations

import itertools
import string
import uuid
from collections.abc import Callable, Iterator

from everlong_lab.corpora import words
from everlong_lab.corpora.seeds import picks

# The length of a task's own text: a share of the whole, within bounds.
_LEAST = 192
_OWN_SHARE, _OWN_MOST = 128, 2_048
_TABLE_SHARE, _TABLE_MOST = 32, 8_192


def own_tokens(length: int) -> int:
    """Return the tokens of a task's own text (noise, a list of words) in a haystack of `length` tokens."""
    return min(max(length // _OWN_SHARE, _LEAST), _OWN_MOST)


def table_tokens(length: int) -> int:
    """Return the tokens of a text of keys and values.

    It is several times what is recalled, so that the key has to be found in it.
    """
    return min(max(length // _TABLE_SHARE, _LEAST), _TABLE_MOST)


class Draw:
    """One pool for all tasks of a suite, so that no two questions share a key."""

    def __init__(self, seed: int, count_tokens: Callable[[str], int]) -> None:
        self.rng = picks(seed, "suite")
        self.count_tokens = count_tokens
        self._things = itertools.cycle(words.pairs(self.rng, words.ADJECTIVES, words.NOUNS))
        self._people = itertools.cycle(words.pairs(self.rng, words.FIRST_NAMES, words.LAST_NAMES))
        self._cities: list[str] = []
        self._taken: set[str] = set()

    def thing(self) -> str:
        return next(self._things)

    def person(self) -> str:
        return next(self._people)

    def cities(self, count: int) -> list[str]:
        """Return different cities; a city comes back only after all the others."""
        if len(self._cities) < count:
            self._cities = self.rng.sample(words.CITIES, len(words.CITIES))
        return [self._cities.pop() for _ in range(count)]

    def number(self, digits: int) -> str:
        return self._new(lambda: str(self.rng.randrange(10 ** (digits - 1), 10**digits)))

    def uuid(self) -> str:
        # It begins with a digit: a small model drops a letter that its tokenizer joined to the space before it.
        return self._new(
            lambda: f"{self.rng.randrange(1, 10)}{str(uuid.UUID(int=self.rng.getrandbits(128), version=4))[1:]}"
        )

    def variable(self) -> str:
        return self._new(lambda: "".join(self.rng.choices(string.ascii_uppercase, k=5)))

    def code_word(self) -> str:
        return self._new(lambda: "".join(self.rng.choices(string.ascii_lowercase, k=6)))

    def fill(self, tokens: int, lines: Iterator[str], joint: str = "\n") -> list[str]:
        """Return as many lines as come to `tokens` tokens, at least one."""
        taken: list[str] = []
        total = 0
        for line in lines:
            taken.append(line)
            total += self.count_tokens(line + joint)
            if total >= tokens:
                break
        return taken

    def _new(self, make: Callable[[], str]) -> str:
        while True:
            value = make()
            if value not in self._taken:
                self._taken.add(value)
                return value

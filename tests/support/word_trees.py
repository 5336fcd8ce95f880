"""Random trees of numbered words, as markup: whoever reads it must get all words back, in order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

BLOCKS = ("div", "section", "article", "aside", "blockquote", "li", "pre", "details", "h2", "noscript", "figure")
INLINE = ("span", "b", "em", "code", "u", "x-mark")
# Elements of XML that close themselves: in HTML some of them would have no end.
EMPTY = ("<title/>", "<script/>", "<style/>", "<iframe/>", "<textarea/>", "<object/>", "<noscript/>", "<a/>", "<br/>")

Tree = Any  # "" for a word, a piece of EMPTY, or (tag, list of trees)


def trees(*, empty: bool = False) -> st.SearchStrategy[Tree]:
    """Trees of words; `empty` for XHTML, where elements may close themselves."""
    leaves = st.sampled_from(("", "", *EMPTY)) if empty else st.just("")

    def grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.tuples(st.sampled_from(BLOCKS + INLINE), st.lists(inner, max_size=4))

    return st.recursive(leaves, grown, max_leaves=30)


def markup_of(tree: Tree, numbers: Iterator[int]) -> str:
    """The tree as markup, its words numbered in order."""
    if tree == "":
        return f" w{next(numbers)} "
    if isinstance(tree, str):
        return tree
    tag, children = tree
    if list(children) == [""] and tag in BLOCKS:  # nothing but the element keeps the word apart
        return f"<{tag}>w{next(numbers)}</{tag}>"
    return f"<{tag}>{''.join(markup_of(one, numbers) for one in children)}</{tag}>"


def marked_up(several: list[Tree]) -> tuple[list[str], list[str]]:
    """Several trees as markup, and all their words in order."""
    numbers = itertools.count()
    markup = [markup_of(tree, numbers) for tree in several]
    return markup, [f"w{number}" for number in range(next(numbers))]


def words_in(text: str) -> list[str]:
    """The numbered words that stand apart in a text."""
    return re.findall(r"(?<!\w)w\d+(?!\w)", text)

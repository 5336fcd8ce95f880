"""What a field's comment says is the field's documentation: a griffe extension for the API pages.

Fields of dataclasses carry their meaning beside them (`tokens: int  # read now`) or in comment lines right above. A
default that is another name is shown as what it is: defaults that the C++ core owns are numbers here.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from typing import Any

import griffe

from everlong_lab.cli.field_comments import comment_at


class FieldComments(griffe.Extension):
    """Gives an attribute of a class that has no docstring the comment of its line, or the comment lines above it."""

    def on_attribute_instance(
        self,
        *,
        node: ast.AST | griffe.ObjectNode,
        attr: griffe.Attribute,
        agent: griffe.Visitor | griffe.Inspector,
        **kwargs: Any,
    ) -> None:
        owner = attr.parent
        if attr.lineno is None or not isinstance(owner, griffe.Class) or not _is_dataclass(owner):
            return
        if isinstance(attr.value, griffe.ExprAttribute):
            attr.value = _default(owner, attr.name)
        if attr.docstring is not None:
            return
        comment = comment_at(attr.lines_collection[attr.filepath], attr.lineno, attr.endlineno or attr.lineno)
        if comment:
            attr.docstring = griffe.Docstring(comment, parent=attr)


def _is_dataclass(owner: griffe.Class) -> bool:
    return any("dataclass" in str(decorator.value) for decorator in owner.decorators)


def _default(owner: griffe.Class, field: str) -> str:
    """The default of a dataclass's field, as Python writes it."""
    loaded = getattr(importlib.import_module(owner.module.path), owner.name)
    return repr({each.name: each.default for each in dataclasses.fields(loaded)}[field])

"""Conditions on tags as a person types them: ``policy_version < 3 and source in ["web", "book"]``.

Read by Python's own grammar, of which only names, literals, comparisons, ``and``, ``or``, ``not``,
``in`` and ``exists(tag)`` are let through; nothing is evaluated.
"""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.coordinator.predicate import Predicate, TagRef

EXAMPLE = 'policy_version < 3 and source in ["web", "book"]'

_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}


def parse_where(text: str) -> Predicate:
    """The condition. ``click.BadParameter`` says what is wrong with it."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _bad(text, f"not an expression: {error}") from None
    return _read(tree.body, text)


def _bad(text: str, why: str) -> click.BadParameter:
    return click.BadParameter(f"{text!r}: {why}; e.g. {EXAMPLE}")


def _read(node: ast.expr, text: str) -> Predicate:
    if isinstance(node, ast.BoolOp):
        parts = [_read(value, text) for value in node.values]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part if isinstance(node.op, ast.And) else whole | part
        return whole
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_read(node.operand, text)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "exists" and len(node.args) == 1:
        return _tag(node.args[0], text).exists()
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compare(node.left, node.ops[0], node.comparators[0], text)
    raise _bad(text, f"{ast.unparse(node)!r} is no comparison of one tag with one value")


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr, text: str) -> Predicate:
    if isinstance(op, (ast.In, ast.NotIn)):
        values = _literal(right, text)
        if not isinstance(values, (list, tuple, set)):
            raise _bad(text, "in takes a list")
        among = _tag(left, text).isin(list(values))
        return ~among if isinstance(op, ast.NotIn) else among
    if isinstance(right, ast.Name) and not isinstance(left, ast.Name):
        left, op, right = right, _MIRRORED.get(type(op), type(op))(), left
    compare = _OPERATORS.get(type(op))
    if compare is None:
        raise _bad(text, "compare with ==, !=, <, <=, >, >= or in")
    found: Predicate = compare(_tag(left, text), _literal(right, text))
    return found


def _tag(node: ast.expr, text: str) -> TagRef:
    from transferqueue.coordinator.predicate import tag

    if not isinstance(node, ast.Name):
        raise _bad(text, f"{ast.unparse(node)!r} is no name of a tag")
    return tag(node.id)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        raise _bad(text, f"{ast.unparse(node)!r} is no value") from None

"""Faults put into a copy of the serialiser that a stack has installed, as edits of its syntax tree.

Nothing of upstream's source stands here: an edit says what it looks for, and one that finds nothing is a fault of ours.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from harness.observe import HarnessFault
from harness.observe.run import Run
from harness.probes import _dumps
from harness.probes.config_values import PRELOAD as PRELOAD
from harness.probes.config_values import answered, converse
from harness.probes.registry import probe

_VALUE, _DICT, _SHALLOW = "_to_json_safe_config_value", "_to_json_safe_config_dict", "_config_to_shallow_dict"

Edit = Callable[[ast.AST], ast.AST | None]
"""From a node of the syntax tree to what takes its place; None takes a statement away."""


@probe(enters=(f"{_dumps.MANAGER}:{_DICT}",), returns=("ended",))
def faulty_dumps(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Dumps of described configs by verl's functions with a fault in them; see `config_dumps`.

    The question `{"fault": name}` says which fault those that follow are about.
    """
    writer = _dumps.functions(run)

    def answer(question: Any) -> dict[str, Any]:
        nonlocal writer
        if isinstance(question, dict) and "fault" in question:
            writer = _functions(run, FAULTS[question["fault"]])
            return {}
        return answered(writer, question)

    _dumps.seconds = 0.2
    converse(listen, answer)
    return {"ended": True}


def _functions(run: Run, fault: Edit) -> _dumps.Functions:
    module = run.upstream(_dumps.MANAGER)
    tree = ast.parse(inspect.getsource(module))
    copies = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in (_VALUE, _DICT, _SHALLOW)
    ]
    whole = ast.Module(copies, [])
    before = ast.dump(whole)
    ast.fix_missing_locations(_Editor(fault).visit(whole))
    if ast.dump(whole) == before:
        raise HarnessFault("the fault changes nothing: verl's functions are no longer what it looks for")
    namespace = dict(vars(module))
    # As if it were the file itself, so that the evidence sees it.
    exec(compile(whole, str(module.__file__), "exec"), namespace)
    return _dumps.Functions(namespace[_SHALLOW], namespace[_DICT])


class _Editor(ast.NodeTransformer):
    """Edits the innermost nodes first."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit

    def visit(self, node: ast.AST) -> Any:
        return self._edit(super().generic_visit(node))


def _where(found: Callable[[Any], bool], edit: Edit) -> Edit:
    return lambda node: edit(node) if found(node) else node


def _within(branch: str, edit: Edit) -> Edit:
    """An edit inside the branch of the conversion that is for a type."""
    return _where(lambda node: _is_branch(node, branch), lambda node: _Editor(edit).generic_visit(node))


def _in(function: str, edit: Edit) -> Edit:
    return _where(
        lambda node: isinstance(node, ast.FunctionDef) and node.name == function,
        lambda node: _Editor(edit).generic_visit(node),
    )


def _is_branch(node: Any, kind: str) -> bool:
    return isinstance(node, ast.If) and _calls(node.test, "isinstance") and kind in _names(node.test)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _calls(node: Any, name: str) -> bool:
    """Whether a node is a call of a function or method of that name."""
    return isinstance(node, ast.Call) and name in (getattr(node.func, "id", None), getattr(node.func, "attr", None))


def _calls_of(name: str) -> Callable[[Any], bool]:
    return lambda node: isinstance(node, ast.Expr) and _calls(node.value, name)


def _tests(kind: str) -> Callable[[Any], bool]:
    """Whether a node asks for the type of a value."""
    return lambda node: (_calls(node, "isinstance") or isinstance(node, ast.Compare)) and kind in ast.unparse(node)


def _is_guard(node: Any) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.In)


def _is_skip_test(node: Any) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.IsNot)


def _is_key(node: Any) -> bool:
    return isinstance(node, ast.Subscript) and _calls(node.slice, "str")


def _with_key(text: str) -> Edit:
    """Another expression for the key that is written; KEY stands for what its str is taken of."""

    def edit(node: Any) -> ast.AST:
        inner = ast.unparse(node.slice.args[0])
        node.slice = _expression(text.replace("KEY", inner))
        return node

    return edit


def _before_return(kind: str, statement: str) -> Edit:
    """A statement before the last one of a branch; VALUE is what it converts, RESULT what it returns."""

    def edit(node: Any) -> ast.AST:
        value = next(each.args[0].id for each in ast.walk(node) if _calls(each, "id"))
        result = ast.unparse(node.body[-1].value)
        node.body[-1:] = [*_statements(statement, VALUE=value, RESULT=result), node.body[-1]]
        return node

    return _where(lambda node: _is_branch(node, kind), edit)


def _first(statement: str) -> Edit:
    """A statement before all others of the conversion of a value.

    VALUE and SEEN are its arguments, SKIP what it returns for a value that is to be left out.
    """

    def edit(node: Any) -> ast.AST:
        value, seen = (argument.arg for argument in node.args.args)
        skip = ast.unparse(node.body[-1].value)
        node.body[:0] = _statements(statement, VALUE=value, SEEN=seen, SKIP=skip)
        return node

    return _where(lambda node: isinstance(node, ast.FunctionDef) and node.name == _VALUE, edit)


def _statements(text: str, **names: str) -> list[ast.stmt]:
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return ast.parse(text).body


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _delete(_: ast.AST) -> None:
    return None


def _always(value: bool) -> Edit:
    return lambda _: ast.Constant(value)


def _without_conditions(node: Any) -> ast.AST:
    node.ifs = []
    return node


def _sorted(node: Any) -> ast.AST:
    return ast.Call(ast.Name("sorted", ast.Load()), [node], [ast.keyword("key", ast.Name("str", ast.Load()))])


def _without(kind: str) -> Edit:
    """A union of types without one of them."""

    def is_side(node: Any) -> bool:
        return isinstance(node, ast.BinOp) and kind in {getattr(side, "id", None) for side in (node.left, node.right)}

    return _where(is_side, lambda node: node.left if getattr(node.right, "id", None) == kind else node.right)


def _forgets(kind: str) -> Edit:
    return _where(_tests(kind), _always(False))


FAULTS: Mapping[str, Edit] = {
    "lists stay seen": _within("list", _where(_calls_of("remove"), _delete)),
    "dicts stay seen": _within("dict", _where(_calls_of("remove"), _delete)),
    "no guard against cycles of lists": _within("list", _where(_is_guard, _delete)),
    "no guard against cycles of dicts": _within("dict", _where(_is_guard, _delete)),
    "keys left as they are": _where(_is_key, _with_key("KEY")),
    "keys made text twice": _where(_is_key, _with_key("repr(str(KEY))")),
    "keys cut": _where(_is_key, _with_key("str(KEY)[:8]")),
    "enums forgotten": _forgets("Enum"),
    "dtypes forgotten": _forgets("dtype"),
    "None forgotten": _in(_VALUE, _forgets("None")),
    "floats forgotten": _without("float"),
    "tuples forgotten": _without("tuple"),
    "numpy scalars left as they are": _where(lambda node: _calls(node, "item"), lambda node: node.func.value),
    "callables written as text": _first("if callable(VALUE): return str(VALUE)"),
    "enums by their name": _first("if isinstance(VALUE, Enum): return VALUE.name"),
    "infinities as null": _first("if isinstance(VALUE, float) and abs(VALUE) == float('inf'): return None"),
    "nothing deeper than three": _first("if len(SEEN) > 2: return SKIP"),
    "skipped items kept in lists": _within("list", _where(_is_skip_test, _always(True))),
    "items that are false dropped": _within("list", _where(_is_skip_test, lambda node: node.left)),
    "fields that are false dropped": _in(_DICT, _where(_is_skip_test, lambda node: node.left)),
    "the last item lost": _before_return("list", "del RESULT[-1:]"),
    "lists reversed in place": _before_return("list", "if isinstance(VALUE, list): VALUE.reverse()"),
    "dicts emptied": _before_return("dict", "VALUE.clear()"),
    "dataclasses by their dict": _in(_SHALLOW, _where(lambda node: _calls(node, "is_dataclass"), _always(False))),
    "unset fields read": _in(_SHALLOW, _where(lambda node: isinstance(node, ast.comprehension), _without_conditions)),
    "cycles waited for": _first("while id(VALUE) in SEEN: pass"),
    "dicts taken apart and put together again": _before_return(
        "dict", "taken = list(VALUE.items())\nVALUE.clear()\nVALUE.update(taken)"
    ),
    "identities written": _before_return("dict", "RESULT['id'] = id(VALUE)"),
    "dtypes left as they are": _first("if type(VALUE) is torch.dtype: return VALUE"),
    "keys compared": _before_return("dict", "sorted(VALUE)"),
    "fields sorted": _in(_DICT, _where(lambda node: _calls(node, "items"), _sorted)),
}
"""Every fault, by what it is a fault of."""

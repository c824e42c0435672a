"""How assignments are read: which bind, which declare, which store.

May import `base`, `ir` and the modules of this folder below it. A plain name is bound once to a
value, and anew by the next assignment; a cell, declared with a type, is assigned to.
"""

from __future__ import annotations

import ast
import operator
import typing
from collections.abc import Iterator
from functools import partial
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.annotations import PointerKind, TensorMapKind
from tilewright.frontend.frames import Binding
from tilewright.frontend.markers import Constexpr, Let, MetaValue
from tilewright.frontend.reader_expressions import ExpressionReader
from tilewright.frontend.storage import alloc_local, local_scalar, pointer_cell
from tilewright.frontend.taking import settled, taken
from tilewright.frontend.tensors import CellTensor, Pointer, TensorMap, converted
from tilewright.frontend.values import (
    Cell,
    Scalar,
    ScalarKind,
    Value,
    VectorKind,
    lift,
    stored,
    wrap,
)
from tilewright.ir.expressions import Constant, Var
from tilewright.ir.statements import Assign

_MISSING = object()


class AssignmentReader(ExpressionReader):
    """Reads assignments of the function that is being read."""

    def assign_statement(self, node: ast.Assign) -> None:
        """Read `a = b = value`, or `a, b = values`."""
        first = node.targets[0]
        match first, node.value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if _paired(targets, values):
                pairs = zip(targets, values, strict=True)
                value = tuple(self.in_order(self.evaluate_for(*pair) for pair in pairs))
            case _:
                value = self.evaluate_for(first, node.value)
        for target in node.targets:
            value = self.assign(target, value)

    def evaluate_for(self, target: ast.expr, node: ast.expr) -> Any:
        """Evaluate what a target is about to get; what it makes is named after the target."""
        self.builder.hint = getattr(target, "id", None) or getattr(target, "attr", None)
        value = self.evaluate(node)
        self.builder.hint = None
        return value

    def assign(self, target: ast.expr, value: Any) -> Any:
        """Assign a value to a target; gives what the target then stands for."""
        where = self.frame.place(target)
        self.builder.where = where
        match target:
            case ast.Name():
                return self.assign_name(target.id, value, where)
            case ast.Tuple() | ast.List():
                self.unpack(target, value)
            case ast.Subscript():
                value, place, index = self.in_order(self._with_place(value, target))
                stays = value if isinstance(place, Value) else self.kept(value)
                self.assign_item(place, index, stays, where)
            case ast.Attribute():
                self.assign_attribute(target, value, where)
            case _:
                self.refuse(target, "this target of an assignment")
        return value

    def _with_place(self, value: Any, target: ast.Subscript) -> Iterator[Any]:
        yield value
        yield self.evaluate(target.value)
        yield self.index(target.slice)

    def assign_item(self, place: Any, index: Any, value: Any, where: Location) -> None:
        """Assign to an element of a tensor, or of a Python object; a cell there keeps its place."""
        if isinstance(place, list | dict) and not isinstance(value, Cell | CellTensor):
            found = self.perform(where, _element, place, index)
            if isinstance(found, Cell | CellTensor):
                self.assign_cell("element", Binding(found), value, where)
                return
        self.perform(where, operator.setitem, place, index, value)

    def unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        """Assign the parts of a Python value, all of them as they are before."""
        parts = self.perform(self.frame.place(target), list, value)
        stars = [i for i, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
        count = len(target.elts)
        if len(parts) < count - len(stars) or (not stars and len(parts) != count):
            raise FrontendError(
                "the number of targets differs from the number of values",
                code="trace-error",
                location=self.frame.place(target),
                expected=f"{count} values",
                found=f"{len(parts)} values",
            )
        if stars:
            first, last = stars[0], len(parts) - (count - stars[0] - 1)
            parts[first:last] = [parts[first:last]]
        targets = [each.value if isinstance(each, ast.Starred) else each for each in target.elts]
        names = [getattr(each, "id", "value") for each in targets]
        parts = [settled(part, name) for part, name in zip(parts, names, strict=True)]
        for each, part in zip(targets, parts, strict=True):
            self.assign(each, part)

    def assign_name(self, name: str, value: Any, where: Location) -> Any:
        """Assign to a name: to its cell, if it is one, else bind it anew."""
        found = self.frame.find(name)
        if isinstance(found, Binding) and found.cell and not isinstance(value, Cell | CellTensor):
            self.assign_cell(name, found, value, where)
            return found.value
        return self.bind_value(name, value, where)

    def assign_cell(self, name: str, found: Binding, value: Any, where: Location) -> None:
        """Assign to a mutable cell, converting to its type."""
        if isinstance(found.value, CellTensor):
            self.perform(where, operator.setitem, found.value, 0, value)
            return
        var = found.value.expr
        held = self.perform(where, converted, value, var.type)
        self.builder.emit(Assign(var, held.expr, location=where))

    def bind_value(self, name: str, value: Any, where: Location) -> Any:
        """Bind a name: to a value of the kernel, or to a Python object as it is."""
        if isinstance(value, MetaValue):
            self.frame.bind(name, Binding(value.value, where))
            return value.value
        if isinstance(value, Cell | CellTensor):
            self.frame.bind(name, Binding(value, where, cell=True))
            return value
        bound = self.held(name, value)
        self.frame.bind(name, Binding(bound, where))
        return bound

    def held(self, name: str, value: Any) -> Any:
        """Bind what is computed to a name of the kernel; leave what is known, or a name, as is."""
        if isinstance(value, list | tuple | dict):
            return self.kept(value)
        if not isinstance(value, Scalar | Pointer):
            return taken(value)
        plain = isinstance(value.expr, Constant | Var)
        if plain and not self.builder.reads_state(value.expr):
            return value
        return wrap(self.builder.bind(name, value.expr))

    def kept(self, value: Any) -> Any:
        """Make what goes into a Python container stay what it is now."""
        return value.value if isinstance(value, MetaValue) else taken(value)

    def declare(self, name: str, dtype: DType, init: Any) -> Cell:
        """Declare a mutable cell."""
        return local_scalar(dtype, init, name=name)

    def assign_attribute(self, target: ast.Attribute, value: Any, where: Location) -> None:
        """Assign to an attribute of a Python object: to the cell that it holds, or anew."""
        owner = self.evaluate(target.value)
        found = getattr(owner, target.attr, _MISSING)
        if isinstance(value, Cell | CellTensor):
            pass
        elif isinstance(found, Cell | CellTensor):
            self.assign_cell(target.attr, Binding(found, cell=True), value, where)
            return
        elif found is not _MISSING and self.builder.depth:
            raise FrontendError(
                f"the attribute {target.attr!r} is bound anew inside a branch or a loop",
                code="unbound-name",
                location=where,
                hint="let the attribute hold a cell: "
                f"`self.{target.attr} = T.local_scalar(…)`, and assign to that",
            )
        elif isinstance(value, MetaValue):
            value = value.value
        else:
            self.builder.where = where
            value = self.held(target.attr, value)
        self.perform(where, setattr, owner, target.attr, value)

    # ---- `x += e`

    def augmented_assignment(self, node: ast.AugAssign) -> None:
        """Read `place += value`."""
        where = self.frame.place(node)
        function = self.binary_operator(node.op)
        match node.target:
            case ast.Name() as target:
                old, value = self.values(
                    [ast.copy_location(ast.Name(target.id, ast.Load()), target), node.value]
                )
                new = self.perform(where, function, old, value)
                self.builder.where = where
                self.assign_name(target.id, new, where)
            case ast.Subscript() as target:
                place, index, old, value = self.in_order(self._with_old(target, node.value, where))
                new = self.perform(where, function, old, value)
                self.assign_item(place, index, new, where)
            case ast.Attribute() as target:
                old, value = self.values([target, node.value])
                new = self.perform(where, function, old, value)
                self.assign_attribute(target, new, where)

    def _with_old(self, target: ast.Subscript, value: ast.expr, where: Location) -> Iterator[Any]:
        place, index = self.evaluate(target.value), self.index(target.slice)
        yield place
        yield index
        yield self.item(place, index, where)
        yield self.evaluate(value)

    # ---- `x: annotation = e`

    def annotated_assignment(self, node: ast.AnnAssign) -> None:
        """Read a declaration: of a cell, a local array, or a binding."""
        annotation = self.evaluate(node.annotation)
        if isinstance(annotation, str) and not isinstance(annotation, ScalarKind):
            parsed = ast.parse(annotation, mode="eval").body
            annotation = self.evaluate(ast.fix_missing_locations(_moved(parsed, node.annotation)))
        target = node.target
        where = self.frame.place(target)
        name = getattr(target, "id", None) or getattr(target, "attr", "value")
        match annotation:
            case ScalarKind():
                init = None if node.value is None else self._initial(node.value)
                made = self.perform(where, self.declare, name, annotation.dtype, init)
                self._place(target, made, where)
            case PointerKind():
                init = None if node.value is None else self._initial(node.value)
                made = self.perform(where, pointer_cell, name, annotation.type, init)
                self._place(target, made, where)
            case VectorKind() if node.value is None:
                self.builder.hint = name
                made = self.perform(where, alloc_local, annotation.shape, annotation.dtype)
                self._place(target, made, where)
            case Let() | TensorMapKind() if node.value is not None:
                self.builder.hint = name
                value = self.evaluate(node.value)
                self.builder.hint = None
                kind = annotation.kind if isinstance(annotation, Let) else annotation
                bound = self.let(name, value, kind, where)
                self._place(target, MetaValue(bound), where)
            case Constexpr() if node.value is not None:
                self._place(target, MetaValue(self.evaluate(node.value)), where)
            case _ if node.value is not None and not isinstance(annotation, VectorKind):
                self.assign(target, self.evaluate(node.value))
            case _:
                raise FrontendError(
                    f"{name!r} is annotated with what cannot be declared here",
                    code="bad-annotation",
                    location=self.frame.place(node.annotation),
                    expected="an element type such as T.int32, an array such as T.float32[4], "
                    "or T.let with a value",
                )

    def _initial(self, node: ast.expr) -> Any:
        """Evaluate what a cell begins with: `None`, as statements give it, is no value."""
        value = self.evaluate(node)
        if (value.value if isinstance(value, MetaValue) else value) is None:
            raise FrontendError(
                "a cell begins with what is no value",
                code="type-mismatch",
                location=self.frame.place(node),
                expected="a value, or a declaration without one, such as x: T.float32",
                found="None",
            )
        return value

    def let(self, name: str, value: Any, kind: Any, where: Location) -> Value:
        """Bind a value to a name, whatever it is; a tensor map has its name already."""
        wanted = TensorMap if isinstance(kind, TensorMapKind) else Pointer
        if isinstance(kind, PointerKind | TensorMapKind) and not isinstance(value, wanted):
            raise FrontendError(
                f"{name!r} is annotated as another type than its value has",
                code="type-mismatch",
                location=where,
                expected=str(kind.type),
                found=str(value.expr.type) if isinstance(value, Value) else repr(value),
            )
        if isinstance(value, TensorMap):
            return value
        dtype = kind.dtype if isinstance(kind, ScalarKind) else None
        bound = self.perform(where, lift if dtype is None else partial(stored, kind=dtype), value)
        self.builder.where = where
        return wrap(self.builder.bind(name, bound))

    def _place(self, target: ast.expr, value: Any, where: Location) -> None:
        match target:
            case ast.Name():
                self.bind_value(target.id, value, where)
            case ast.Attribute():
                owner = self.evaluate(target.value)
                made = value.value if isinstance(value, MetaValue) else value
                self.perform(where, setattr, owner, target.attr, made)
            case _:
                self.refuse(target, "a declaration of this")


def _element(place: Any, index: Any) -> Any:
    if isinstance(place, dict):
        return typing.cast("dict[Any, Any]", place).get(index)
    return place[index] if not isinstance(index, slice) else None


def _moved(tree: ast.expr, to: ast.expr) -> ast.expr:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            ast.copy_location(node, to)
    return tree


def _paired(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Tell targets and values that are written out one for one."""
    starred = any(isinstance(each, ast.Starred) for each in (*targets, *values))
    return len(targets) == len(values) and not starred

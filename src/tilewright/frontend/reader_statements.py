"""How Python statements are read: into statements of the kernel, or carried out at once.

May import `base`, `ir` and the modules of this folder below it. Loops and branches over values
of the kernel become loops and branches of the IR; over Python values they run now.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.dtypes import BOOL, INT32
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.frames import Binding, Result
from tilewright.frontend.markers import Loop
from tilewright.frontend.reader_assignments import AssignmentReader
from tilewright.frontend.taking import taken
from tilewright.frontend.values import Value, lift_index, wrap
from tilewright.ir.expressions import Constant, Expr, cast, constant, int32, truth, unary
from tilewright.ir.statements import Assert, Assign, Break, Continue, For, If, Return, Stmt, While
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import walk_statements, written


@dataclass(frozen=True)
class Signal:
    """How a statement ends the block that it stands in.

    "break", "continue" and "return" of Python code, or "stop": what follows is never reached.
    """

    kind: str
    value: Any = None


_STOP = Signal("stop")
_NAMES: dict[type[ast.stmt], str] = {
    ast.Try: "try",
    ast.Raise: "raise",
    ast.Delete: "del",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.ClassDef: "class",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Match: "match",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.AsyncFunctionDef: "async def",
}


class StatementReader(AssignmentReader):
    """Reads statements of the function that is being read.

    `stopped` tells whether nothing follows the end of the block that was read last.
    """

    stopped = False

    def read_block(self, body: Sequence[ast.stmt]) -> Signal | None:
        """Read statements up to the end, or to the one that ends the block."""
        for statement in body:
            signal = self.read_statement(statement)
            if signal is not None:
                return signal
        return None

    def read_statement(self, node: ast.stmt) -> Signal | None:
        """Read one statement."""
        self.builder.where = self.frame.place(node)
        match node:
            case ast.Assign():
                self.assign_statement(node)
            case ast.AugAssign():
                self.augmented_assignment(node)
            case ast.AnnAssign():
                self.annotated_assignment(node)
            case ast.Expr():
                self.expression_statement(node)
            case ast.Assert():
                self.assertion(node)
            case ast.FunctionDef():
                self.definition(node)
            case ast.Pass():
                pass
            case _:
                return self.control(node)
        return None

    def control(self, node: ast.stmt) -> Signal | None:
        """Read a statement that decides what runs next."""
        match node:
            case ast.If():
                return self.branch(node)
            case ast.For():
                return self.loop(node)
            case ast.While():
                return self.while_loop(node)
            case ast.With():
                return self.with_statement(node)
            case ast.Break():
                return self.leave_loop(node, "break", Break)
            case ast.Continue():
                return self.leave_loop(node, "continue", Continue)
            case ast.Return():
                return self.return_statement(node)
            case _:
                self.refuse(node, f"the statement `{_NAMES.get(type(node), type(node).__name__)}`")

    # ---- simple statements

    def expression_statement(self, node: ast.Expr) -> None:
        """Evaluate for the effect; some values ask for more to be done."""
        if isinstance(node.value, ast.Constant):
            return
        value = self.evaluate(node.value)
        if callable(value) and not isinstance(node.value, ast.Call):
            raise FrontendError(
                "this names something to call, and does not call it",
                code="bad-call",
                location=self.frame.place(node),
                found=ast.unparse(node),
                hint=f"write {ast.unparse(node)}(…)",
            )
        self.builder.where = self.frame.place(node)
        self.take_effect(value, node)

    def take_effect(self, value: Any, node: ast.Expr) -> None:
        """Do what a value asks for that a statement has given."""

    def with_statement(self, node: ast.With) -> Signal | None:
        """Read the body under a frame of the dialect."""
        self.refuse(node, "the statement `with`, except over T.device_entry(…),")

    def assertion(self, node: ast.Assert) -> None:
        """Check now, or in the kernel."""
        condition = self.evaluate(node.test)
        message = "" if node.msg is None else str(self.evaluate(node.msg))
        where = self.frame.place(node)
        if isinstance(condition, Value) and not isinstance(condition.expr, Constant):
            test = self.perform(where, truth, condition.expr, where)
            self.builder.emit(Assert(test, message or ast.unparse(node.test), location=where))
        elif not self.known_truth(node.test, condition):
            raise FrontendError(
                message or "the assertion does not hold",
                code="static-assertion",
                location=where,
            )

    def definition(self, node: ast.FunctionDef) -> None:
        """Bind a function that is defined inside the code that is read."""
        function = self.local_function(node, node.name)
        for decorator in reversed(node.decorator_list):
            callee = self.evaluate(decorator)
            function = self.perform(self.frame.place(decorator), callee, function)
        self.frame.bind(node.name, Binding(function, self.frame.place(node)))

    # ---- branches

    def branch(self, node: ast.If) -> Signal | None:
        """Read `if`: into a branch of the kernel, or only the side that is taken."""
        condition = self.evaluate(node.test)
        if not isinstance(condition, Value) or isinstance(condition.expr, Constant):
            known = self.known_truth(node.test, condition)
            return self.read_block(node.body if known else node.orelse)
        where = self.frame.place(node)
        place = self.frame.place(node.test)
        test = self.perform(place, truth, condition.expr, place)
        reason = "it is bound inside a branch"
        then = self.nested("branch", reason, node.body)
        stops = self.stopped
        orelse = self.nested("branch", reason, node.orelse)
        self.builder.emit(If(test, then, orelse, location=where))
        return _STOP if stops and self.stopped else None

    def nested(
        self,
        kind: str,
        reason: str,
        body: Sequence[ast.stmt],
        begin: Callable[[], None] = lambda: None,
    ) -> tuple[Stmt, ...]:
        """Read statements into a block of the kernel."""
        is_loop = kind in ("loop", "grid")
        self.builder.depth += 1
        self.builder.loops += is_loop
        try:
            with self.frame.scope(kind, reason), self.builder.block() as block:
                begin()
                self.stopped = self.read_block(body) is not None
        finally:
            self.builder.depth -= 1
            self.builder.loops -= is_loop
        return tuple(block)

    # ---- loops

    def loop(self, node: ast.For) -> Signal | None:
        """Read `for`: into a loop of the kernel, or turn by turn over a Python iterable."""
        if node.orelse:
            self.refuse(node.orelse[0], "the `else` of a loop")
        return self.loop_over(node, self.iterable(node.iter))

    def loop_over(self, node: ast.For, over: Any) -> Signal | None:
        """Read a loop over what its iterable has evaluated to."""
        if not isinstance(over, Loop):
            where = self.frame.place(node.iter)
            return self.unrolled(node, self.perform(where, iter, taken(over)))
        self.loop_nest(node, over, self.loop_targets(node.target, len(over.ranges)), 0)
        return None

    def iterable(self, node: ast.expr) -> Any:
        """Evaluate what a loop runs over; a `range` is a loop of the kernel."""
        if isinstance(node, ast.Call) and self.evaluate(node.func) is builtins.range:
            args = self.values(node.args)
            if node.keywords or not 1 <= len(args) <= 3:
                raise FrontendError(
                    "range takes one to three numbers",
                    code="bad-call",
                    location=self.frame.place(node),
                )
            return self.perform(self.frame.place(node), _ranges, args)
        found = self.evaluate(node)
        if isinstance(found, range):
            return _ranges([found.start, found.stop, found.step])
        return found

    def loop_targets(self, target: ast.expr, count: int) -> list[ast.Name]:
        """List the names of a loop's variables."""
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        found = [each for each in names if isinstance(each, ast.Name)]
        if len(found) != len(names) or len(found) != count:
            raise FrontendError(
                "the target of a loop names its variables",
                code="unsupported-statement",
                location=self.frame.place(target),
                expected=f"{count} name{'s' * (count != 1)}",
                found=ast.unparse(target),
            )
        return found

    def loop_nest(self, node: ast.For, over: Loop, targets: list[ast.Name], depth: int) -> None:
        """Read the loops of a nest, outermost first."""
        target, (start, stop, step) = targets[depth], over.ranges[depth]
        dtype = over.dtype or INT32
        where = self.frame.place(target)
        self.builder.where = where
        var = self.builder.variable(target.id, ScalarType(dtype))
        place = self.frame.place(node.iter)
        first, last, by = (cast(each, dtype, place) for each in (start, stop, step))

        def begin() -> None:
            self.frame.bind(target.id, Binding(wrap(var), where))
            if depth + 1 < len(targets):
                self.loop_nest(node, over, targets, depth + 1)

        body = node.body if depth + 1 == len(targets) else []
        kind = "grid" if depth else "loop"
        self.builder.counters.append(var)
        block = self.nested(kind, "it is bound inside a loop", body, begin)
        self.builder.counters.pop()
        where = self.frame.place(node)
        loop = For(var, first, last, by, block, over.kind, location=where)
        made = loop if over.finish is None or depth else self.perform(where, over.finish, loop)
        self.builder.emit(made)
        self.emit_left(block, where)

    def unrolled(self, node: ast.For, items: Any) -> Signal | None:
        """Read the body once for each item of a Python iterable."""
        for item in items:
            self.bind_target(node.target, item)
            signal = self.turn(node.body)
            if signal is not None:
                return None if signal.kind == "break" else signal
        return None

    def turn(self, body: Sequence[ast.stmt]) -> Signal | None:
        """Read a turn of a loop that runs now; "continue" ends only the turn."""
        self.frame.nest.append("trace")
        try:
            signal = self.read_block(body)
        finally:
            self.frame.nest.pop()
        return None if signal is not None and signal.kind == "continue" else signal

    def while_loop(self, node: ast.While) -> Signal | None:
        """Read `while`: into a loop of the kernel, or turn by turn over a Python condition.

        What evaluating the condition issues is issued at the beginning of every turn.
        """
        if node.orelse:
            self.refuse(node.orelse[0], "the `else` of a loop")
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        with self.builder.block() as issued:
            condition = wrap(constant(True, BOOL)) if forever else self.evaluate(node.test)
        if isinstance(condition, Value):
            where, place = self.frame.place(node), self.frame.place(node.test)
            test = self.perform(place, truth, condition.expr, place)

            def begin() -> None:
                self._reread(node.test)
                if issued:
                    self.builder.blocks[-1].extend(issued)
                    ended = unary("not", test, place)
                    self.builder.emit(If(ended, (Break(location=place),), (), location=place))

            body = self.nested("loop", "it is bound inside a loop", node.body, begin)
            if issued:
                test = constant(True, BOOL)
            self.builder.emit(While(test, body, location=where))
            self.emit_left(body, where)
            return None
        self.builder.blocks[-1].extend(issued)
        while self.known_truth(node.test, condition):
            signal = self.turn(node.body)
            if signal is not None:
                return None if signal.kind == "break" else signal
            condition = self.evaluate(node.test)
        return None

    def _reread(self, condition: ast.expr) -> None:
        # The condition is evaluated before each turn: names in it count as read by the turn.
        for each in ast.walk(condition):
            if isinstance(each, ast.Name):
                self.frame.find(each.id, self.frame.place(each))

    def leave_loop(
        self, node: ast.stmt, word: str, statement: Callable[..., Stmt]
    ) -> Signal | None:
        """Read `break` or `continue`."""
        inner = self._nest()
        loops = [index for index, kind in enumerate(inner) if kind in ("loop", "grid", "trace")]
        if not loops:
            self.refuse(node, f"`{word}` outside a loop")
        if inner[loops[-1]] == "grid" and word == "break":
            self.refuse(
                node,
                "`break` out of several loops at once",
                hint="write one loop inside the other",
            )
        if inner[loops[-1]] != "trace":
            self.builder.emit(statement(location=self.frame.place(node)))
            return _STOP
        if loops[-1] != len(inner) - 1:
            self.refuse(
                node,
                f"`{word}` under a condition of the kernel, of a loop that runs now,",
                hint="loop with range(…) so that the loop is part of the kernel",
            )
        return Signal(word)

    def _nest(self) -> list[str]:
        """List the blocks around a statement that belong to the kernel, or to the host's part."""
        nest = self.frame.nest
        begin = len(nest) - nest[::-1].index("region") if "region" in nest else 0
        return nest[begin:]

    def return_statement(self, node: ast.Return) -> Signal | None:
        """Read `return`: of the kernel, or of a function that is expanded in it."""
        value = None if node.value is None else self.evaluate(node.value)
        if self.frame.is_kernel:
            if value is not None:
                self.refuse(node, "`return` with a value")
            self.builder.emit(Return(location=self.frame.place(node)))
            return _STOP
        if self.frame.result is not None:
            return self.typed_return(node, self.frame.result, value)
        if {"loop", "grid", "branch"} & set(self.frame.nest):
            self.refuse(
                node,
                f"`return` of {self.frame.name!r} under a condition or a loop of the kernel",
                hint="assign to a cell, and return that at the end; @T.function(private=True) "
                "on a function with types lets it return anywhere",
            )
        return Signal("return", value)

    def typed_return(self, node: ast.Return, result: Result, value: Any) -> Signal:
        """Read `return` of a function that states what it gives."""
        where = self.frame.place(node)
        if (value is None) != (result.type is None):
            stated = "nothing" if result.type is None else f"a {result.type}"
            raise FrontendError(
                f"{self.frame.name!r} states that it gives {stated}",
                code="type-mismatch",
                location=where,
                expected="`return`" if result.type is None else "`return` with a value",
                hint="state the type: `def f(…) -> T.float32:`" if result.type is None else None,
            )
        if result.type is not None:
            value = self.perform(where, result.convert, value, result.type)
        if not {"loop", "grid", "branch"} & set(self.frame.nest):
            return Signal("return", value)
        result.early = True
        if value is not None:
            self.set_result(result, value.expr, where)
        if {"loop", "grid"} & set(self.frame.nest):
            result.left = result.left or self.builder.variable("left", ScalarType(BOOL))
            self.builder.emit(Assign(result.left, constant(True, BOOL), location=where))
        self.builder.emit(Break(location=where))
        return _STOP

    def set_result(self, result: Result, value: Expr, where: Location | None) -> None:
        """Put what a function gives into its cell."""
        if result.cell is None:
            result.cell = self.builder.variable("result", value.type)
            self.builder.cells.add(result.cell.name)
        self.builder.emit(Assign(result.cell, value, location=where))

    def emit_left(self, body: tuple[Stmt, ...], where: Location) -> None:
        """Go on to leave, after a loop that the function has returned from within."""
        left = None if self.frame.result is None else self.frame.result.left
        if left is not None and left in (var for s in walk_statements(body) for var in written(s)):
            self.builder.emit(If(left, (Break(location=where),), (), location=where))


def _ranges(bounds: Sequence[Any]) -> Loop:
    numbers = [lift_index(each, "the bound of a loop") for each in bounds]
    start, stop = (int32(0), numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) == 3 else int32(1)
    if isinstance(step, Constant) and step.value == 0:
        raise FrontendError("the step of a loop is not zero", code="bad-call")
    return Loop(((start, stop, step),))

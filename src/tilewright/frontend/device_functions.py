"""Private functions: helpers that state their types, expanded where a kernel calls them.

May import `base`, `ir` and the modules of this folder below it. A call gives values of the
types of the parameters, and gives back one of the type that the function states. Unlike other
helpers it may return from within branches and loops of the kernel.

    @T.function(private=True)
    def clamp(x: T.float32, low: T.float32) -> T.float32:
        if x < low:
            return low
        return x
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import active, argument_place, current, here
from tilewright.frontend.frames import Frame, Result
from tilewright.frontend.markers import Expanded
from tilewright.frontend.reader import read_signature, surroundings
from tilewright.frontend.source import read_source
from tilewright.frontend.tensors import converted
from tilewright.frontend.values import as_tuple


class DeviceFunction(Expanded):
    """A private function: `params` are its parameters, `returns` the type of what it gives."""

    def __init__(self, function: FunctionType, around: Mapping[str, Any]) -> None:
        self.function = function
        self.params, self.returns = read_signature(function, around)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def name(self) -> str:
        """Name the function."""
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            raise FrontendError(
                f"the private function {self.name!r} is called outside a kernel",
                code="bad-call",
                hint="a kernel calls it; T.device_entry(…) begins one",
            )
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        builder, site = current(), here()
        for position, (name, param) in enumerate(self.params.items()):
            builder.where = argument_place(name, position)
            bound.arguments[name] = self._argument(name, param, bound.arguments[name])
        builder.where = site
        source = read_source(self.function)
        result = Result(self.returns, converted)
        frame = Frame(
            source.file, self.name, surroundings(self.function), None, site, result=result
        )
        return builder.reader.expand_typed(frame, bound, source.tree)

    def _argument(self, name: str, param: Any, given: Any) -> Any:
        """Convert an argument to the type of its parameter; a tuple field by field."""
        if not isinstance(param, tuple):
            return current().reader.held(name, converted(given, param.expr.type))
        params = as_tuple(param)
        if len(as_tuple(given)) != len(params):
            raise FrontendError(
                f"the parameter {name!r} is a tuple",
                code="type-mismatch",
                location=here(),
                expected=f"{len(params)} values",
                found=str(len(as_tuple(given))),
            )
        fields = zip(params, as_tuple(given), strict=True)
        return tuple(self._argument(name, each, value) for each, value in fields)

    def __repr__(self) -> str:
        return f"<private function {self.name}>"

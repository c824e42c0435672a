"""The decorators, and what they make of a function: kernels, templates, expanded helpers.

May import `base`, `ir` and the modules of this folder below it.

    @T.function
    def copy(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        B[T.cuda.lane_id()] = A[T.cuda.lane_id()]
"""

from __future__ import annotations

import inspect
import linecache
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import count
from types import FunctionType, MethodType
from typing import Any, cast

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.annotations import Optional
from tilewright.frontend.builder import Builder, active, current, here
from tilewright.frontend.device_functions import DeviceFunction
from tilewright.frontend.frames import Frame
from tilewright.frontend.markers import Constexpr, Expanded
from tilewright.frontend.reader import (
    LocalFunction,
    Reader,
    read_annotation,
    read_function,
    surroundings,
)
from tilewright.frontend.source import read_source
from tilewright.ir.printer import print_program
from tilewright.ir.statements import Program
from tilewright.ir.types import Type


class KernelFunction:
    """A function of the dialect, read into a program.

    `program` is the IR, `params` the types of the parameters by name; printing gives source
    that reads back to the same program.
    """

    def __init__(self, function: Callable[..., Any], program: Program, params: dict[str, Type]):
        self.function = function
        self.program = program
        self.params = params
        self.__name__ = program.name
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @property
    def name(self) -> str:
        """Name the function."""
        return self.program.name

    @property
    def location(self) -> Location | None:
        """Say where the function is defined."""
        return self.program.location

    def script(self) -> str:
        """Print the program as source."""
        return print_program(self.program)

    def __str__(self) -> str:
        return self.script()

    def __repr__(self) -> str:
        return f"<kernel function {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active() is not None:
            raise FrontendError(
                f"the kernel function {self.name!r} is called from a kernel",
                code="bad-call",
                location=here(),
                hint="a helper has no T.device_entry(…), and is decorated with @T.inline or "
                "@T.function(private=True)",
            )
        raise FrontendError(
            f"the kernel function {self.name!r} has to be compiled before it is called",
            code="bad-call",
            location=place_of_caller(),
            hint=f"tilewright.compile({self.name}, target=…)(…)",
        )


class JitTemplate:
    """A function some of whose parameters are constants that `specialize` fills in."""

    def __init__(self, function: FunctionType, around: Mapping[str, Any]) -> None:
        self.function = function
        self.around = around
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._made: dict[Any, KernelFunction] = {}

    @property
    def name(self) -> str:
        """Name the function."""
        return self.__name__

    @cached_property
    def _annotations(self) -> dict[str, Any]:
        """Find the annotations that are `T.constexpr` or optional; others stay unread."""
        source = read_source(self.function)
        outer = (*surroundings(self.function), self.around)
        frame = Frame(source.file, self.name, outer)
        builder = Builder()
        reader = Reader(builder, frame)
        found: dict[str, Any] = {}
        tree = source.tree.args
        with builder.activate():
            for each in (*tree.posonlyargs, *tree.args, *tree.kwonlyargs):
                if each.annotation is None:
                    continue
                try:
                    found[each.arg] = read_annotation(reader, each.annotation)
                except FrontendError:  # it mentions a constant that is not known yet
                    continue
        return found

    def specialize(self, **constants: Any) -> KernelFunction:
        """Fill in the constants, and give the kernel function; the same ones give the same.

        Raises `FrontendError` (`bad-call`) for names that are no constants, or missing ones.
        """
        known = self._annotations
        wanted = {name for name, kind in known.items() if isinstance(kind, Constexpr)}
        parameters = inspect.signature(self.function).parameters
        for name in wanted - constants.keys():
            if parameters[name].default is not inspect.Parameter.empty:
                constants[name] = parameters[name].default
        missing = wanted - constants.keys()
        extra = [
            name
            for name, value in constants.items()
            if name not in wanted and not (value is None and isinstance(known.get(name), Optional))
        ]
        if missing or extra:
            raise FrontendError(
                f"{self.name!r} is specialised with the wrong constants",
                code="bad-call",
                location=here() or place_of_caller(),
                expected=", ".join(sorted(wanted)) or "none",
                found=", ".join(sorted(constants)) or "none",
            )
        given = sorted(constants.items())
        key = tuple((name, *identity(value)) for name, value in given)
        if key not in self._made:
            program, types = read_function(self.function, constants, self.around)
            self._made[key] = KernelFunction(self.function, program, types)
        return self._made[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise FrontendError(
            f"the template {self.name!r} is called, which is no kernel yet",
            code="bad-call",
            location=here() or place_of_caller(),
            hint=f"tilewright.compile({self.name}.specialize(…))(…)",
        )

    def __repr__(self) -> str:
        return f"<kernel template {self.name}>"


def identity(value: Any) -> tuple[Any, Any]:
    """Tell values apart also where they are equal, as 1 and 1.0 are; entries of containers too."""
    kind = typing.cast("Any", type(value))
    if kind in (list, tuple):
        return kind, tuple(map(identity, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(identity, value))
    if kind is dict:
        pairs = value.items()
        return kind, tuple((identity(key), identity(each)) for key, each in pairs)
    try:
        hash(value)
    except TypeError as error:
        raise FrontendError(
            "a constant of a template is one that can be told from others",
            code="bad-call",
            location=here() or place_of_caller(),
            expected="what is hashable, or lists, dictionaries and sets of that",
            found=repr(value),
        ) from error
    return kind, value


class InlineFunction(Expanded):
    """A function that is expanded, with its branches and loops, where a kernel calls it."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return self.function(*args, **kwargs)
        return current().reader.expand_function(self.function, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def _locals_of_caller() -> Mapping[str, Any]:
    """Give the names where a decorator stands: annotations may mention them, closures do not."""
    frame = inspect.currentframe()
    decorator = None if frame is None else frame.f_back
    caller = None if decorator is None else decorator.f_back
    return {} if caller is None else caller.f_locals


def function(
    function: Callable[..., Any] | None = None,
    *,
    private: bool = False,
    persistent: bool = False,
    check_well_formed: bool = True,
    **unknown: Any,
) -> Any:
    """Read a Python function into a program, at once (a decorator).

    A `private` one is no program but a helper of kernels that states its types, see
    `frontend.device_functions`. Raises `FrontendError` for what is no program of the dialect.
    """
    around = _locals_of_caller()
    _require("function", persistent, check_well_formed, unknown)

    def decorate(given: Any) -> Any:
        if isinstance(given, LocalFunction | Expanded):
            raise FrontendError(
                "a kernel function is not defined inside another",
                code="bad-call",
                location=here(),
                hint="use @T.inline for a helper",
            )
        if private:
            return DeviceFunction(given, around)
        program, types = read_function(given, None, around)
        return KernelFunction(given, program, types)

    return decorate if function is None else decorate(function)


def _require(
    decorator: str, persistent: bool, check_well_formed: bool, unknown: Mapping[str, Any]
) -> None:
    """Refuse options of a decorator that would change nothing here."""
    if unknown:
        raise _bad_option(decorator, next(iter(unknown)), _OPTIONS[decorator])
    if persistent:
        hint = "leave it out: a kernel is persistent by looping over its tiles"
        raise _bad_option(decorator, "persistent=True", "persistent=False", hint)
    if not check_well_formed:
        hint = "leave it out: every program is checked before it is compiled"
        raise _bad_option(decorator, "check_well_formed=False", "check_well_formed=True", hint)


_OPTIONS = {
    "function": "private, persistent, check_well_formed",
    "jit": "persistent, check_well_formed",
    "inline": "none",
    "macro": "hygienic",
}


def _bad_option(
    decorator: str, found: str, expected: str, hint: str | None = None
) -> FrontendError:
    return FrontendError(
        f"@T.{decorator} does not take {found}",
        code="bad-call",
        location=here() or place_of_caller(),
        expected=expected,
        hint=hint,
    )


def place_of_caller() -> Location | None:
    """Give the line outside this package that is being executed."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("tilewright."):
        frame = frame.f_back
    return None if frame is None else Location(frame.f_code.co_filename, frame.f_lineno)


def jit(
    function: Callable[..., Any] | None = None,
    *,
    persistent: bool = False,
    check_well_formed: bool = True,
    **unknown: Any,
) -> Any:
    """Make a template of a function with `T.constexpr` parameters (a decorator)."""
    around = dict(_locals_of_caller())
    _require("jit", persistent, check_well_formed, unknown)

    def decorate(given: FunctionType) -> JitTemplate:
        return JitTemplate(given, around)

    return decorate if function is None else decorate(cast(FunctionType, function))


def inline(function: Any = None, **unknown: Any) -> Any:
    """Expand a function where a kernel calls it (a decorator); it may return values."""
    _require("inline", False, True, unknown)

    def decorate(given: Any) -> Any:
        return given if isinstance(given, LocalFunction) else InlineFunction(given)

    return decorate if function is None else decorate(function)


def macro(function: Any = None, *, hygienic: bool = True, **unknown: Any) -> Any:
    """Expand a function where a kernel calls it (a decorator)."""
    _require("macro", False, True, unknown)
    if not hygienic:
        hint = "names in a helper are those where it is defined: give it what it needs"
        raise _bad_option("macro", "hygienic=False", "hygienic=True", hint)
    return inline(function)


def meta_class(kind: type) -> type:
    """Expand the methods of a class whose objects hold values of the kernel (a decorator)."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType):
            setattr(kind, name, InlineFunction(member))
    return kind


_texts = count()


def parse_function(text: str) -> KernelFunction:
    """Read source text that defines one kernel function, such as a printed program.

    Raises `FrontendError` (`no-entry`) if it defines none.
    """
    file = f"<tilewright program {next(_texts)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": file}
    exec(compile(text, file, "exec"), names)
    found = [value for value in names.values() if isinstance(value, KernelFunction)]
    if not found:
        raise FrontendError(
            "the text defines no kernel function", code="no-entry", location=Location(file, 1)
        )
    return found[-1]


def parse(text: str) -> Program:
    """Read source text into the program that it defines; see `parse_function`."""
    return parse_function(text).program

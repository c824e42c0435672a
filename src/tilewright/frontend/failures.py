"""What an exception of Python code means that runs while a kernel is read.

May import `base` and `frontend.values`.
"""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType
from typing import Any

from tilewright.base.errors import CompilerBug, FrontendError, TilewrightError
from tilewright.base.locations import Location
from tilewright.frontend.values import Value


def python_failure(
    error: Exception, where: Location, function: Any, args: Any, kwargs: Any
) -> FrontendError:
    """Describe an exception of Python code, or a wrong call of a function of the dialect."""
    if function is getattr and isinstance(args[0], ModuleType):
        return FrontendError(str(error), code="unknown-name", location=where)
    ours = (getattr(function, "__module__", None) or "").startswith("tilewright.")
    if ours and isinstance(error, TypeError) and not _accepts(function, args, kwargs):
        return FrontendError(
            f"{_name(function)}() is called with wrong arguments",
            code="bad-call",
            location=where,
            expected=f"{_name(function)}{_parameters(function)}",
            found=str(error),
        )
    return FrontendError(
        "Python code that runs while the kernel is read has failed",
        code="trace-error",
        location=where,
        found=f"{type(error).__name__}: {error}",
        hint=None if ours else _own_function(function, args),
    )


def _own_function(function: Any, args: Any) -> str | None:
    """Point at the dialect's functions, where a package's was called with values of a kernel."""
    module = getattr(function, "__module__", None) or "numpy"
    plain = isinstance(function, FunctionType) or module in ("_operator", "operator", "builtins")
    if plain or not any(isinstance(each, Value) for each in args):
        return None
    return "functions of a kernel's values are the dialect's own: T.exp, T.sqrt, …"


def failed_assertion(error: AssertionError, where: Location) -> TilewrightError:
    """Tell an assertion of the user's code from one of ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    if module.startswith("tilewright."):
        return CompilerBug(
            f"an assumption of {module} does not hold: {error}",
            code="compiler-bug",
            location=where,
        )
    return FrontendError(
        str(error) or "an assertion in Python code does not hold",
        code="static-assertion",
        location=where,
    )


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or repr(function)


def _parameters(function: Any) -> inspect.Signature:
    """Give the parameters of a function without their types."""
    plain = inspect.Parameter.empty
    named = inspect.signature(function).parameters.values()
    return inspect.Signature([each.replace(annotation=plain) for each in named])


def _accepts(function: Any, args: Any, kwargs: Any) -> bool:
    if not callable(function):
        return True
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True

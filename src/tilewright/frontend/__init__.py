"""Python source becomes IR: one reader, and a table of names for each dialect.

May import `base`, `layout`, `isa` and `ir`.

    >>> program = parse(str(kernel))
    >>> program == kernel.program
    True
"""

from tilewright.frontend.functions import (
    InlineFunction,
    JitTemplate,
    KernelFunction,
    parse,
    parse_function,
)

__all__ = ["InlineFunction", "JitTemplate", "KernelFunction", "parse", "parse_function"]

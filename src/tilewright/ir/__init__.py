"""The intermediate representation: types, expressions, statements, the printer, the verifier.

May import `base`, `layout` and `isa`.
"""

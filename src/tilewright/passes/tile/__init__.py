"""The tile dialect's passes: from statements about tiles to what each thread does.

A program without such statements passes through them unchanged. The order is in
`passes.pipeline`; each file is one pass, or the part of `lower_operations` for one statement.
"""

"""Timelines of launches: what warps and agents do in which order, and who waits for whom.

May import `base`, `ir`, `isa` and the rest of `sim`. Instrumented code (`hooks`) writes events to a
buffer (`events`), a `Recorder` keeps them, `reading` makes timelines of them, and a `Trace` is
written as JSON.
"""

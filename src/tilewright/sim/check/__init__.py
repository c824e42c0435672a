"""The checker: what happens before what, and accesses to memory that nothing orders.

May import everything up to `sim.engine`.
"""

"""What `lower_tiles` is made of: groups of threads, the contract's shapes, its proofs, emission.

May import `base`, `layout`, `isa`, `ir` and `passes.analysis`.
"""

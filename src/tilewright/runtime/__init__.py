"""From a compiled program to a run of it: arguments, host statements, launches, NVRTC.

May import everything up to `sim`; the only folder that uses `cuda.*`.
"""

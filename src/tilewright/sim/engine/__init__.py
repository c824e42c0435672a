"""Lowered IR as native code of the CPU, by way of LLVM text."""

"""Compiling functions of the tile dialect when they are called, and measuring them."""

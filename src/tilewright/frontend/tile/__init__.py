"""The tile dialect's functions: what they add to the kernel that is read."""

"""The functions of the dialect, expanded into operations that every backend rounds alike."""

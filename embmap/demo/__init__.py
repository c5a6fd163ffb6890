"""The demonstration: an embedding of the standard library's docstrings, made and looked at."""

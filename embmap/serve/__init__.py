"""Embedding files over HTTP: ``embmap serve FILE...``. Needs the extra ``serve``."""

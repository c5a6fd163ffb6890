"""The formats: a folder and a class each, listed in :mod:`embmap.formats.registry`."""

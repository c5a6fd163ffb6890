"""Measures, for one file on one machine, whether to map it or to read it (extra ``bench``)."""

"""Slow, obvious decoders and encoders, the oracles the fast code of embmap is compared with."""

"""Decoding on devices: stored bytes are uploaded, and operations of torch decode them there."""

"""A tensor of a safetensors file, with words in a text file beside it."""

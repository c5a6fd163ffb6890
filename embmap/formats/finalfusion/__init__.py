"""The finalfusion format (``.fifu``): words and matrix, subwords, quantization, norms, metadata."""

"""The DWE format (``.dwe``): word vectors over time, differences in a tree, entropy-coded."""

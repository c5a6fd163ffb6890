"""embmap against its peers: every figure that docs/benchmarks.md claims, measured.

``python -m benchmarks`` measures and prints a table. Under plain pytest the same code runs once
over small files, as tests that embmap and the peers give the same answers.
"""

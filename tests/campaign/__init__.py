"""The campaign: hours of damaged files, killed processes and broken connections, from seeds.

``python -m tests.campaign`` runs it; docs/security.md says what it tries and what came of it.
"""

"""Verifiers: exact rules that turn drafted children and the target's law into tokens."""

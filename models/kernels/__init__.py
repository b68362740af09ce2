"""Attention that leaves no decision to the host, so that a step can be recorded and replayed."""

from .table import kernel_for

__all__ = ["kernel_for"]

"""Ways of attention over the KV memory."""

from .table import kernel_for, suits

__all__ = ["kernel_for", "suits"]

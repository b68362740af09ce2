"""Small steps recorded once for each size, and replayed: the host hands over one thing, not hundreds."""

from .replay import ReplayedModel

__all__ = ["ReplayedModel"]

"""Generic surgery on transformers models: parts that are replaced by quicker ones with the same results."""

from .surgery import FusionReport, fuse

__all__ = ["FusionReport", "fuse"]

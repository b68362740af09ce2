"""Kernels of our own for CPUs."""

from .library import KINDS, NativeKernels, best_built, native_kernels

__all__ = ["KINDS", "NativeKernels", "best_built", "native_kernels"]

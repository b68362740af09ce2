"""Kernels of our own for CPUs."""

from .library import KINDS, NativeKernels, native_kernels

__all__ = ["KINDS", "NativeKernels", "native_kernels"]

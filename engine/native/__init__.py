"""Verification's kernels of our own for CPUs."""

from .library import VerifyKernels, kernels_for

__all__ = ["VerifyKernels", "kernels_for"]

"""Verification's and the proposers' kernels of our own for CPUs."""

from .grow import GrowKernel, LevelArguments, grow_kernel_for
from .library import VerifyKernels, kernels_for
from .rows import TreeRows

__all__ = ["GrowKernel", "LevelArguments", "TreeRows", "VerifyKernels", "grow_kernel_for", "kernels_for"]

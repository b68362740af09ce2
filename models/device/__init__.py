"""What differs between a CPU and a GPU, behind one interface."""

from .base import Clock, Device
from .table import device_for, find_device

__all__ = ["Clock", "Device", "device_for", "find_device"]

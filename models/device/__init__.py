"""What differs between a CPU and a GPU, behind one interface."""

from .base import Clock, Device, Recorder, Recording
from .table import device_for, find_device, put

__all__ = ["Clock", "Device", "Recorder", "Recording", "device_for", "find_device", "put"]

"""Which devices there are."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from resispec.models.base import ModelError

from .base import Device, Numbers
from .cpu import CpuDevice
from .cuda import CudaDevice

DEVICES: dict[str, type[CpuDevice | CudaDevice]] = {"cuda": CudaDevice, "cpu": CpuDevice}  # best first


def find_device(name: str) -> torch.device:
    """name: auto, cpu, cuda or cuda:N. Raises ModelError for one that is not there."""
    if name == "auto":
        return torch.device(next(kind for kind, device in DEVICES.items() if device.count()))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device is {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type not in DEVICES:
        raise ModelError(f"device is {name!r}; only cpu and cuda are supported")
    count = DEVICES[device.type].count()
    if (device.index or 0) >= count:
        raise ModelError(f"device is {name!r}, but {count} {device.type.upper()} devices are visible")
    return device


@lru_cache
def device_for(device: torch.device) -> Device:
    """The interface of ``device``. Raises KeyError for a kind that is not in `DEVICES`."""
    return DEVICES[device.type](device)


def put(values: Numbers, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`Device.put`."""
    return device_for(device).put(values, dtype)

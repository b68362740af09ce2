"""Where something was measured."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

import psutil
import torch

from resispec.models.device import device_for

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int  # physical
    threads: int  # of torch
    load: float  # mean number of busy threads in the minute before, ours not among them
    device: str
    torch: str
    transformers: str

    @property
    def is_busy(self) -> bool:
        """Whether others take so much that times mean little."""
        return self.load > 0.25 * self.cores

    @property
    def warning(self) -> str | None:
        """A sentence about others on the machine; None if it was left alone."""
        if not self.is_busy:
            return None
        return (
            f"The machine was busy: {self.load:.1f} threads of others on {self.cores} cores. "
            "The times mean little."
        )

    def __str__(self) -> str:
        device = "" if self.device == "cpu" else f", {self.device}"
        return (
            f"{self.cpu}, {self.cores} cores, {self.threads} threads{device}, torch {self.torch}, "
            f"transformers {self.transformers}"
        )


def describe_machine(device: torch.device) -> Machine:
    """Call it before anything is run, for the load."""
    return Machine(
        cpu=device_for(_CPU).description,
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        threads=torch.get_num_threads(),
        load=psutil.getloadavg()[0],
        device="cpu" if device == _CPU else device_for(device).description,
        torch=str(torch.__version__),
        transformers=version("transformers"),
    )

"""What packed products leave in memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

SCRIPT = """
import json, psutil, torch
from torch import nn
from resispec.models.pack import PackedLinear, bound_kernel_cache
if {bounded}:
    bound_kernel_cache()
torch.set_num_threads(1)
layers = [PackedLinear(nn.Linear(256, width, bias=False).bfloat16()) for width in (256, 512, 768, 1024)]
rows = torch.zeros(330, 256, dtype=torch.bfloat16)
process, seen = psutil.Process(), []
for layer in layers:
    layer(rows)
before = process.memory_info().rss
for count in range(1, 301):
    for layer in layers:
        layer(rows[:count])
print(json.dumps((process.memory_info().rss - before) >> 20))
"""


def grown(*, bounded: bool) -> int:
    """MiB, by products of 300 numbers of rows."""
    environment = {"PATH": "", "OMP_NUM_THREADS": "1"}
    script = SCRIPT.replace("{bounded}", str(bounded))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=True)
    return int(json.loads(run.stdout))


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="needs oneDNN with bfloat16",
)
def test_kernels_of_all_numbers_of_rows_do_not_pile_up() -> None:
    free = grown(bounded=False)
    assert grown(bounded=True) < min(250, free / 2)

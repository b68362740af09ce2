"""Compiles the functions of a layer; a process of its own, started by `build`.

::

    python -m resispec.models.compiled.worker FOLDER < SPECS

SPECS is a JSON object of `LayerSpec` by the name of the function. The packages come to lie in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, export

from .region import Begin, End, LayerRegion, Single
from .spec import LayerSpec

KINDS: dict[str, type[LayerRegion]] = {"single": Single, "begin": Begin, "end": End}
_FEW = 6  # tokens of an example; it must be neither 0 nor 1, which torch would take for constants


def example(kind: str, spec: LayerSpec) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any] | None, ...]]:
    """Arguments of a function, and which of their sizes vary."""
    tokens, rows = Dim("tokens", min=1, max=1 << 20), Dim("rows", min=1, max=1 << 40)
    count = 1 if kind == "single" else _FEW
    dtype, width = spec.torch_dtype, spec.heads * spec.head_dim
    hidden = torch.zeros(count, spec.hidden, dtype=dtype)
    if kind == "end":
        return (torch.zeros(count, width, dtype=dtype), hidden), ({0: tokens}, {0: tokens})
    angles = torch.zeros(count, 1, spec.head_dim, dtype=dtype)
    pool = torch.zeros(300, spec.kv_heads, spec.head_dim, dtype=dtype)
    varying = {0: tokens} if kind == "begin" else None
    arguments = (hidden, angles, angles.clone(), pool, pool.clone(), torch.arange(count))
    return arguments, (varying, varying, varying, {0: rows}, {0: rows}, varying)


@torch.no_grad()
def compile_function(kind: str, spec: LayerSpec, path: Path) -> None:
    """Write the package of one function to ``path``."""
    from torch._inductor import aoti_compile_and_package

    arguments, varying = example(kind, spec)
    program = export(KINDS[kind](spec), arguments, dynamic_shapes=varying)
    aoti_compile_and_package(
        program,
        package_path=str(path),
        inductor_configs={
            "compile_threads": 1,
            "cpp.threads": spec.threads,
            "aot_inductor.package_constants_in_so": False,  # each layer brings its own
            # What a loop over many elements reads is computed once, ahead of it, not for each of them.
            "realize_reads_threshold": 1,
        },
    )


def main() -> None:
    """Raises what torch raises; its last line is the reason that the parent reads."""
    os.nice(19)  # the engine goes first
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for kind, spec in json.load(sys.stdin).items():
        compile_function(kind, LayerSpec.from_json(spec), folder / f"{kind}.pt2")


if __name__ == "__main__":
    main()

"""From a model that runs to one that runs compiled, without holding it up."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from resispec.models.fuse.layer import FusedLayer
from resispec.models.kv import KVGeometry

from .build import Build, BuildError
from .check import check_compiled
from .layer import CompiledLayer, bytes_of_weights
from .spec import CannotCompileError, LayerSpec, layer_spec
from .state import CompileState, CompileStatus


class Compilation:
    """Builds and loads on a thread; `advance` swaps the layers in, between two steps."""

    def __init__(
        self, model: Any, geometry: KVGeometry, root: Path, *, threads: int, spare_bytes: int
    ) -> None:
        """model: fused and laid out. root: where compilations are kept. spare_bytes: of memory.

        The weights of all layers are kept a second time, plain, for steps of one token, if they take at most
        half of the spare memory.
        """
        self._model, self._geometry = model, geometry
        self._layers = [part for part in model.modules() if isinstance(part, FusedLayer)]
        self._compiled: list[CompiledLayer] = []
        self._error: str | None = None
        self._build: Build | None = None
        self._thread = threading.Thread(target=self._work, name="compilation", daemon=True)
        self._began = time.monotonic()
        self.status = CompileStatus(
            CompileState.BUILDING, "The target's layers are being compiled; it runs without meanwhile."
        )
        try:
            self._specs = self._choose_specs(threads, spare_bytes)
        except CannotCompileError as error:
            self.status = _failed(str(error))
            return
        self._build = Build(self._specs, root)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether `advance` has something to do."""
        return self.status.state is CompileState.BUILDING and not self._thread.is_alive()

    def advance(self) -> bool:
        """Swap the compiled layers in if they are ready; True if the status has changed.

        To be called between two steps, from the thread that runs them.
        """
        if not self.is_over:
            return False
        try:
            if self._error is None:
                check_compiled(self._model, self._geometry, self._layers, self._compiled)
        except Exception as error:  # noqa: BLE001  whatever it is, the model goes on as it was
            self._error = f"they failed their check when compiled: {error}"
        if self._error is not None:
            self._compiled = []
            self.status = _failed(self._error)
            return True
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.compiled = compiled
        assert self._build is not None
        how = "loaded from the cache" if self._build.cached else "compiled"
        seconds = time.monotonic() - self._began
        note = f"The target's {len(self._layers)} layers were {how} in {seconds:.0f} s."
        self.status = CompileStatus(CompileState.ON, note)
        return True

    def wait(self) -> None:
        """Until `advance` has something to do, or nothing more."""
        if self._build is not None:
            self._thread.join()

    def close(self) -> None:
        """Give up what is under way."""
        if self._build is not None:
            self._build.stop()
            self._thread.join()

    def _choose_specs(self, threads: int, spare_bytes: int) -> dict[str, LayerSpec]:
        odd = self._geometry.num_layers - len(self._layers)
        if odd:
            raise CannotCompileError(f"{odd} of {self._geometry.num_layers} are of no known kind")
        specs = {layer_spec(layer, self._geometry.dtype, threads) for layer in self._layers}
        if len(specs) > 1:
            raise CannotCompileError("they are not all alike")
        (spec,) = specs
        if spec.weights == "int8":  # more tokens are the business of other kernels
            return {"single": spec}
        plain = spec.weights == "plain" or 2 * bytes_of_weights(self._layers) <= spare_bytes
        return {"single": replace(spec, weights="plain") if plain else spec, "begin": spec, "end": spec}

    def _work(self) -> None:
        assert self._build is not None
        try:
            folder = self._build.run()
            with torch.inference_mode():
                self._compiled = [CompiledLayer(layer, self._specs, folder) for layer in self._layers]
        except BuildError as error:
            self._error = str(error)
        except Exception as error:  # noqa: BLE001  a thread's exception would be nobody's
            self._build.discard()
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            self._error = f"what was compiled cannot be loaded ({reason[0]})"


def _failed(reason: str) -> CompileStatus:
    return CompileStatus(CompileState.FAILED, f"The target's layers stay as they are: {reason}.")

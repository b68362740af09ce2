"""A model whose small steps are recorded and replayed."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.models.base import StepInputs, StepModel, StepOutputs
from resispec.models.device import Recorder, Recording
from resispec.models.kv import KVMemory

from .bucket import Bucket, bucket_for
from .buffers import StepBuffers

_log = logging.getLogger(__name__)
# How far a replayed step's logits may be from the same step's run one by one: rounding, in other kernels.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, slots=True)
class _Step:
    buffers: StepBuffers
    recording: Recording[StepOutputs]


class ReplayedModel:
    """A `StepModel` that gives what ``model`` gives.

    A step is padded to the bucket that holds it (`bucket_for`). The first step of a bucket is run as it
    is, recorded, and the recording held against it; later ones are replayed. Whatever goes wrong with
    that is told in one line, after which all steps are run as they are.
    """

    def __init__(
        self,
        model: StepModel,
        memory: KVMemory,
        recorder: Recorder,
        *,
        scratch_row: int,
        capacity: int = 32,
    ) -> None:
        """memory: what ``model`` steps over. scratch_row: one of its rows, which nobody else uses.

        capacity: recordings that are kept; the one that was not used for longest is the first to go.
        """
        self._model = model
        self._memory = memory
        self._recorder: Recorder | None = recorder
        self._scratch_row = scratch_row
        self._capacity = capacity
        self._steps: OrderedDict[Bucket, _Step] = OrderedDict()
        self._address = _address(memory)

    @property
    def needs_hidden(self) -> bool:
        return self._model.needs_hidden

    @property
    def max_positions(self) -> int:
        return self._model.max_positions

    @property
    def vocab_ids(self) -> Tensor | None:
        return self._model.vocab_ids

    @property
    def num_recordings(self) -> int:
        return len(self._steps)

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        self._model.move_rows(source, destination)

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutputs:
        """What comes back is the caller's: no later step writes to it."""
        bucket = bucket_for(inputs, self._memory.attention)
        if bucket is None or self._recorder is None:
            return self._model.forward(inputs)
        if (address := _address(self._memory)) != self._address:
            self._steps.clear()  # they would write to memory that is no longer the models'
            self._address = address
        step = self._steps.get(bucket)
        if step is None:
            return self._run_and_record(bucket, inputs, self._recorder)
        self._steps.move_to_end(bucket)
        return _replay(step, inputs)

    def _run_and_record(self, bucket: Bucket, inputs: StepInputs, recorder: Recorder) -> StepOutputs:
        plain = self._model.forward(inputs)
        if not bool(plain.hidden.isfinite().all()):
            return plain  # nothing can be held against that
        try:
            buffers = StepBuffers(bucket, self._memory, self._scratch_row, inputs.hidden)
            buffers.fill(inputs)
            step = _Step(buffers, recorder.record(lambda: self._model.forward(buffers.inputs)))
            difference = _difference(_replay(step, inputs), plain)
            if not difference <= _TOLERANCE[self._memory.geometry.dtype]:
                raise ArithmeticError(f"replayed, a step gives other results ({difference:.1e} of them)")
        except Exception as error:  # noqa: BLE001  steps that are run as they are do without it
            _log.warning("steps are no longer recorded: %s: %s", type(error).__name__, error)
            self._recorder = None
            self._steps.clear()
            return plain
        self._steps[bucket] = step
        if len(self._steps) > self._capacity:
            self._steps.popitem(last=False)
        return plain


def _replay(step: _Step, inputs: StepInputs) -> StepOutputs:
    step.buffers.fill(inputs)
    step.recording.replay()
    outputs = step.recording.outputs
    wanted, count = inputs.logits_index.shape[0], inputs.token_ids.shape[0]
    return StepOutputs(outputs.logits[:wanted].clone(), outputs.hidden[:count].clone())


def _difference(ours: StepOutputs, plain: StepOutputs) -> float:
    """Relative, of the logits and of the hidden states, whichever is more."""
    pairs = ((ours.logits, plain.logits), (ours.hidden.float(), plain.hidden.float()))
    parts = [(one - other).norm() / other.norm().clamp_min(1e-9) for one, other in pairs]
    return float(torch.stack(parts).max())


def _address(memory: KVMemory) -> tuple[int, int]:
    return memory.keys.data_ptr(), memory.values.data_ptr()

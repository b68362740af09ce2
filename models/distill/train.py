"""Training a draft on stored hidden states, resumable, bounded by steps or by minutes."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ..base import ModelError
from ..files import write_whole
from .base import Trainee
from .batches import Batch, batch_plan, load_batch
from .features import FeatureStore
from .loss import draft_loss


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a draft is trained. The run ends when ``steps`` or ``minutes`` is reached, whichever is first."""

    steps: int | None = None
    minutes: float | None = None
    batch_tokens: int = 4096  # padded tokens a step
    single_pass_share: float = (
        0.35  # of the run, at its start, on the first level only: cheaper, and enough then
    )
    pass_decay: float = 0.6  # weight of a pass against the one before
    tv_share: float = 0.75  # of the total variation in the loss, towards the end of the run
    learning_rate: float = 1.5e-3  # at its highest
    warm_up_steps: int = 30
    weight_decay: float = 0.01
    seed: int = 0
    save_minutes: float = 5.0

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ModelError("training needs an end: give steps or minutes")
        for name in ("steps", "minutes", "batch_tokens", "learning_rate"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ModelError(f"{name} is {value}, it must be above 0")

    def progress(self, step: int, minutes: float) -> float:
        """The share of the run that is done, in [0, 1]."""
        done = 0.0 if self.steps is None else step / self.steps
        return min(1.0, max(done, 0.0 if self.minutes is None else minutes / self.minutes))


class Trainer:
    """One training run: the draft, its optimisers and how far it has come."""

    def __init__(
        self, trainee: Trainee, output_matrix: Tensor, settings: TrainSettings, checkpoint: Path | None = None
    ) -> None:
        """``output_matrix [V, H]`` is the target's, and stays as it is.

        ``checkpoint`` is written every few minutes; when it exists, the run goes on from it.
        """
        self.trainee, self.settings, self.checkpoint = trainee, settings, checkpoint
        self.output_rows = output_matrix[trainee.vocab_ids.to(output_matrix.device)]
        self._trained = {n: p for n, p in trainee.module.named_parameters() if p.requires_grad}
        matrices = [p for p in self._trained.values() if p.dim() == 2]
        vectors = [p for p in self._trained.values() if p.dim() != 2]
        rate = settings.learning_rate
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=rate, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(vectors, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.step = 0
        self.minutes = 0.0
        self.loss = math.nan  # running mean
        if checkpoint is not None and checkpoint.exists():
            self._load(checkpoint)

    def run(
        self, store: FeatureStore, console: Console, acceptance: Callable[[], float] | None = None
    ) -> None:
        """Train to the end of the settings' steps or minutes.

        acceptance: what is shown, each time a checkpoint is written, of the draft as it is then.
        """
        settings = self.settings
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        clock, saved, shown = time.monotonic(), self.minutes, ""
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("training", total=1.0)
            for batch in self._batches(store):
                done = settings.progress(self.step, self.minutes)
                bar.update(task, completed=done, description=self._description() + shown)
                if done >= 1.0:
                    break
                self._update(batch, done)
                now = time.monotonic()
                self.minutes += (now - clock) / 60
                clock = now
                if self.minutes - saved >= settings.save_minutes:
                    self._save()
                    saved = self.minutes
                    if acceptance is not None:
                        shown = f", held-out acceptance {acceptance():.3f}"
                        clock = time.monotonic()  # it is not training
        self._save()

    def _description(self) -> str:
        return f"training: step {self.step}, loss {self.loss:.3f}"

    def batch_loss(self, batch: Batch, passes: int, tv_share: float) -> Tensor:
        """Mean loss over the learned positions, a float32 scalar."""
        states = self.trainee.states(batch, passes)
        learned = batch.learned.flatten()
        weights = torch.tensor([self.settings.pass_decay**n for n in range(passes)])
        drafted = torch.stack([state.flatten(0, 1)[learned] for state in states]).to(self.output_rows.dtype)
        hidden = batch.hidden.flatten(0, 1)[learned].to(self.output_rows.dtype)
        return draft_loss(drafted, hidden, self.output_rows, weights / weights.sum(), tv_share)

    def _update(self, batch: Batch, done: float) -> None:
        settings = self.settings
        passes = 1 if done < settings.single_pass_share else self.trainee.levels
        share = settings.tv_share * min(1.0, max(0.0, 2 * done - 0.5))  # enters from 1/4 to 3/4
        warm = min(1.0, (self.step + 1) / settings.warm_up_steps)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * done))
            optimiser.zero_grad(set_to_none=True)
        loss = self.batch_loss(batch, passes, share)
        loss.backward()
        nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.step += 1
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ModelError(f"training diverged at step {self.step}; lower the learning rate")
        self.loss = value if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * value

    def _batches(self, store: FeatureStore) -> Iterator[Batch]:
        """Batches without end, a new order every epoch, from the one after the last that was used."""
        skip = self.step
        for epoch in range(2**31):
            plan = batch_plan(store, self.settings.batch_tokens, self.settings.seed * 1_000_003 + epoch)
            for batch in plan[skip:]:
                yield load_batch(store, batch, self.output_rows)
            skip = max(0, skip - len(plan))

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        state = {
            "module": {name: parameter.detach() for name, parameter in self._trained.items()},
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "minutes": self.minutes,
            "loss": self.loss,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.checkpoint, buffer.getvalue())

    @torch.no_grad()
    def _load(self, path: Path) -> None:
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.output_rows.device, weights_only=True)
            for name in self._trained.keys() | state["module"].keys():
                self._trained[name].copy_(state["module"][name])
            for optimiser, values in zip(self.optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(values)
            self.step, self.minutes = int(state["step"]), float(state["minutes"])
            self.loss = float(state["loss"])
        except Exception as error:  # a damaged pickle can raise anything
            raise ModelError(
                f"{path} is no checkpoint of this run, remove it to start afresh: {error}"
            ) from error

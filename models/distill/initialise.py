"""Where a head starts: close to the best linear guess of the target's next state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..head.module import HeadModule, LayerReader
from .features import FeatureStore

_SAMPLE = 40_000  # pairs that the linear fit sees
_RIDGE = 1e-3  # of the mean square of its inputs


@torch.no_grad()
def initialise(module: HeadModule, store: FeatureStore, embeddings: Tensor, seed: int) -> None:
    """Set every weight of ``module``, which is on the CPU; ``embeddings [V, H]`` are the target's.

    The weight of the head's final norm is each channel's root mean square in the target's states. The
    fusing matrix is the least-squares fit from the normed embedding of ``x_i`` and the normed ``h_(i-1)``
    to the target's state ``h_i`` over that weight. Attention, MLP and what is read of the target's layers
    start with random inputs and add nothing yet.
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(len(store.tokens), dtype=torch.bool)
    first[store.documents[:, 0]] = True
    later = (~first).nonzero().flatten()
    chosen = later[torch.randperm(len(later), generator=generator)[:_SAMPLE]]
    size, eps = (module.config.hidden_size,), module.config.rms_norm_eps
    embedded = F.rms_norm(embeddings[store.tokens[chosen].to(embeddings.device)].float().cpu(), size, eps=eps)
    earlier = F.rms_norm(store.hidden[chosen - 1].float(), size, eps=eps)
    states = store.hidden[chosen].float()
    scale = states.square().mean(dim=0).sqrt().clamp_min(1e-6)

    for parameter in module.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
        else:
            parameter.fill_(1.0)
    module.o_proj.weight.zero_()
    module.down_proj.weight.zero_()
    if isinstance(module.reader, LayerReader):
        _initialise_reader(module.reader, store, chosen - 1)
    module.norm.weight.copy_(scale)
    module.fuse.weight.copy_(_least_squares(torch.cat([embedded, earlier], dim=-1), states / scale))


def _initialise_reader(reader: LayerReader, store: FeatureStore, rows: Tensor) -> None:
    """Every channel is read as if it were of size 1: few of a layer's inputs are far larger than the rest."""
    assert store.layers is not None, "the store was computed without the layers that the head reads"
    reader.scale.fill_(1.0)
    sizes = reader.normed(store.layers[rows].float()).square().mean(dim=0).sqrt()
    reader.scale.copy_((1 / sizes.clamp_min(1e-3)).view_as(reader.scale))
    reader.proj.weight.zero_()


def _least_squares(inputs: Tensor, wanted: Tensor) -> Tensor:
    """The matrix ``A`` of the ridge regression ``wanted [n, out] ~ inputs [n, in] A^T``."""
    gram = inputs.T @ inputs
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    solution: Tensor = torch.linalg.solve(gram, inputs.T @ wanted)
    return solution.T

"""What top_k, top_p and min_p leave of a law, written for reading."""

import numpy as np

from resispec.engine.request import SamplingParams


def truncated(p: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """One position's law. p: [V] float64, a law."""
    order = np.argsort(-p, kind="stable")
    keep = p > 0
    if sampling.top_k:
        keep[order[sampling.top_k :]] = False
    kept = np.where(keep, p, 0.0)
    kept /= kept.sum()
    before = np.cumsum(kept[order]) - kept[order]
    keep[order[before >= sampling.top_p]] = False
    keep &= p >= sampling.min_p * p.max()
    p = np.where(keep, p, 0.0)
    law: np.ndarray = p / p.sum()
    return law

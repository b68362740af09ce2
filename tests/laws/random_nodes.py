"""Random nodes with the awkward cases in them: zeros, ties, one-hot, equal laws, tiny holes."""

from __future__ import annotations

import numpy as np

from .enumerate import Node


def steep_node(rng: np.random.Generator) -> Node:
    """Few tokens, nearly everything covered: thresholds that fall by orders of magnitude."""
    vocab = int(rng.integers(2, 12))
    p = rng.dirichlet(np.full(vocab, rng.choice([0.1, 0.3, 1.0, 5.0])))
    q = np.maximum(p * np.exp(rng.normal(0, rng.choice([0.1, 0.5, 1.0, 3.0, 10.0]), vocab)), 1e-30)
    head = range(int(rng.integers(0, 2)))
    return Node.of((p / p.sum()).tolist(), (q / q.sum()).tolist(), head, int(rng.integers(2, 9)))


def random_node(rng: np.random.Generator, max_vocab: int = 60, max_tail: int = 6) -> Node:
    vocab = int(rng.integers(2, max_vocab + 1))
    p = rng.dirichlet(np.full(vocab, rng.choice([0.1, 0.5, 1.0, 5.0])))
    q = rng.dirichlet(np.full(vocab, rng.choice([0.1, 0.5, 1.0, 5.0])))
    match rng.integers(0, 10):
        case 0:
            p[rng.random(vocab) < 0.5] = 0
            q[rng.random(vocab) < 0.5] = 0
        case 1:  # ties
            p, q = np.round(p * 4) / 4, np.round(q * 4) / 4
        case 2:
            p = np.eye(vocab)[rng.integers(vocab)]
        case 3:
            q = p.copy()
        case 4:  # disjoint supports
            inside = rng.random(vocab) < 0.5
            p, q = np.where(inside, p, 0), np.where(inside, 0, q)
        case 5:  # a draft that is right but for a tiny hole
            q = p.copy()
            q[rng.integers(vocab)] *= 1 - 1e-9
            p[rng.integers(vocab)] += 1e-9
        case 6:  # a tail's law cut to a few tokens, down to one
            q[np.argsort(-q)[int(rng.integers(1, 4)) :]] = 0
        case _:  # a draft like the target
            q = p * np.exp(rng.normal(0, 1, vocab))
    p = p if p.sum() > 0 else np.ones(vocab)
    q = q if q.sum() > 0 else np.ones(vocab)
    covers_all = vocab <= 6 and rng.random() < 0.1
    num_head = vocab if covers_all else int(rng.integers(0, min(4, vocab)))
    order = np.argsort(-q, kind="stable") if rng.random() < 0.7 else rng.permutation(vocab)
    head = [int(token) for token in order[:num_head]]
    return Node.of((p / p.sum()).tolist(), (q / q.sum()).tolist(), head, int(rng.integers(0, max_tail + 1)))

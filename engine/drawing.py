"""How the children of a node came about: what decides which verifiers have an exact rule for them."""

from __future__ import annotations

from enum import StrEnum


class Drawing(StrEnum):
    """One way of making children. A way with fewer freedoms is named by its narrower name."""

    HEAD = "chosen children"  # distinct tokens, chosen before anything was drawn
    HEAD_AND_TAIL = "chosen children and independent draws"  # the draws from a law without the chosen
    INDEPENDENT = "independent draws"
    WITHOUT_REPLACEMENT = "draws without replacement"  # each from the law without those before it
    CHAIN = "a chain of single children"  # one draw a node (or one chosen token), one node a level

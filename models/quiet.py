"""Keep transformers' own notices and progress bars off the terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers below errors for a while; its settings are put back afterwards.

    What it would have warned of and what matters here (weights that are missing, for one) is checked
    by the callers, who raise ModelError.
    """
    from transformers.utils import logging as module

    logging: Any = module  # untyped
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

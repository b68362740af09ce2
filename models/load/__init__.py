"""From what the user names to a loaded model that is safe to serve."""

from .architecture import check_config, check_model
from .causal import load_causal
from .facts import ModelFacts, read_facts
from .resolve import resolve

__all__ = ["ModelFacts", "check_config", "check_model", "load_causal", "read_facts", "resolve"]

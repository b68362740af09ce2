"""What the target is asked when it writes its own training text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from ..base import ModelError

_TASKS = (
    "Explain {topic} to a child.",
    "Explain {topic} to an engineer who has never met it.",
    "Write a short story about {topic}.",
    "Write a poem about {topic}.",
    "List ten facts about {topic}.",
    "What are the advantages and disadvantages of {topic}?",
    "Give me a step by step guide to {topic}.",
    "Write an e-mail to a colleague about {topic}.",
    "Summarise what is known about {topic} in one paragraph.",
    "Write a dialogue between two friends who disagree about {topic}.",
    "What should a beginner know about {topic}?",
    "Describe the history of {topic}.",
    "Compare {topic} with {other}.",
    "How does {topic} relate to {other}?",
    "Write a Python function that has to do with {topic}, with a docstring and an example.",
    "Write a small HTML page about {topic}.",
    "Return a JSON object with five properties of {topic}.",
    "Make a table in Markdown that compares {topic} and {other}.",
    "Ask me five quiz questions about {topic}, then give the answers.",
    "Write a news report about {topic}.",
    "Write a product description for something that uses {topic}.",
    "Translate a sentence about {topic} into French and Spanish.",
    "Correct the mistakes in this sentence: me and him was talking of {topic} yesterday.",
    "Solve a simple arithmetic problem about {topic} and show the steps.",
    "Why do people care about {topic}?",
    "What would happen if there were no {topic}?",
    "Give three arguments for and three against {topic}.",
    "Tell me something surprising about {topic} and something about {other}.",
)

_TOPICS = (
    "gravity", "photosynthesis", "the French Revolution", "sourdough bread", "binary search", "black holes",
    "the immune system", "jazz", "bicycles", "inflation", "the Roman Empire", "recursion", "whales",
    "chess", "solar panels", "the water cycle", "job interviews", "gardening", "football", "electric cars",
    "volcanoes", "dreams", "coffee", "the internet", "sorting a list", "railways", "bees", "probability",
    "budgeting", "the moon", "antibiotics", "poetry", "databases", "marathon running", "earthquakes",
    "public libraries", "the human heart", "cloud computing", "tea", "democracy", "prime numbers",
    "vaccines", "climate change", "a lost dog", "time zones", "cooking rice", "friendship", "the Silk Road",
    "machine learning", "mountains", "origami", "stock markets", "bridges", "sleep", "dinosaurs",
    "regular expressions", "music theory", "learning a language", "penguins", "the alphabet", "wine",
    "satellites", "a haunted house", "trees", "teamwork", "cancer research", "text files", "cats",
    "renewable energy", "the Olympic Games", "robots", "lighthouses", "knitting", "mathematics",
    "houseplants", "a long journey by sea", "dates and calendars", "hospitals", "painting", "rain",
    "markets", "password security", "the brain", "glaciers", "theatre", "mobile phones", "first aid",
    "the speed of light", "weddings", "swimming", "soil", "maps", "unit tests",
)  # fmt: skip


def builtin_prompts(seed: int) -> Iterator[str]:
    """Prompts without end: every task with a topic, in an order drawn from ``seed``."""
    generator = random.Random(seed)  # noqa: S311 - varied, not secret
    while True:
        tasks = list(_TASKS)
        generator.shuffle(tasks)
        for task in tasks:
            topic, other = generator.sample(_TOPICS, 2)
            yield task.format(topic=topic, other=other)


def prompts_from_file(path: Path, seed: int) -> Iterator[str]:
    """The lines of a UTF-8 file over and over, each round in another order; blank lines are left out."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read the prompts in {path}: {error}") from error
    if not lines:
        raise ModelError(f"{path} holds no prompt: write one a line")
    return _rounds(lines, random.Random(seed))  # noqa: S311 - varied, not secret


def _rounds(lines: list[str], generator: random.Random) -> Iterator[str]:
    while True:
        yield from generator.sample(lines, len(lines))

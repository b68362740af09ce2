"""A chat template that takes the place of the model's own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

NAMED = ("hermes",)  # in `templates`; a file of that name goes by its path, such as ./hermes


def read_template(source: str) -> str:
    """The Jinja text that a file holds, or one of `NAMED`. Raises ValueError saying why there is none."""
    if source in NAMED:
        return (files(__package__) / "templates" / f"{source}.jinja").read_text(encoding="utf-8")
    try:
        return Path(source).read_text(encoding="utf-8")
    except OSError as exc:
        raise ValueError(
            f"cannot read {source}: {exc.strerror}; give a file, or one of {', '.join(NAMED)}"
        ) from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"{source} is not UTF-8") from exc


def readable_template(source: str | None) -> str | None:
    """``source``, refused now if it cannot be read: before models are loaded."""
    if source is not None:
        read_template(source)
    return source

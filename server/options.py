"""Command-line options made from the settings, so that each setting is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from .settings import ServerSettings


def settings_command(run: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
    """A typer command with one option per setting, which calls ``run`` with those that were given.

    Values reach ``run`` as text: flags, variables and file lines are all checked by the settings, with
    the same messages.
    """

    def command(**options: Any) -> None:
        run({name: value for name, value in options.items() if value not in (None, [])})

    command.__doc__ = run.__doc__
    # typer reads the parameters of a command from its signature.
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(name, field) for name, field in ServerSettings.model_fields.items()]
    )
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind: Any = str | None
    metavar: str | None = "TEXT"
    if field.annotation is bool:
        kind, metavar, flag = bool | None, None, f"{flag}/--no-{flag[2:]}"
    elif isinstance(field.default, list):
        kind = list[str] | None
    elif int in (field.annotation, *get_args(field.annotation)):
        metavar = "INTEGER"
    elif field.annotation is float:
        metavar = str(extra.get("metavar", "SECONDS"))
    option = typer.Option(
        None,
        flag,
        help=f"{field.description}{_default(field)}",
        metavar=metavar,
        show_default=False,
        rich_help_panel=str(extra.get("panel", "Options")),
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _default(field: FieldInfo) -> str:
    """What help adds about the default; nothing where the description says it."""
    default = field.default
    if default is None or default == []:
        return ""
    if isinstance(default, bool):
        return f" (default: {'on' if default else 'off'})"
    if isinstance(default, ByteSize):
        return f" (default: {default.human_readable()})"
    return f" (default: {default})"

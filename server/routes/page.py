"""``GET /``: the page, and its files below ``/page``."""

from __future__ import annotations

from importlib.resources import files as resources
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

router = APIRouter(include_in_schema=False)

HEADERS = {
    # Nothing from elsewhere, nothing inline: text from the model can only ever be text.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered with 304: servers are updated
}


class PageFiles(StaticFiles):
    """The page's files, with its headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def files() -> PageFiles:
    """For mounting."""
    return PageFiles(directory=_folder())


@router.get("/")
async def page() -> HTMLResponse:
    """The page itself."""
    return HTMLResponse((_folder() / "index.html").read_text(encoding="utf-8"), headers=HEADERS)


def _folder() -> Path:
    return Path(str(resources("resispec.server") / "page"))

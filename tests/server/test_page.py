"""The page's files: served to everybody, small, self-contained, under a strict policy."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import SecretStr

FOLDER = Path(__file__).parents[2] / "server" / "page"
FILES = sorted(path for path in FOLDER.iterdir() if path.is_file())
MOST_BYTES = 150_000


async def test_needs_no_key(with_settings):
    async with with_settings(api_key=[SecretStr("one")]) as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        for name in re.findall(r'(?:src|href)="(page/[^"]+)"', page.text):
            assert (await http.get(f"/{name}")).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401


async def test_policy(http):
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for path in ("/", *(f"/page/{file.name}" for file in FILES)):
        response = await http.get(path)
        assert response.status_code == 200
        suffix = Path(path).suffix or ".html"
        assert response.headers["content-type"].split(";")[0] == kinds[suffix]
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_files_are_asked_for_again_cheaply(http):
    first = await http.get("/page/main.js")
    again = await http.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304


async def test_nothing_else_is_served(http):
    for path in ("/page/../settings.py", "/page/%2e%2e/settings.py", "/page/none.js", "/page/"):
        assert (await http.get(path)).status_code == 404
    assert (await http.post("/page/main.js")).status_code == 405


def test_is_small_and_self_contained():
    assert sum(file.stat().st_size for file in FILES) < MOST_BYTES
    for file in FILES:
        text = file.read_text()
        links = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert links == set(), f"{file.name} names {links}"
        # Markup out of strings is how text becomes code.
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick="):
            assert danger not in text, f"{file.name} uses {danger}"
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"\sstyle=|<style|<script(?![^>]*\ssrc=)", html)


def test_modules_import_what_exists():
    for file in FILES:
        if file.suffix == ".js":
            for name in re.findall(r'from "\./([^"]+)"', file.read_text()):
                assert (FOLDER / name).is_file(), f"{file.name} imports {name}"


async def test_the_page_learns_what_requests_may_ask_for(http):
    [model] = (await http.get("/v1/models")).json()["data"]
    limits = model["speculation"]
    assert limits["proposers"] == ["draft", "ngram", "prediction"]
    assert (limits["max_nodes"], limits["max_depth"]) == (12, 4)
    assert {"name": "resispec", "exact": True} in limits["verifiers"]

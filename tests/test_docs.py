"""The documents' links lead somewhere, and the names they give to code exist there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def links(page: Path) -> list[tuple[str, str]]:
    return [(text, target) for text, target in LINK.findall(page.read_text()) if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in links(page):
        path = (page.parent / target.partition("#")[0]).resolve() if target[0] != "#" else page
        assert path.exists(), f"{page.name}: [{text}] leads to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_code_exist_where_they_lead(page: Path) -> None:
    for text, target in links(page):
        if not target.endswith(".py") or not re.fullmatch(r"`[A-Za-z_][\w.]*`", text):
            continue
        source = (page.parent / target).read_text()
        for name in text.strip("`").split("."):
            found = re.search(rf"(def|class) {name}\b|^{name}\b", source, re.MULTILINE)
            assert found, f"{target} has no {name}"


def test_the_journey_names_code() -> None:
    named = [text for text, target in links(ROOT / "docs" / "journey.md") if target.endswith(".py")]
    assert len(named) > 20

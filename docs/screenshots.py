"""Takes the pictures of docs/page.md, from a server on the default pair.

``python docs/screenshots.py http://127.0.0.1:8000``
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "page"
SECONDS = 120_000  # milliseconds
QUESTION = "Write a short story about a lighthouse keeper and her cat."


def ask(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Seed", exact=True).fill("3")
    page.get_by_label("Longest answer", exact=True).fill("110")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Message").fill(QUESTION)
    page.get_by_label("Message").press("Enter")
    page.get_by_role("button", name="Stop", exact=True).wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for(timeout=SECONDS)
    words = page.locator(".messages :is(.head, .tail)").filter(has_text=re.compile("[a-z]{3}"))
    words.nth(4).click()
    page.locator("svg.tree").wait_for()
    page.wait_for_timeout(300)


def main(url: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        wide = browser.new_page(viewport={"width": 1280, "height": 800})
        wide.goto(url)
        ask(wide)
        wide.screenshot(path=FOLDER / "chat.png")
        wide.goto(f"{url}/#race")
        wide.locator("#race button[type=submit]").click()
        wide.locator(".headline").wait_for(timeout=SECONDS)
        wide.screenshot(path=FOLDER / "race.png")
        wide.goto(f"{url}/#exactness")
        wide.locator("figure.exact").wait_for()
        wide.screenshot(path=FOLDER / "exactness.png")
        narrow = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        narrow.goto(url)
        ask(narrow)
        narrow.mouse.move(1, 1)
        narrow.screenshot(path=FOLDER / "narrow-dark.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))

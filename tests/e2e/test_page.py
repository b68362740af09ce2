"""The page in a real browser, on a real server: what a person does with it, and what can go wrong."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, Route, expect

pytestmark = pytest.mark.slow

SECONDS = 30_000  # milliseconds: a busy machine, and nothing that would be worth a wait of its own
HOSTILE = "<script>window.stolen=1</script><img src=x onerror='window.stolen=1'>\u202egnp\u0000\u001b[31m "
ARABIC = "السماء زرقاء لأن الضوء يتشتت"
CHINESE = "天空是蓝色的，因为光会散射。"


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def set_number(page: Page, label: str, value: str) -> None:
    if not page.locator("#settings").is_visible():
        page.get_by_role("button", name="Settings").click()
    page.get_by_label(label, exact=True).fill(value)


def finished(page: Page) -> None:
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=SECONDS)


def answer(page: Page) -> str:
    return page.locator(".message.assistant .tokens").last.text_content() or ""


def tokens(page: Page) -> Locator:
    return page.locator(".message.assistant").last.locator(".token")


def go_on(page: Page) -> None:
    """Have answers end at their longest only: a random model may end one after any token."""

    def ask_for_all(route: Route) -> None:
        body: dict[str, Any] = route.request.post_data_json or {}
        route.continue_(post_data=body | {"ignore_eos": True})

    page.route("**/v1/chat/completions", ask_for_all)


def play(page: Page, pieces: list[tuple[str, str]]) -> None:
    """Answer chats with these (text, origin), a step each, in the server's place."""
    head = {"id": "chatcmpl-played", "object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = [
        {
            **head,
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": text},
                    "trace": [{"step": step, "tokens": [{"id": 1, "text": text, "origin": origin}]}],
                }
            ],
        }
        for step, (text, origin) in enumerate(pieces)
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def fulfil(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", fulfil)


def test_chat_shows_the_servers_own_answer(visit, tiny_server) -> None:
    page = visit(tiny_server.url)
    set_number(page, "Seed", "7")
    set_number(page, "Longest answer", "24")
    ask(page, "abcabc")
    finished(page)
    body = {"messages": [{"role": "user", "content": "abcabc"}], "seed": 7, "max_tokens": 24}
    told = httpx.post(f"{tiny_server.url}/v1/chat/completions", json=body).json()
    assert answer(page) == told["choices"][0]["message"]["content"]
    origins = {
        name for name in ("head", "tail", "correction", "bonus") if page.locator(f".messages .{name}").count()
    }
    assert origins & {"head", "tail"}
    assert origins & {"correction", "bonus"}
    speculation = told["metrics"]["speculative_decoding"]
    length = f"{speculation['mean_acceptance_length']:.2f} a speculative step"
    expect(page.locator(".messages .figures").last).to_contain_text(length)
    expect(page.locator(".messages .figures").last).to_contain_text("resispec, exact")
    # A second turn carries the first along.
    ask(page, "more")
    finished(page)
    assert page.locator(".message").count() == 4


def test_a_token_tells_where_it_came_from(visit, tiny_server) -> None:
    page = visit(tiny_server.url)
    set_number(page, "Seed", "7")
    set_number(page, "Longest answer", "24")
    ask(page, "abcabc")
    finished(page)
    kept = (
        page.locator(".messages .token.head, .messages .token.tail")
        .filter(has_text=re.compile(r"\S"), visible=True)
        .first
    )
    kept.hover()
    details = page.get_by_role("tooltip")
    expect(details).to_contain_text("target p =", timeout=SECONDS)
    expect(details).to_contain_text("depth")
    kept.click()
    title = page.locator(".step-title")
    expect(title).to_have_text(re.compile(r"Step \d+ of \d+"), timeout=SECONDS)
    number = int((title.text_content() or "").split()[1])
    shown = json.loads(page.evaluate("localStorage.getItem('resispec.conversation')"))[-1]["requestId"]
    url = f"{tiny_server.url}/v1/requests/{shown}/speculation"
    step = httpx.get(url, params={"start": number - 1, "limit": 1}).json()["steps"][0]
    assert page.locator(".inspector tbody tr").count() == len(step["candidates"])
    assert page.locator(".inspector tbody tr.kept").count() == sum(one["kept"] for one in step["candidates"])
    assert page.locator("svg.tree .node.refused").count() == sum(
        one["reached"] and not one["kept"] for one in step["candidates"]
    )
    refused = page.locator(".inspector tr.refused button").first
    if refused.count():
        refused.click()
        expect(page.locator(".reason")).to_contain_text(re.compile("refused|elsewhere|nothing was accepted"))
    page.get_by_role("button", name="Next step").click()
    expect(title).to_contain_text(f"Step {number + 1} of")
    page.get_by_label("Step", exact=True).press("Home")
    expect(title).to_contain_text("Step 1 of")
    expect(page.locator(".step .summary")).to_contain_text("the target drew one token")


def test_keyboard_alone(visit, tiny_server) -> None:
    page = visit(tiny_server.url)
    go_on(page)
    set_number(page, "Longest answer", "12")
    ask(page, "abcabc")
    finished(page)
    page.locator(".message.assistant .tokens").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tooltip")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".step-title")).to_be_visible(timeout=SECONDS)
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()


def test_stop(visit, tiny_server) -> None:
    page = visit(tiny_server.url)
    go_on(page)
    ask(page, "abc")
    expect(tokens(page).nth(3)).to_be_attached(timeout=SECONDS)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".answer-note").last).to_have_text("Stopped.")
    finished(page)
    assert answer(page)
    tiny_server.wait_for_metric("num_requests_running", lambda value: value == 0)


def test_an_error_is_said_where_one_looks(visit, tiny_server) -> None:
    page = visit(tiny_server.url, refusals=True)
    set_number(page, "Temperature", "-1")
    ask(page, "keep this question")
    finished(page)
    expect(page.locator(".answer-note.problem").last).to_contain_text("temperature")
    expect(page.locator(".message.user").last).to_have_text("keep this question")
    set_number(page, "Temperature", "0")
    set_number(page, "Longest answer", "5")
    page.get_by_role("button", name="Retry").last.click()
    expect(tokens(page).first).to_be_attached(timeout=SECONDS)
    finished(page)
    assert page.locator(".problem").count() == 0


def test_race(visit, tiny_server) -> None:
    page = visit(f"{tiny_server.url}/#race")
    for headline in ("Race again", "Race again"):
        page.locator("#race button[type=submit]").click()
        expect(page.locator(".headline")).to_contain_text("×", timeout=2 * SECONDS)
        expect(page.locator("#race button[type=submit]")).to_have_text(headline)
        # In float32 the greedy texts are equal, and the page has compared them.
        expect(page.locator(".result")).to_contain_text("The texts are equal, all 96 tokens.")
    expect(page.locator(".result")).to_contain_text("Races so far:")
    for clock in page.locator(".clock").all():
        assert re.fullmatch(r"\d+\.\d\d s", clock.text_content() or "")
    left, right = (lane.text_content() for lane in page.locator(".lane-text").all())
    assert left == right
    page.get_by_label("both at once").check()
    page.locator("#race button[type=submit]").click()
    expect(page.locator(".result")).to_contain_text("shared the machine", timeout=2 * SECONDS)


def test_exactness(visit, tiny_server) -> None:
    page = visit(f"{tiny_server.url}/#exactness")
    expect(page.locator("figure.exact")).to_contain_text("resispec", timeout=SECONDS)
    expect(page.locator("figure.inexact")).to_contain_text("off by 0.142")
    expect(page.locator("figure.inexact text.off").first).to_have_text(".442")
    page.get_by_label("Draft q, token 0").fill("-1")
    page.get_by_role("button", name="Add it up").click()
    expect(page.locator(".audit .problem")).to_be_visible()
    page.get_by_role("button", name="The example again").click()
    expect(page.locator("figure.inexact")).to_be_visible(timeout=SECONDS)


@pytest.mark.parametrize("width", [320, 390])
def test_narrow_screens(visit, tiny_server, width: int) -> None:
    page = visit(tiny_server.url, viewport={"width": width, "height": 640})
    go_on(page)
    set_number(page, "Longest answer", "40")
    page.get_by_role("button", name="Settings").click()
    ask(page, "abcabc")
    finished(page)
    tokens(page).filter(has_text=re.compile(r"\S"), visible=True).last.click()
    expect(page.locator(".step-title")).to_be_visible(timeout=SECONDS)
    for view in ("chat", "race", "exactness"):
        page.locator(f'.views a[href="#{view}"]').click()
        expect(page.locator(f"#{view}")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator('.views a[href="#chat"]').click()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_in_viewport()


def test_reload_while_an_answer_comes(visit, tiny_server) -> None:
    page = visit(tiny_server.url)
    go_on(page)
    ask(page, "abc")
    expect(tokens(page).nth(5)).to_be_attached(timeout=SECONDS)
    page.reload()
    expect(page.locator(".message.user")).to_have_text("abc")
    assert answer(page)
    expect(page.locator(".answer-note").last).to_contain_text("was closed before")
    tiny_server.wait_for_metric("num_requests_running", lambda value: value == 0)
    set_number(page, "Longest answer", "5")
    page.get_by_role("button", name="Retry").click()
    finished(page)
    assert tokens(page).count() == 5
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0
    page.reload()
    assert page.locator(".message").count() == 0


def test_hostile_text_is_only_text(visit, tiny_server) -> None:
    page = visit(tiny_server.url, refusals=True)  # the server knows nothing of a played answer
    play(page, [(HOSTILE, "head"), (HOSTILE, "<b>source</b>"), ("\n\n", "correction")])
    ask(page, HOSTILE)
    finished(page)
    assert answer(page) == HOSTILE + HOSTILE + "\n\n"
    assert (page.locator(".message.user").text_content() or "") == HOSTILE.strip()
    tokens(page).first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("‹202e›")
    page.reload()
    assert answer(page) == HOSTILE + HOSTILE + "\n\n"
    assert page.locator("main script, main img, main b").count() == 0
    assert page.evaluate("window.stolen") is None


def test_scripts_of_all_directions(visit, tiny_server) -> None:
    page = visit(tiny_server.url, refusals=True)  # the server knows nothing of a played answer
    play(page, [(part, "head") for part in re.split(r"(?= )", ARABIC)])
    ask(page, ARABIC)
    finished(page)
    body = page.locator(".message.assistant .tokens").last
    assert body.evaluate("element => getComputedStyle(element).direction") == "rtl"
    body.focus()
    page.keyboard.press("ArrowLeft")  # forward, in this direction
    page.keyboard.press("ArrowLeft")
    assert body.locator(".current").text_content() == ARABIC.split()[1].join((" ", ""))
    play(page, [(character, "tail") for character in CHINESE])
    ask(page, CHINESE)
    finished(page)
    assert answer(page) == CHINESE


def test_four_thousand_tokens(visit, tiny_server) -> None:
    page = visit(tiny_server.url, refusals=True)  # the server knows nothing of a played answer
    play(page, [(f" word{number}", "head" if number % 3 else "correction") for number in range(4000)])
    ask(page, "long")
    finished(page)
    expect(tokens(page)).to_have_count(4000)
    frames = page.evaluate(
        """async () => {
          const list = document.getElementById("messages");
          const times = [];
          for (let frame = 0; frame < 60; frame += 1) {
            const began = performance.now();
            list.scrollTop = (list.scrollHeight * frame) / 60;
            await new Promise(requestAnimationFrame);
            times.push(performance.now() - began);
          }
          return times.sort((a, b) => a - b);
        }"""
    )
    assert frames[30] < 100, f"half of the frames took more than {frames[30]:.0f} ms"
    tokens(page).last.hover()
    expect(page.get_by_role("tooltip")).to_be_visible()


def test_key(visit, serve, tiny_arguments) -> None:
    server = serve(*tiny_arguments, "--api-key", "right")
    page = visit(server.url, refusals=True)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("wants an API key", timeout=SECONDS)
    page.get_by_label("Key", exact=True).fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(dialog).to_contain_text("does not accept", timeout=SECONDS)
    page.get_by_label("Key", exact=True).fill("right")
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator("#model")).to_have_text("tiny", timeout=SECONDS)
    go_on(page)
    set_number(page, "Longest answer", "5")
    ask(page, "abc")
    expect(tokens(page).first).to_be_attached(timeout=SECONDS)
    assert "right" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    expect(page.locator("#model")).to_have_text("tiny", timeout=SECONDS)


def test_the_server_goes_and_comes_back(visit, serve, tiny_arguments) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    first = serve(*tiny_arguments, "--port", port)
    page = visit(first.url, refusals=True)
    set_number(page, "Seed", "7")  # the same tokens every time: some of a random text cannot be seen
    set_number(page, "Longest answer", "24")
    ask(page, "before")
    finished(page)
    first.stop()
    ask(page, "while it is away")
    expect(page.locator(".answer-note.problem").last).to_contain_text("cannot be reached", timeout=SECONDS)
    banner = page.locator("#connection")
    expect(banner).to_contain_text("conversation is safe")
    serve(*tiny_arguments, "--port", port)
    expect(banner).to_contain_text("The server is back", timeout=2 * SECONDS)
    page.get_by_role("button", name="Retry").last.click()
    expect(tokens(page).nth(5)).to_be_attached(timeout=SECONDS)
    assert page.locator(".message.user").count() == 2
    # What the first process knew is gone, and a page that has not looked at it before says so.
    page.reload()
    before = page.locator(".message.assistant").first.locator(".token")
    before.filter(has_text=re.compile(r"\S"), visible=True).first.click()
    expect(page.locator(".inspector")).to_contain_text("has forgotten", timeout=SECONDS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(visit, tiny_server, scheme: str) -> None:
    page = visit(tiny_server.url, color_scheme=scheme)
    go_on(page)
    set_number(page, "Longest answer", "16")
    ask(page, "abcabc")
    finished(page)
    tokens(page).filter(has_text=re.compile(r"\S"), visible=True).last.click()
    expect(page.locator(".step-title")).to_be_visible(timeout=SECONDS)
    for view in ("chat", "race", "exactness"):
        page.locator(f'.views a[href="#{view}"]').click()
        if view == "exactness":
            expect(page.locator("figure.exact")).to_be_visible(timeout=SECONDS)
        found = Axe().run(page)
        serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, json.dumps(serious, indent=1)[:3000]


def test_the_strip_shows_the_whole_server(visit, tiny_server) -> None:
    page = visit(tiny_server.url)
    rate = page.locator(".figure.rate dd")
    expect(rate).not_to_have_text("–", timeout=SECONDS)
    body = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True}
    httpx.post(f"{tiny_server.url}/v1/completions", json=body, timeout=60)
    expect(page.locator(".figure.length dd")).to_have_text(re.compile(r"\d\.\d\d"), timeout=SECONDS)


def test_requests_elsewhere_are_blocked_and_noticed(visit, tiny_server) -> None:
    """What the fixture looks at after every test is really there to be seen."""
    page = visit(tiny_server.url)
    elsewhere = "fetch('http://127.0.0.2:9/').then(() => 'sent', () => 'blocked')"
    assert page.evaluate(elsewhere) == "blocked"
    assert any("Content Security Policy" in text for text in visit.complaints)
    visit.complaints.clear()

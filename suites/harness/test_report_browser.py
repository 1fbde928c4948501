"""The HTML report in a real browser: it loads, filters, opens cases, needs neither mouse nor network, runs no text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import HOSTILE, TENSOR, case, pin, regression, view

from harness.report import RunView, html_report
from harness.report.html_data import BUDGET

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright's Python package is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MANY = 2000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=found, chromium_sandbox=os.getuid() != 0, args=["--disable-gpu"]
        )
        yield running
        running.close()


@dataclass
class Opened:
    """A page of the browser, and all that it complained about."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens the report of a run; a page that logs an error, shows a dialog or asks for more fails the test."""
    opened: list[Opened] = []

    def open_run(run: RunView, **how: Any) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(html_report(run), encoding="utf-8")
        page = browser.new_page(**how)
        found = Opened(page)
        opened.append(found)
        page.on("console", lambda said: found.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (found.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(file.as_uri())
        return found

    yield open_run
    for found in opened:
        found.page.close()
        assert found.complaints == []
        assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []


def shown(page: Any) -> list[str]:
    """Ids of the cases that the list shows."""
    return page.locator("#list tbody tr:visible .id").all_inner_texts()


DECLARED = {
    "cases": ["config"],
    "path": "config.size",
    "old": None,
    "new": None,
    "kind": None,
    "reason": "the size moved",
    "class_": "intended",
    "link": "https://example.org/pull/1",
    "unsupported": False,
}
SIZE = {"path": "config.size", "kind": "changed", "old": "1", "new": "2"}
PROFILED = {
    **TENSOR,
    "profile": {"histogram": [3, 0, *[1] * 15], "map": [[1e-3, 0.0], [None, 2e-3]], "rows": 2, "columns": 2},
}
MODULES = [
    {"module": f"layer{number}", "phase": phase, "error": 1e-4 * number, "noise": noise}
    for phase, noise in (("forward", 1e-7), ("backward", None))
    for number in range(4)
]
DIVERGENCE = {
    "why": "first diverges in layer1 (forward)",
    "module": "layer1",
    "phase": "forward",
    "ranks": [0],
    "detail": ["output 0: a → b"],
    "modules": MODULES,
}


@pytest.fixture
def run(tmp_path: Path) -> RunView:
    return view(
        tmp_path / "run",
        case("config", "declared", why="the size moved", differences=[SIZE], declared_by=[DECLARED]),
        case("config[fsdp]"),
        case("gpu", "not_run", why="needs the cuda lane"),
        case("load@verl-2", stack="verl-2"),
        regression("step", ("norm", "1", "2"), divergence=DIVERGENCE, tensors=[PROFILED]),
        regression("step[tp2]", ("norm", "1", "2"), ("rank1: gradients/layer.w", "3", "4")),
    )


def test_filters_by_words_verdict_and_area(run: RunView, open_report: Open) -> None:
    page = open_report(run).page
    assert len(shown(page)) == 6
    page.fill("#text", "config SIZE")
    assert shown(page) == ["config"]
    assert page.inner_text("#shown") == "1 of 6"
    page.click("#filter [type=reset]")
    page.locator(".chip.regression").click()
    assert shown(page) == ["config", "config[fsdp]", "gpu", "load@verl-2"]
    page.locator(".matrix a").first.click()
    assert shown(page) == ["config", "config[fsdp]"]
    page.select_option("#area", "")
    page.select_option("#subject", "verl-2 alone")
    assert shown(page) == ["load@verl-2"]


def test_sorts(run: RunView, open_report: Open) -> None:
    page = open_report(run).page
    page.click("#list th button[data-key=case]")
    first = shown(page)
    page.click("#list th button[data-key=case]")
    assert shown(page) == first[::-1]
    assert page.get_attribute("#list th", "aria-sort") == "descending"


def test_opens_a_case_and_follows_links(run: RunView, open_report: Open) -> None:
    page = open_report(run).page
    page.click("article.finding .id >> text='step'")
    assert page.inner_text("#case h1") == "step"
    assert page.locator("#case svg circle").count() == len(MODULES)
    assert page.locator("#case svg .dot.first").count() == 1
    assert page.locator("#case svg .heat").count() == 3
    assert page.locator("#case svg .odd").count() == 1
    assert "not declared" in page.inner_text("#case .tree")
    page.click("text=← all cases")
    assert page.is_visible("#list")
    page.locator("#list .id >> text='config'").first.click()
    assert "intended: the size moved" in page.inner_text("#case .tree")
    assert page.get_attribute("#case .tree a", "href") == "https://example.org/pull/1"
    page.go_back()
    assert page.is_visible("#list")
    page.go_forward()
    assert page.inner_text("#case h1") == "config"


def test_needs_no_mouse(run: RunView, open_report: Open) -> None:
    page = open_report(run).page
    page.keyboard.press("/")
    page.keyboard.type("step")
    page.keyboard.press("Enter")
    assert page.inner_text("#case h1") == "step"
    page.keyboard.press("j")
    page.wait_for_function("document.querySelector('#case h1').textContent === 'step[tp2]'")
    assert "rank1:" in page.inner_text("#case .tree")
    page.keyboard.press("Escape")
    page.wait_for_selector("#list", state="visible")
    assert page.evaluate("document.activeElement.textContent") == "step[tp2]"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    assert page.inner_text("#case h1") == "step"


def test_hostile_texts_stay_text(tmp_path: Path, open_report: Open) -> None:
    name = f"case{HOSTILE}"
    hostile = {**DECLARED, "reason": HOSTILE, "link": "javascript:alert(3)", "path": "*", "cases": ["*"]}
    run = view(
        tmp_path / "run",
        regression(
            name,
            (HOSTILE, HOSTILE, HOSTILE),
            declared_by=[hostile],
            configs=[{"field": HOSTILE, "old": HOSTILE, "new": HOSTILE}],
            divergence={**DIVERGENCE, "why": HOSTILE, "modules": [{**MODULES[1], "module": HOSTILE}]},
            tensors=[{**PROFILED, "name": HOSTILE, "message": HOSTILE}],
            area=HOSTILE,
            stack=HOSTILE,
        ),
        case("declared", "declared", differences=[SIZE], declared_by=[hostile]),
        old=[pin(HOSTILE, HOSTILE)],
        new=[pin(HOSTILE, f"{HOSTILE}2")],
    )
    page = open_report(run).page
    assert "<script>alert(1)</script>" in page.inner_text("article.finding")
    page.locator("#list .id").first.click()
    assert "<img src=x onerror=alert(2)>" in page.inner_text("#case h1")
    assert page.locator("img, script").count() == 2  # the data and the report's own
    page.goto(f"{page.url.partition('#')[0]}#/case/declared")
    assert page.locator("#case a[href^=javascript]").count() == 0
    page.set_content("<p>done</p>")


def test_two_thousand_cases_load_and_filter_fast(tmp_path: Path, open_report: Open) -> None:
    differences = [(f"config.layers[{number}].field", "x" * 60, "y" * 60) for number in range(20)]
    run = view(
        tmp_path / "run",
        *(
            regression(f"step[{number}]", *differences, why="a reason " * 9, area=f"area{number % 30}")
            for number in range(MANY)
        ),
    )
    page = open_report(run).page
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    took = page.evaluate(
        """() => {
          const text = document.getElementById("text"), start = performance.now();
          text.value = "step[19 area1";
          text.dispatchEvent(new Event("input", { bubbles: true }));
          document.body.getBoundingClientRect();
          return performance.now() - start;
        }"""
    )
    assert 0 < len(shown(page)) < MANY / 10
    assert loaded < 10_000, f"{loaded:.0f} ms to load"
    assert took < 1_000, f"{took:.0f} ms to filter"


def test_a_file_stays_small_however_much_differs(tmp_path: Path, open_report: Open) -> None:
    long = [(f"config.field_{number}", "x" * 600, "y" * 600) for number in range(60)]
    cases = [
        regression(f"step[{number}]", *long, tensors=[PROFILED] * 20, divergence=DIVERGENCE) for number in range(300)
    ]
    run = view(tmp_path / "run", *cases)
    page = open_report(run).page
    assert page.evaluate("document.documentElement.outerHTML.length") < 2 * BUDGET
    assert len(shown(page)) == 300
    page.locator("#list .id >> text='step[0]'").click()
    assert page.locator("#case .tree .leaf").count() == 60
    page.goto(f"{page.url.partition('#')[0]}#/case/step%5B299%5D")
    page.wait_for_selector("text=Told in brief")
    assert page.locator("#case .tree .leaf").count() == 5
    assert "… and 55 more" in page.inner_text("#case")


CONTRAST = """(selector) => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (colour) => colour.slice(0, 3).map((c) => linear(c / 255))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const solid = (element) => { const found = numbers(getComputedStyle(element).backgroundColor);
    return found[3] === 0 && element.parentElement ? solid(element.parentElement) : found; };
  return Math.min(...[...document.querySelectorAll(selector)].map((element) => {
    const [one, other] = [light(numbers(getComputedStyle(element).color)), light(solid(element))].sort((a, b) => b - a);
    return (one + 0.05) / (other + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readable_in_light_and_dark_and_on_a_narrow_screen(tmp_path: Path, open_report: Open, scheme: str) -> None:
    long = "x" * 200
    wide = regression(
        long, (long, long, long), divergence={**DIVERGENCE, "why": long}, tensors=[{**PROFILED, "name": long}]
    )
    run = view(tmp_path / "run", wide, case("config", "declared", differences=[SIZE], declared_by=[DECLARED]))
    page = open_report(run, color_scheme=scheme, viewport={"width": 380, "height": 800}).page
    for address in ("#/", f"#/case/{long}", "#/case/config"):
        page.goto(f"{page.url.partition('#')[0]}{address}")
        assert page.evaluate(CONTRAST, "h1, h2, p, a, .verdict, .old, .new, code, .quiet, td") >= 4.5
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 380
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]

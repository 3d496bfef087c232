"""The page in a real browser. Needs Chromium with its driver, and selenium:

    apt-get install --yes --no-install-recommends chromium chromium-driver
    pip install selenium && pytest tests/workers/browser_ui.py

Not collected by default, since not every machine has a browser.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from dataplane import DataPlane, open_plane
from tests.workers.runs import run, small_config
from tests.workers.ui_server import NASTY, served

T = TypeVar("T")


class Browser:
    """A page in headless Chromium, and what one does with it."""

    def __init__(self, address: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1400,1000"):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.address = address
        self.driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))

    def open(self, place: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}/#/{place}")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, found: Callable[[], T]) -> T:
        """What *found* gives as soon as it gives something; elements may be replaced meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException

        wait = WebDriverWait(self.driver, 20, 0.05, ignored_exceptions=[StaleElementReferenceException])
        return wait.until(lambda _: found())

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def finished(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of eight samples, two a prompt; one response and one prompt are hostile."""
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=3, grpo__num_generations_per_prompt=2)
    path = run(config, tmp_path_factory.mktemp("browser") / "run").path
    with open_plane(path / "plane") as plane:
        plane.replace("train", [plane.members(1)[0]], {"response_text": [NASTY], "prompt": [NASTY]})
    return path


@pytest.fixture(scope="module")
def browser(finished: Path) -> Iterator[Browser]:
    with served(finished) as address:
        opened = Browser(address)
        yield opened
        opened.driver.quit()


@pytest.fixture
def plane(finished: Path) -> Iterator[DataPlane]:
    with open_plane(finished / "plane", mode="r") as opened:
        yield opened


def test_the_overview_draws_its_curves_and_the_browser_has_nothing_to_complain_of(browser: Browser) -> None:
    browser.open("")
    browser.until(lambda: len(browser.all(".chart canvas")) >= 8)
    titles = browser.texts(".chart h3")
    assert titles[0].startswith("Gap to the teacher") and any(title.startswith("Staleness") for title in titles)
    assert browser.texts("#cards b")[0] == "3"
    assert browser.complaints() == []


def test_a_curve_shows_the_metrics_under_the_pointer(browser: Browser, plane: DataPlane) -> None:
    browser.open("")
    chart = browser.until(lambda: [c for c in browser.all(".chart") if c.text.startswith("Loss")])[0]
    ActionChains(browser.driver).move_to_element(chart.find_element(By.CSS_SELECTOR, ".u-over")).perform()
    shown = browser.until(lambda: [t.text for t in chart.find_elements(By.CSS_SELECTOR, ".u-value") if t.text != "–"])
    step, loss = int(shown[0]), float(shown[1])
    assert loss == pytest.approx(plane.steps()[step - 1].metrics["loss"], rel=1e-4)


def test_the_timeline_shows_a_lane_for_each_worker_and_its_waiting(browser: Browser) -> None:
    browser.open("timeline")
    rows = browser.until(lambda: [r.text.split() for r in browser.all("tbody tr")])
    assert [row[0] for row in rows] == ["generator", "teacher:rev", "teacher:sort", "trainer"]
    canvas = browser.all("canvas.lanes")[0]
    window = float(rows[0][3]) + float(rows[0][4])
    browser.driver.execute_script("document.querySelector('.bar button:nth-child(2)').click()")
    assert browser.until(lambda: _window(browser) < window * 0.9) and canvas.size["height"] > 100


def _window(browser: Browser) -> float:
    row = browser.all("tbody tr")[0].text.split()
    return float(row[3]) + float(row[4])


def test_samples_are_filtered_and_sorted(browser: Browser, plane: DataPlane) -> None:
    browser.open("samples")
    browser.until(lambda: browser.all("#samples tbody tr"))
    Select(browser.all("select[aria-label=agent]")[0]).select_by_value("rev")
    agents = "#samples td:nth-child(3)"
    browser.until(lambda: set(browser.texts(agents)) == {"rev"})
    next(b for b in browser.all("#samples th button") if b.text == "gap_mean").click()
    query = (
        "select sample_id from samples where agent = 'rev' order by gap_mean nulls last, partition, sample_id limit 50"
    )
    expected = [row["sample_id"] for row in plane.sql(query).to_pylist()]
    browser.until(lambda: browser.texts("#samples td:first-child") == expected)
    assert browser.complaints() == []


def test_what_a_model_wrote_stays_text(browser: Browser, plane: DataPlane) -> None:
    browser.open(f"samples?text={plane.members(1)[0]}")
    browser.until(lambda: NASTY in browser.texts("#samples td"))
    browser.open(f"sample/train/{plane.members(1)[0]}")
    browser.until(lambda: NASTY in browser.texts(".facts dd"))
    assert browser.driver.execute_script("return window.hacked") is None
    assert browser.all("main script, main img") == []
    assert browser.driver.title == "a <b>run</b> - opd"


def test_a_token_tells_its_numbers_and_takes_the_colour_of_its_gap(browser: Browser, plane: DataPlane) -> None:
    sample_id = plane.members(2)[1]
    query = f"select position, gap, advantage from tokens where sample_id = '{sample_id}' and gap is not null"
    worst = max(plane.sql(query).to_pylist(), key=lambda token: abs(token["gap"]))
    browser.open(f"sample/train/{sample_id}")
    selector = f".response.here .token[data-position='{worst['position']}']"
    [token] = browser.until(lambda: browser.all(selector))
    ActionChains(browser.driver).move_to_element(token).perform()
    [tip] = browser.until(lambda: [tip for tip in browser.all("#tip") if tip.is_displayed()])
    shown = dict(zip(*(browser.texts(f"#tip {tag}") for tag in ("dt", "dd")), strict=True))
    assert float(shown["gap"]) == pytest.approx(worst["gap"], rel=1e-4) and "advantage" in tip.text
    red, green = map(int, token.value_of_css_property("background-color").strip("rgba()").split(",")[:2])
    assert (red > green) == (worst["gap"] < 0)
    Select(browser.all("#layer")[0]).select_by_value("teacher_logprob")
    browser.until(lambda: "230, 126, 34" in browser.all(selector)[0].value_of_css_property("background-color"))


def test_the_responses_to_a_prompt_stand_side_by_side(browser: Browser, plane: DataPlane) -> None:
    sample_id = plane.members(2)[0]
    browser.open(f"sample/train/{sample_id}")
    boxes = browser.until(lambda: browser.all(".response"))
    assert len(boxes) == 2 and boxes[0].rect["y"] == boxes[1].rect["y"] and boxes[0].rect["x"] < boxes[1].rect["x"]
    assert len(browser.all("#tokens tbody tr")) == len(
        plane.get("train", [sample_id], ["input_ids"]).values("input_ids")[0]
    )


def test_a_recipe_of_the_cookbook_runs_at_a_click_and_a_query_by_keyboard(browser: Browser, plane: DataPlane) -> None:
    browser.open("sql")
    [recipe] = browser.until(lambda: [b for b in browser.all(".recipes button") if b.text == "Staleness"])
    recipe.click()
    assert browser.until(lambda: browser.texts("#answer th")) == ["staleness", "samples", "percent"]
    area = browser.all("#query")[0]
    area.clear()
    area.send_keys("select count(*) as rows_of_tokens from tokens", Keys.CONTROL, Keys.ENTER)
    browser.until(lambda: browser.texts("#answer th") == ["rows_of_tokens"])
    assert browser.texts("#answer td") == [str(plane.sql("select count(*) n from tokens")["n"][0].as_py())]


def test_a_wrong_query_is_explained(browser: Browser) -> None:
    browser.open("sql?q=select%20gapp%20from%20tokens")
    browser.until(lambda: browser.all("#ask"))[0].click()
    [error] = browser.until(lambda: browser.texts(".error"))
    assert "did you mean 'gap'" in error


def test_a_live_run_appears_without_a_reload(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane, served(tmp_path) as address:
        plane.create_partition("train", ["prompt", "reward"])
        opened = Browser(address)
        try:
            opened.open("")
            opened.until(lambda: opened.texts("#cards b")[:1] == ["0"])
            opened.until(lambda: "0 of 0" in opened.texts("#live")[0])
            plane.put("train", ["a"], {"prompt": ["x"], "reward": [1.0]})
            plane.seal(1, ["a"])
            plane.record_trained(1, {"loss": 0.5})
            opened.until(lambda: opened.texts("#cards b")[0] == "1" and opened.all(".chart canvas"))
            assert "live" in opened.texts("#live")[0]
        finally:
            opened.driver.quit()

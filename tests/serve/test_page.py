"""The page of `embmap serve`, used by a headless Chromium as a person would."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

import embmap
from tests.served import skip_without_server

skip_without_server()
pytest.importorskip("selenium", reason="the page's tests need selenium")

webdriver = pytest.importorskip("selenium.webdriver")
errors = pytest.importorskip("selenium.common.exceptions")
By, Keys, Service, WebDriverWait = (
    getattr(pytest.importorskip(f"selenium.webdriver.{module}"), name)
    for module, name in (
        ("common.by", "By"),
        ("common.keys", "Keys"),
        ("chrome.service", "Service"),
        ("support.wait", "WebDriverWait"),
    )
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and CHROMEDRIVER),
        reason="the page's tests need chromium and chromedriver (Debian: chromium-driver)",
    ),
]

# Angles in degrees: the neighbours of a word are those with the nearest angles.
FRUIT = {
    "apple": 0, "apricot": 7, "plum": 15, "pear": 27, "peach": 40, "cherry": 55, "grape": 75,
    "lemon": 95, "melon": 118, "quince": 145, "<b>fig</b>": 171, "a/b": 178,
}  # fmt: skip
MOVING = ["still", "slow", "fast", "gone", "back", "far"]
TOKEN = "a-token-that-nobody-guesses"


def write_files(folder):
    angles = np.radians(list(FRUIT.values()))
    vectors = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1).astype(np.float32)
    embmap.finalfusion.write(folder / "fruit.fifu", list(FRUIT), vectors)
    start = np.radians([0, 10, 25, 80, 100, 170])
    turn = np.radians([0, 2, 9, 14, -8, 3])
    angles = start + turn * np.arange(8)[:, None]
    history = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=2)
    quantized, scale = embmap.dwe.quantize(history, bits=9)
    embmap.dwe.write(folder / "moving.dwe", quantized, scale=scale)
    (folder / "moving.txt").write_text("\n".join(MOVING) + "\n")


def started(folder, *options):
    """A server of the files, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "embmap", "serve", "fruit.fifu", "moving.dwe"]
    command += ["--vocab", "moving=moving.txt", "--port", str(port), *options]
    with open(folder / f"server-{port}.log", "wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    base = f"http://127.0.0.1:{port}"
    for _ in range(200):
        if server.poll() is not None:
            break
        try:
            urlopen(f"{base}/", timeout=2).close()
            return server, base
        except (URLError, OSError):
            time.sleep(0.05)
    server.kill()
    server.wait()
    pytest.fail((folder / f"server-{port}.log").read_text())


def stopped(server):
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def base(folder):
    server, base = started(folder)
    yield base
    stopped(server)


class Page:
    """What a person sees of the page, and does."""

    def __init__(self, driver, base):
        self.driver = driver
        self.base = base

    def open(self, address=""):
        self.driver.get("about:blank")
        self.driver.get(f"{self.base}/#{address}")

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return [each.get_property("textContent") for each in self.all(selector)]

    def until(self, holds):
        flimsy = (errors.NoSuchElementException, errors.StaleElementReferenceException)
        return WebDriverWait(self.driver, 6, 0.02, flimsy).until(lambda _: holds())

    def neighbors(self, word):
        """The listed words, once the neighbors of `word` are listed."""
        title = f"Neighbours of {word}"
        self.until(lambda: self.texts("#neighbors-title") == [title])
        return self.texts("#neighbor-list li :first-child")

    def type(self, selector, *keys):
        field = self.find(selector)
        field.click()
        field.send_keys(*keys)

    def options(self, n):
        self.until(lambda: len(self.all("[role=option]")) == n)
        return self.texts("[role=option]")

    def message(self):
        self.until(lambda: self.find("#message").is_displayed())
        return self.find("#message").text

    def hash(self):
        return self.driver.execute_script("return location.hash")

    def resize(self, width, height):
        facts = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", facts)


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", *quiet):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_page_load_timeout(15)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, base):
    page = Page(browser, base)
    page.resize(1200, 900)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    yield page
    told = [entry["message"] for entry in browser.get_log("browser")]
    # Chromium itself notes every answer that is an error; the page asked for those.
    assert [line for line in told if "Failed to load resource" not in line] == []
    asked = [
        entry["message"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    addresses = [line.split('"url":"')[-1].split('"')[0] for line in asked]
    abroad = ("data:", "about:", f"{page.base}/")
    assert [address for address in addresses if not address.startswith(abroad)] == []


def test_typing_and_enter_lists_the_neighbors_in_order(page):
    page.open("file=fruit")
    page.type("#word", "apple", Keys.ENTER)
    assert page.neighbors("apple")[:5] == ["apricot", "plum", "pear", "peach", "cherry"]
    scores = [float(text) for text in page.texts("#neighbor-list .score")[:3]]
    assert scores == pytest.approx(np.cos(np.radians([7, 15, 27])), abs=6e-4)
    assert page.hash() == "#file=fruit&word=apple"
    assert page.driver.title.startswith("apple")


def test_completion_by_keyboard(page):
    page.open("file=fruit")
    page.until(lambda: page.find("#word").is_enabled() and page.find("#welcome").is_displayed())
    page.find("body").send_keys("/")
    word = page.find("#word")
    page.until(lambda: page.driver.switch_to.active_element == word)
    word.send_keys("p")
    options = page.options(3)
    assert sorted(options) == ["peach", "pear", "plum"]
    assert word.get_attribute("aria-expanded") == "true"
    word.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    active = page.find(f"#{word.get_attribute('aria-activedescendant')}")
    assert active.text == options[1]
    assert active.get_attribute("aria-selected") == "true"
    word.send_keys(Keys.ESCAPE)
    assert word.get_attribute("aria-expanded") == "false"
    assert word.get_property("value") == "p"
    word.send_keys(Keys.ARROW_UP)
    page.options(3)
    word.send_keys(Keys.ARROW_UP, Keys.ENTER)
    assert page.neighbors(options[2])


def test_the_map_has_a_label_for_each_word_and_a_click_moves_on(page):
    page.open("file=fruit&word=pear&n=5")
    neighbors = page.neighbors("pear")
    assert len(neighbors) == 5
    page.until(lambda: len(page.all("#map text")) == 6)
    assert sorted(page.texts("#map text")) == sorted([*neighbors, "pear"])
    boxes = [each.rect for each in page.all("#map text")]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = (
                min(a["x"] + a["width"], b["x"] + b["width"]) <= max(a["x"], b["x"]) + 1
                or min(a["y"] + a["height"], b["y"] + b["height"]) <= max(a["y"], b["y"]) + 1
            )
            assert apart, (a, b)
    (label,) = [each for each in page.all("#map a text") if each.text == "peach"]
    label.click()
    page.neighbors("peach")
    page.find("#neighbor-list a").click()
    page.until(lambda: "word=peach" not in page.hash())
    page.driver.back()
    page.driver.back()
    assert page.neighbors("pear") == neighbors


def test_an_unknown_word_is_said_to_be_unknown(page):
    page.open("file=fruit&word=apple")
    page.neighbors("apple")
    word = page.find("#word")
    word.clear()
    word.send_keys("peaches", Keys.ENTER)
    page.until(lambda: "peaches" in page.message())
    assert "“peaches” is not in fruit" in page.message()
    page.until(lambda: page.texts("#message a") == ["peach"])
    assert not page.find("#results").is_displayed()
    page.find("#message a").click()
    page.neighbors("peach")
    assert not page.find("#message").is_displayed()


def test_words_are_text_never_markup(page):
    page.open("file=fruit&word=" + "%3Cb%3Efig%3C/b%3E&with=%3Ci%3Eno%3C/i%3E&n=20")
    assert "a/b" in page.neighbors("<b>fig</b>")
    page.until(lambda: any("<i>no</i>" in text for text in page.texts("#compared")))
    assert page.all("#results i") == []
    assert page.texts("#neighbors-title b") == ["<b>fig</b>"]


def test_two_words_compared(page):
    page.open("file=fruit&word=apple")
    page.neighbors("apple")
    page.type("#with", "plum", Keys.ENTER)
    page.until(lambda: page.texts("#compared .big"))
    (cosine,) = page.texts("#compared .big")
    assert float(cosine) == pytest.approx(np.cos(np.radians(15)), abs=6e-4)
    common = page.texts("#compared .common a")
    assert common[0] == "apricot"
    assert {"apple", "plum"}.isdisjoint(common)
    page.find("#with-clear").click()
    page.until(lambda: page.texts("#compared .big") == [])


def test_trajectories_are_drawn_and_the_time_step_chosen(page):
    page.open("file=moving&word=still&n=5")
    assert page.neighbors("still")[0] == "slow"
    page.until(lambda: page.all("#chart canvas"))
    page.type("#line", "fast", Keys.ENTER)
    page.until(lambda: page.texts("#chart .u-label") == ["step", "still", "fast"])
    assert page.texts("#chips li b, #chips li a") == ["still", "fast"]
    described = page.find("#chart").get_attribute("aria-label")
    assert "over 8 steps" in described
    assert f"fast from 1.000 to {np.cos(np.radians(63)):.2f}" in described
    page.type("#to", "still", Keys.ENTER)
    page.until(lambda: "“still”" in page.find("#chart").get_attribute("aria-label"))
    page.find("#table-box summary").click()
    page.until(lambda: len(page.all("#table tbody tr")) == 8)
    value = float(page.texts("#table td:last-child")[0])
    assert value == pytest.approx(np.cos(np.radians(25)), abs=0.01)
    page.find("#step").send_keys(Keys.END)
    page.until(lambda: "t=7" in page.hash())
    page.until(lambda: page.texts("#neighbor-list a")[:3] == ["slow", "back", "fast"])
    page.until(lambda: len(page.all("#map text")) == 6)
    page.find("#chips button").click()
    page.until(lambda: page.texts("#chart .u-label") == ["step", "still"])


@pytest.mark.parametrize("labels", [[*range(1900, 1980, 10)], [*range(1, 9)], [*"abcdefgh"]])
def test_time_steps_have_their_labels(page, folder, labels):
    listed = json.dumps({"vocab": MOVING, "years": labels})
    (folder / "labelled.json").write_text(listed, "utf-8")
    shutil.copy(folder / "moving.dwe", folder / "labelled.dwe")
    server, page.base = started(folder, "labelled.dwe", "--vocab", "labelled=labelled.json")
    try:
        page.open("file=labelled&word=still&n=5&with=far")
        page.until(lambda: page.all("#chart canvas"))
        assert f"8 time steps, {labels[0]} to {labels[-1]}" in page.find("#about").text
        assert page.find("#step-value").text == str(labels[0])
        described = page.find("#chart").get_attribute("aria-label")
        assert f"from {labels[0]} to {labels[-1]}:" in described
        page.until(lambda: page.texts("#chart .u-value")[:1] == [str(labels[0])])
        page.find("#table-box summary").click()
        page.until(lambda: page.texts("#table tbody th") == list(map(str, labels)))
        page.find("#step").send_keys(Keys.ARROW_RIGHT)
        page.until(lambda: "t=1" in page.hash())
        page.until(lambda: page.find("#step-value").text == str(labels[1]))
        page.until(lambda: f"cosine at {labels[1]} of" in page.find("#compared").text)
        page.until(lambda: page.texts("#chart .u-value")[:1] == [str(labels[1])])
        assert not page.find("#message").is_displayed()
        assert page.driver.get_log("browser") == []
    finally:
        stopped(server)


def test_the_address_holds_it_all(page):
    address = "file=moving&word=slow&n=5&t=3&line=gone&to=back&with=fast"
    page.open(address)
    for _ in range(2):
        page.neighbors("slow")
        page.until(lambda: page.texts("#chart .u-label") == ["step", "slow", "gone"])
        page.until(lambda: page.texts("#compared .big"))
        values = [page.find(f"#{name}").get_property("value") for name in ("file", "word", "n")]
        assert values == ["moving", "slow", "5"]
        values = [page.find(f"#{name}").get_property("value") for name in ("step", "to", "with")]
        assert values == ["3", "back", "fast"]
        assert page.hash() == f"#{address}"
        page.driver.refresh()


def test_another_file_is_chosen(page):
    page.open("file=moving&word=slow")
    page.neighbors("slow")
    page.find("#file").send_keys("fruit")
    assert "“slow” is not in fruit" in page.message()
    page.driver.back()
    page.neighbors("slow")
    assert page.find("#time").is_displayed()


@pytest.mark.parametrize("address", ["", "file=fruit&word=plum&with=pear&n=20",
                                     "file=moving&word=slow&line=fast&with=far"])  # fmt: skip
def test_a_phone_needs_no_scrolling_sideways(page, address):
    page.resize(360, 740)
    page.open(address)
    if address:
        page.until(lambda: page.all("#map text") and page.texts("#compared .big"))
    else:
        page.until(lambda: page.find("#welcome").is_displayed())
    if "moving" in address:
        page.until(lambda: page.all("#chart canvas"))
    width = page.driver.execute_script("return document.documentElement.scrollWidth")
    assert width == 360
    too_wide = "return [...document.querySelectorAll('main *, header *')].filter(e => "
    too_wide += "e.getClientRects().length && !e.closest('.sr, .skip, .u-over, .u-under') && "
    too_wide += "e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))"
    assert page.driver.execute_script(too_wide) == []


def test_the_token_is_asked_for_once_and_a_server_that_is_gone_is_said_to_be(page, folder):
    (folder / "token").write_text(TOKEN)
    server, page.base = started(folder, "--token-file", "token")
    try:
        page.open("file=fruit&word=apple")
        page.until(lambda: page.find("#token").is_displayed())
        page.type("#token", "wrong", Keys.ENTER)
        page.until(lambda: page.find("#token-why").is_displayed())
        page.type("#token", TOKEN, Keys.ENTER)
        assert page.neighbors("apple")
        page.driver.refresh()
        assert page.neighbors("apple")
        assert not page.find("#token-dialog").is_displayed()
    finally:
        stopped(server)
    word = page.find("#word")
    word.clear()
    word.send_keys("plum", Keys.ENTER)
    assert "does not answer" in page.message()
    assert page.find("#message button").text == "Try again"


def test_files_that_cannot_be_searched_say_why(page, folder):
    vectors = np.eye(3, dtype=np.float32)
    embmap.cvc.write(folder / "bare.cvc", vectors)
    embmap.embd.write(folder / "odd.weights", {"bias": vectors[0]}, vocab=["a", "b"])
    embmap.finalfusion.write(folder / "gone.fifu", ["a", "b", "c"], vectors)
    server, page.base = started(folder, "bare.cvc", "odd.weights", "gone.fifu")
    try:
        page.open("file=gone&word=a")
        assert sorted(page.neighbors("a")) == ["b", "c"]
        (folder / "gone.fifu").rename(folder / "elsewhere.fifu")
        page.driver.refresh()
        page.until(lambda: "gone cannot be read by the server now" in page.message())
        assert not page.find("#results").is_displayed()
        (folder / "elsewhere.fifu").rename(folder / "gone.fifu")
        page.find("#message button").click()
        assert sorted(page.neighbors("a")) == ["b", "c"]
        for name, lacks in (("bare", "does not contain words"), ("odd", "one vector")):
            page.find(f"#file option[value={name}]").click()
            page.until(lambda lacks=lacks: lacks in page.message())
            assert not page.find("#word").is_enabled()
            assert not page.find("#results").is_displayed()
        page.find("#file option[value=fruit]").click()
        page.until(lambda: page.find("#welcome").is_displayed())
        assert page.find("#word").is_enabled()
    finally:
        stopped(server)


def test_words_that_no_path_can_hold(page, folder):
    words = [".", "..", "a/b", "%2e", "#", "?"]
    integers = np.random.default_rng(1).integers(-90, 90, (4, len(words), 8)).astype(np.int16)
    embmap.dwe.write(folder / "odd.dwe", integers, scale=0.1)
    (folder / "odd.txt").write_text("\n".join(words) + "\n")
    server, page.base = started(folder, "odd.dwe", "--vocab", "odd=odd.txt")
    try:
        page.open("file=odd")
        page.until(lambda: page.find("#welcome").is_displayed())
        for word in words:
            page.driver.execute_script("arguments[0].value = ''", page.find("#word"))
            page.type("#word", word, Keys.ENTER)
            assert sorted(page.neighbors(word)) == sorted(set(words) - {word})
            page.until(lambda: page.all("#chart canvas"))
            page.until(lambda word=word: word in page.texts("#chips b"))
            page.until(lambda word=word: f": {word} from" in page.find("#chart").accessible_name)
    finally:
        stopped(server)


def test_forced_colors_keep_the_map_readable(page):
    forced = {"name": "forced-colors", "value": "active"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [forced]})
    try:
        page.open("file=fruit&word=plum")
        page.until(lambda: page.all("#map text"))
        of = "return getComputedStyle(document.querySelector(arguments[0])).fill"
        text = page.driver.execute_script(of, "#map text")
        ground = page.driver.execute_script(
            "return getComputedStyle(document.body).backgroundColor"
        )
        assert text != ground
        system = page.driver.execute_script(
            "document.body.style.setProperty('outline-color', 'CanvasText');"
            "return getComputedStyle(document.body).outlineColor"
        )
        assert page.driver.execute_script(of, "#map circle") == system
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

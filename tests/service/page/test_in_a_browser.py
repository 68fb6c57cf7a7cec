"""The page as a person sees it, in a real browser, while a PPO example runs and after it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from controller.driver import PpoDriver
from controller.driver_config import Mode
from examples.tiny.recipe import role_factories
from tests.examples.recipe_runs import save_random_policy, small_recipe
from tests.service.page.browser import running_browser
from tests.waiting import wait_until
from transferqueue.service.cli import main
from transferqueue.service.page.server import PageServer
from workers import LocalWorkerGroup
from workers.role_groups import RoleGroups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        client.status()
        yield client


@pytest.fixture(scope="module")
def server(service: tq.Service, client: tq.Client) -> Iterator[PageServer]:
    with PageServer(service.address, interval_s=0.1) as server:
        yield server


@pytest.fixture(scope="module")
def browser(server: PageServer) -> Iterator[Any]:
    with running_browser() as browser:
        first = Shown(browser, server.address)  # what stays open from the first tab on is there now
        first.wait_for("#content:not([hidden])")
        first.tab.close()
        yield browser


class Shown:
    """One tab, and what it complained of."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.tab = browser.new_page(viewport={"width": 1280, "height": 1000}, **options)
        self.complaints: list[str] = []
        self.tab.on("console", self._hear)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(address)

    def _hear(self, said: Any) -> None:
        if not said.text.startswith("Canvas2D: Multiple readback"):  # a test looks at pixels
            self.complaints.append(said.text)

    def wait_for(self, selector: str) -> None:
        self.tab.wait_for_selector(selector, timeout=20_000)

    def numbers(self) -> dict[str, str]:
        """Path in the status -> the number that the page puts in words."""
        read = "all => all.map(one => [one.dataset.path, one.dataset.raw])"
        return dict(self.tab.eval_on_selector_all("[data-path]", read))

    def text(self, selector: str) -> str:
        return str(self.tab.inner_text(selector))


@pytest.fixture
def shown(browser: Any, server: PageServer) -> Iterator[Shown]:
    made = Shown(browser, server.address)
    yield made
    made.tab.close()
    assert made.complaints == [], "the browser refused something, or a script failed"


def status_json(service: tq.Service) -> dict[str, Any]:
    printed = CliRunner().invoke(main, ["status", "--json", "--address", service.address])
    found: dict[str, Any] = json.loads(printed.output)
    return found


def at(value: Any, path: str) -> Any:
    """What stands at a dotted path; names of partitions and fields have dots of their own."""
    if not path:
        return value
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        return at(value[int(head)], rest)
    key = next(key for key in value if path == key or path.startswith(f"{key}."))
    return at(value[key], path[len(key) + 1 :])


def mismatches(shown: Shown, status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    numbers = {path: (raw, str(at(status, path))) for path, raw in shown.numbers().items()}
    return {path: pair for path, pair in numbers.items() if pair[0] != pair[1]}


def test_during_and_after_a_run_of_ppo_the_numbers_are_those_of_the_status(
    service: tq.Service, client: tq.Client, shown: Shown, tmp_path: Path
) -> None:
    recipe = small_recipe()
    save_random_policy(recipe, tmp_path / "weights.pt")
    factories = role_factories(recipe, tmp_path / "weights.pt", num_rollouts=2)
    config = recipe.driver_config(num_steps=4, mode=Mode.FULLY_ASYNC)
    seen = []
    with (
        RoleGroups(factories, lambda _, w: LocalWorkerGroup(w, 1, service=service)) as roles,
        PpoDriver(client, roles, recipe.prompts(), recipe.settings.dataflow(), config) as driver,
    ):
        for _ in driver.run():
            shown.wait_for("#partitions input[value='train']")
            shown.tab.check("#partitions input[value='train']")
            out = client.status()["partitions"]["train"]["rows_handed_out"]
            shown.tab.wait_for_function(
                "least => least <= "
                "+document.querySelector('[data-path$=\".train.rows_handed_out\"]')?.dataset.raw",
                arg=out,
            )
            seen.append((out, shown.text("#state")))
        roles.reports()
        stages = {(row["role"], row["method"]) for row in client.status()["stages"]}
    assert [state for _, state in seen] == ["live"] * 4
    assert seen[0][0] < seen[-1][0], "it ran"
    assert any(method == "update_actor" for _, method in stages)

    for name in client.status()["partitions"]:
        shown.tab.check(f"#partitions input[value='{name}']")
        wait_until(lambda: not mismatches(shown, status_json(service)), 15)
        assert f"partitions.{name}.bytes" in shown.numbers()
    paths = shown.numbers()
    assert {"claims_out", "shards.0.used_bytes", "shards.1.rows"} <= paths.keys()
    assert any(".tasks." in path for path in paths)
    told = {f"{role}.{method}.read": 0 for role, method in stages}
    for row in client.status()["stages"]:
        told[f"{row['role']}.{row['method']}.read"] += row["read_bytes"]
    read = "all => all.map(one => [one.dataset.stage, +one.dataset.raw])"
    found = dict(shown.tab.eval_on_selector_all("[data-stage$='.read']", read))
    assert found == told


def test_it_is_used_by_keyboard(client: tq.Client, shown: Shown) -> None:
    handle = client.put({"ids": torch.zeros(8, 4)}, partition="a")
    client.put({"rewards": torch.zeros(2)}, handle=handle[:2])
    client.put({"ids": torch.zeros(3, 4)}, partition="b")
    client.wait(handle[:2], fields=["rewards"])
    shown.wait_for("#partitions input[value='b']")
    shown.tab.focus("#partitions input[value='a']")
    shown.tab.keyboard.press("Space")
    shown.tab.wait_for_function(
        "() => document.getElementById('labels').innerText.includes('rewards')"
    )
    shown.tab.focus("#matrix")
    assert shown.text("#readout") == "sample 1: all have ids"
    shown.tab.keyboard.press("ArrowDown")
    shown.tab.keyboard.press("End")
    assert shown.text("#readout") == "sample 8: none have rewards"
    shown.tab.focus("#partitions input[value='a']")
    shown.tab.keyboard.press("ArrowRight")
    shown.tab.wait_for_function("() => document.getElementById('facts').innerText.startsWith('3 ')")
    shown.tab.keyboard.press("Tab")
    shown.tab.keyboard.press("p")
    assert shown.text("#state") == "paused"
    assert shown.tab.get_attribute("#pause", "aria-pressed") == "true"
    for name in ("a", "b"):
        client.drop_partition(name)


def test_names_are_text_and_never_markup(client: tq.Client, shown: Shown) -> None:
    evil = "<img src=x onerror=alert(1)>"
    client.put({evil: torch.zeros(2)}, partition=evil)
    shown.wait_for("#partitions label:has-text('<img')")
    shown.tab.check("#partitions label:has-text('<img') input")
    shown.tab.wait_for_function(
        "() => document.getElementById('labels').innerText.includes('<img')"
    )
    assert shown.tab.query_selector("main img") is None
    client.drop_partition(evil)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(browser: Any, server: PageServer, scheme: str) -> None:
    shown = Shown(browser, server.address, color_scheme=scheme)
    shown.wait_for("#content:not([hidden])")
    colors = shown.tab.evaluate(
        """() => {
          const style = getComputedStyle(document.documentElement);
          const on = document.createElement("canvas").getContext("2d");
          const read = (name) => {
            on.fillStyle = style.getPropertyValue(`--${name}`).trim();
            on.fillRect(0, 0, 1, 1);
            return [...on.getImageData(0, 0, 1, 1).data].slice(0, 3);
          };
          const names = ["paper", "card", "ink", "soft", "inset", "accent", "accent-ink",
            "good", "good-back", "warn", "warn-back", "bad", "bad-back",
            "ready", "claimed", "acked", "dead"];
          return Object.fromEntries(names.map((name) => [name, read(name)]));
        }"""
    )
    shown.tab.close()
    text = "ink/card ink/paper soft/card soft/paper soft/inset accent-ink/accent accent/card"
    text += " good/good-back warn/warn-back warn/card bad/bad-back bad/card"
    for ink, back in (pair.split("/") for pair in text.split()):
        assert contrast(colors[ink], colors[back]) >= 4.5, (ink, back)
    for shape in ("ready", "claimed", "acked", "dead"):
        assert contrast(colors[shape], colors["inset"]) >= 3, shape
    assert (luminance(colors["paper"]) < 0.5) == (scheme == "dark")


def luminance(color: list[int]) -> float:
    """Relative luminance, WCAG 2.2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
              for c in (part / 255 for part in color)]  # fmt: skip
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_a_token_lets_a_person_in(browser: Any, service: tq.Service, client: tq.Client) -> None:
    with PageServer(service.address, token=TOKEN, interval_s=0.1) as server:
        shown = Shown(browser, server.address)
        shown.wait_for("#login:not([hidden])")
        assert shown.tab.is_hidden("#content")
        shown.tab.keyboard.type("not the token of it")
        shown.tab.keyboard.press("Enter")
        shown.wait_for("#refused:has-text('not the token')")
        shown.tab.fill("#token", TOKEN)
        shown.tab.keyboard.press("Enter")
        shown.wait_for("#content:not([hidden])")
        assert shown.tab.is_hidden("#login")
        assert TOKEN not in shown.tab.url
        shown.tab.close()


def test_a_page_whose_server_ends_says_so(browser: Any, service: tq.Service) -> None:
    with PageServer(service.address, interval_s=0.1) as server:
        shown = Shown(browser, server.address)
        shown.wait_for("#content:not([hidden])")
    shown.wait_for("#state:has-text('gone')")
    shown.tab.close()


def test_a_million_samples_are_drawn_at_once(client: tq.Client, shown: Shown) -> None:
    rows = 1_000_000
    ones = torch.ones(rows, dtype=torch.uint8)
    handle = client.put({"f0": ones}, partition="million")
    for field in range(1, 20):
        part = rows - field * 50_000
        client.put({f"f{field}": ones[:part]}, handle=handle[:part])
    client.wait(handle[:1], fields=["f19"])
    shown.wait_for("#partitions input[value='million']")
    shown.tab.evaluate("() => performance.clearMeasures('picture')")
    shown.tab.check("#partitions input[value='million']")
    shown.tab.wait_for_function(
        "() => document.querySelectorAll('#labels div').length === 20", timeout=20_000
    )
    durations = shown.tab.evaluate(
        "() => performance.getEntriesByName('picture').map(each => each.duration)"
    )
    print(f"1,000,000 x 20, from request to canvas: {durations[-1]:.0f} ms")
    assert shown.text("#labels div:nth-child(11)").split() == ["f10", "50", "%"]
    left, middle, right = shown.tab.evaluate(
        """() => {
          const canvas = document.getElementById("matrix"), on = canvas.getContext("2d");
          const y = Math.round(canvas.height * (10.4 / 20));
          return [0.02, 0.45, 0.55].map((x) =>
            on.getImageData(Math.round(x * canvas.width), y, 1, 1).data.join());
        }"""
    )
    assert left == middle != right

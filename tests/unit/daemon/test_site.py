"""The status page: what it says, in which order, that no name gets out of its place, and that it stays small."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import html5lib
import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import Position, TopicName
from offloaderd.daemon.status_page.site import ASSETS, HEADERS
from offloaderd.metadata.topic_map.unnamed import UnnamedPlace
from tests.unit.daemon.scene import HOSTILE, Scene, lost, opened, stalled, status, topic

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import aiohttp

REAL_TIME = "HTTP"

PAGES = (
    "/status",
    "/status?q=topic&sort=rate&page=2",
    "/status?only=troubled",
    "/status?topic=shop/orders-1/topic-00001",
)
ACTIVE = {"script", "iframe", "object", "embed", "base", "style", "img", "foreignObject"}


def parsed(text: str) -> Element:
    """Parse a page as a browser does; anything that is not as HTML has to be is an error."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    return parser.parse(text)  # type: ignore[no-any-return]  # html5lib has no word for its tree


def name_of(element: Element) -> str:
    """Return an element's name, of SVG as well."""
    return str(element.tag).rpartition("}")[2]


def words(element: Element | None) -> str:
    """Return all text of an element, blanks as one."""
    assert element is not None
    return " ".join(" ".join(element.itertext()).split())


def rows(page: Element) -> list[list[str]]:
    """Return the lines of the table of topics."""
    table = page.find(".//div[@class='scroll']/table/tbody")
    assert table is not None
    return [[words(cell) for cell in line] for line in table]


async def page(client: aiohttp.ClientSession, path: str) -> Element:
    """Return a page that is there."""
    async with client.get(path) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        return parsed(await answer.text())


async def test_the_page_says_how_the_daemon_is() -> None:
    """State, version, memory, lag and dependencies are there, and what is down is told with its message."""
    scene = Scene([status(1), stalled(2), lost(3)])
    scene.health.serving()
    scene.metrics.read_entries.labels(source="objects").inc(42)
    scene.metrics.read_choice_entries.labels(source="objects", why="fell_back_missing").inc(7)
    async with opened(scene) as client:
        found = await page(client, "/status")
    text = words(found.find(".//main"))
    assert "Daemon offloaderd-1" in text
    assert "State serving Version 1.2.3" in text
    assert "90.0 MiB of 512.0 MiB" in text
    assert "objects DOWN: <b>no answer</b>" in text
    assert "3,000 entries" in text
    assert "In trouble: 2 of 3 topics" in text
    assert "topic-00002 : stalled: the bucket is full" in text
    assert "topic-00003 : a ledger is not at the source any more" in text
    assert "bucket 42 0 B 7" in text


async def test_the_page_has_alarms_and_places_that_the_settings_do_not_name() -> None:
    """The daemon's alarms as text, and each topic with its place; its own page has what lies there."""
    there = UnnamedPlace(bucket="old", prefix="p/", segments=2, segment_bytes=2048)
    scene = Scene([status(1, unnamed=(there,)), status(2)], alarms=("the settings do not name <i>old</i>",))
    async with opened(scene) as client:
        text = words((await page(client, "/status")).find(".//main"))
        of_topic = words((await page(client, f"/status?topic={topic(1)}")).find(".//main"))
    assert "ALARM the settings do not name <i>old</i>" in text
    assert "In trouble: 1 of 2 topics" in text
    assert "topic-00001 : the settings do not name old/p/, where there are 2 segments (2.0 KiB)" in text
    assert "NOT NAMED old/p/: 2 segments (2.0 KiB)" in of_topic


async def test_topics_come_by_lag_or_as_asked() -> None:
    """The list is sorted by the age of the oldest entry unless another order is asked for; names break ties."""
    topics = [status(number) for number in (3, 1, 2)]
    topics[0] = replace(topics[0], lag_bytes=1 << 40)
    topics[1] = replace(topics[1], open_segment_bytes=1 << 40)
    topics[2] = replace(topics[2], state="stalled", stalled_reason="x")
    async with opened(Scene(topics)) as client:

        async def order(query: str) -> list[str]:
            return [line[0][-1] for line in rows(await page(client, f"/status{query}"))]

        assert await order("") == ["3", "2", "1"]
        assert await order("?sort=bytes") == ["3", "2", "1"]
        assert (await order("?sort=segment"))[0] == "1"
        assert await order("?sort=topic") == ["1", "2", "3"]
        assert (await order("?sort=state"))[0] == "2"
        assert await order("?only=troubled") == ["2"]
        heading = (await page(client, "/status?sort=bytes")).find(".//th[@aria-sort]")
        assert words(heading) == "Lag bytes"


async def test_rates_sort_and_show() -> None:
    """The rate of a topic is what went into its segments between the last two samples."""
    scene = Scene([status(1), status(2)])
    await scene.board.sampler.sample()
    scene.statuses = [status(1), replace(status(2), taken_bytes=10 << 20, taken_entries=100)]
    await scene.clock.advance(10)
    await scene.board.sampler.sample()
    async with opened(scene) as client:
        first = rows(await page(client, "/status?sort=rate"))[0]
        async with client.get("/status.json?sort=rate") as answer:
            found = await answer.json()
    assert first[0].endswith("topic-00002")
    assert first[8] == "1.0 MiB/s"
    assert found["topics"][0]["taken_entries_per_s"] == 10


async def test_thousands_of_topics_are_pages_of_fifty() -> None:
    """A page shows fifty topics, looks up the owners of these alone, and stays under 100 kB; links lead on."""
    scene = Scene([status(number) for number in range(5000)])
    async with opened(scene) as client:
        async with client.get("/status?q=orders-3&page=2") as answer:
            text = await answer.text()
        found = parsed(text)
        assert len(rows(found)) == 50
        assert len(scene.completions) == 50
        assert len(text) < 100_000
        assert "page 2 of 15" in words(found)
        links = [str(link.get("href")) for link in found.findall(".//nav/a")]
        assert [parse_qs(urlsplit(link).query) for link in links] == [
            {"q": ["orders-3"]},
            {"q": ["orders-3"], "page": ["3"]},
        ]
        last = await page(client, "/status?q=orders-3&page=999")
        assert "page 15 of 15" in words(last)
        nothing = await page(client, "/status?q=nosuch")
        assert "0 of 5,000" in words(nothing)


async def test_looking_costs_one_look_in_two_seconds() -> None:
    """However many look, statuses are taken once in two seconds."""
    scene = Scene([status(1)])
    async with opened(scene) as client:
        for _ in range(5):
            await page(client, "/status")
        assert scene.looks == 1
        await scene.clock.advance(2)
        await page(client, "/status")
        assert scene.looks == 2


@pytest.mark.parametrize("path", ["/status", "/status?q={}", "/status?topic=persistent://public/default/{}"])
async def test_no_name_gets_out_of_its_place(path: str) -> None:
    """Whatever a topic is called, or is searched for: it is text, all of it, and nothing of it is markup or runs."""
    topics = [
        replace(stalled(number, reason=f"cannot read {name}"), topic=TopicName("public", "default", name))
        for number, name in enumerate(HOSTILE)
    ]
    scene = Scene(topics)
    async with opened(scene) as client:
        for name in HOSTILE:
            wanted = path.format(quoted(name))
            found = await page(client, wanted)
            for element in found.iter():
                assert name_of(element) not in ACTIVE or element.get("src") == "status.js"
                assert not any(key.lower().startswith("on") or key == "style" for key in element.keys())  # noqa: SIM118
                for key in ("href", "src", "action"):
                    assert urlsplit(element.get(key, "")).scheme == ""
                    assert not element.get(key, "").startswith("//")
            assert "49" not in words(found.find(".//h2"))
    if "topic=" in path:
        assert {name.partition("/default/")[2] for name in scene.completions} == set(HOSTILE)


async def test_names_that_cannot_be_seen_are_spelled_out() -> None:
    """A character that turns text round, or that nobody sees, is shown as its escape, and found by its address."""
    scene = Scene([replace(status(1), topic=TopicName("public", "default", "right\u202eto-left"))])
    async with opened(scene) as client:
        found = await page(client, "/status")
        link = found.find(".//tbody//a")
        assert words(link) == "persistent://public/default/right\\u202eto-left"
        assert link is not None
        assert "u202eto-left" in words((await page(client, f"/{link.get('href')}")).find(".//h2"))


async def test_one_topic_in_full() -> None:
    """A topic's page has owner, epoch, open segment, trouble, positions, and its own plots once it was sampled."""
    scene = Scene([stalled(1)])
    await scene.an_hour()
    async with opened(scene) as client:
        found = await page(client, f"/status?topic={topic(1)}")
        text = words(found.find(".//main"))
        assert "owner offloaderd-1 (epoch 3)" in text
        assert "stalled: the bucket is full" in text
        assert "confirmed 17:4001" in text
        assert "method streaming" in text
        assert len(found.findall(".//figure")) == 2
        assert [words(one) for one in found.findall(".//dl[@class='layout']//dd")] == [
            "17:2900 to 17:3999, 1,100 entries",
            "<b>no answer</b>",
            "2 ranges, 17:0 to 17:2999, 2,000 entries",
            "17:0 to 17:1999, 2,000 entries, 1 min 30 s behind",
            "2 ranges, after 17:999 and before 17:1501, at least 1 entry; deleted at the source",
        ]
        drawn = [one for one in found.iter() if name_of(one) == "rect" and one.get("class") == "place"]
        assert [(one.get("x"), one.get("width")) for one in drawn] == [("0.00", "150.00"), ("300.00", "150.00")]
        async with client.get("/status.json", params={"topic": str(topic(1))}) as answer:
            document = await answer.json()
        assert document["stalled_reason"] == "the bucket is full"
        assert document["layout"]["holders"][0]["extents"][0]["begin"] == "17:2900"
        scene.statuses.append(status(2))
        await scene.clock.advance(3)
        assert "Nothing is kept of this topic" in words(await page(client, f"/status?topic={topic(2)}"))


async def test_a_topic_whose_layout_is_not_known() -> None:
    """The rest of its page is there, and says why: a source that is down is when it is looked at."""
    scene = Scene([stalled(1)])
    scene.layout_failure = Transient("ZooKeeper <does not> answer", hint="see its log")
    async with opened(scene) as client:
        text = words((await page(client, f"/status?topic={topic(1)}")).find(".//main"))
        assert "stalled: the bucket is full" in text
        assert "Where its entries are ZooKeeper <does not> answer" in text
        async with client.get("/status.json", params={"topic": str(topic(1))}) as answer:
            document = await answer.json()
    assert document["stalled_reason"] == "the bucket is full"
    assert "layout" not in document
    assert document["layout_error"].startswith("ZooKeeper <does not> answer")


async def test_an_hour_is_drawn_and_said() -> None:
    """Four plots have a line each at least, a name, and say in words what they show."""
    scene = Scene([status(1)])
    await scene.an_hour()
    async with opened(scene) as client:
        found = await page(client, "/status")
    figures = found.findall(".//figure")
    assert len(figures) == 4
    ids = {element.get("id") for element in found.iter() if element.get("id")}
    for figure in figures:
        drawing = next(element for element in figure if name_of(element) == "svg")
        assert drawing.get("role") == "img"
        assert {drawing.get("aria-labelledby"), drawing.get("aria-describedby")} <= ids
        lines = [element for element in drawing.iter() if name_of(element) == "polyline"]
        assert lines
        assert all(len(str(line.get("points")).split()) > 300 for line in lines)
    assert "taken in: now" in words(figures[0])


async def test_the_same_as_json() -> None:
    """JSON has what the page has, what was not measured is null, and a topic is as in `offloadctl status --json`."""
    scene = Scene([status(1), stalled(2)])
    await scene.board.sampler.sample()
    async with opened(scene) as client, client.get("/status.json?only=troubled") as answer:
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        found = json.loads(await answer.text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["daemon"]["id"] == "offloaderd-1"
    assert (found["topics_total"], found["topics_matching"], found["pages"]) == (2, 1, 1)
    assert found["topics"][0]["topic"] == str(topic(2))
    assert found["topics"][0]["open_segment"]["age_s"] == 2.0
    columns, (sample,) = found["history"]["columns"], found["history"]["samples"]
    values = dict(zip(columns, sample, strict=True))
    assert values["taken_bytes_per_s"] is None
    assert values["lag_entries"] == 2000


@pytest.mark.parametrize(
    ("query", "code", "words_of_it"),
    [
        ("sort=size", 400, "sort is one of lag"),
        ("page=0", 400, "no number from 1"),
        ("page=-1", 400, "no number from 1"),
        ("page=99999999999999999999", 400, "no number from 1"),
        ("size=501", 400, "no number from 1 to 500"),
        ("only=%3Cb%3E", 400, "only is one of all, troubled"),
        ("topic=a/b", 400, "malformed topic name"),
        ("topic=public/default/nosuch", 404, "nobody knows"),
    ],
)
async def test_what_cannot_be_shown_says_why(query: str, code: int, words_of_it: str) -> None:
    """A query that makes no sense is told what would, as a page and as JSON."""
    async with opened(Scene([status(1)])) as client:
        async with client.get(f"/status?{query}") as answer:
            assert answer.status == code
            assert words_of_it in words(parsed(await answer.text()))
        async with client.get(f"/status.json?{query}") as answer:
            assert answer.status == code
            found = await answer.json()
            assert words_of_it in f"{found['error']} {found['hint']}"


async def test_before_the_daemon_serves_the_page_says_what_it_waits_for() -> None:
    """While the daemon starts there is no board, and the page is one that refreshes itself until there is."""
    scene = Scene([])
    scene.health.starting("waiting for ZooKeeper at zk:2181")
    async with opened(scene, filled=False) as client, client.get("/status") as answer:
        assert answer.status == 503
        found = parsed(await answer.text())
    assert "waiting for ZooKeeper at zk:2181" in words(found.find(".//main"))
    assert found.find(".//main").get("id") == "live"  # type: ignore[union-attr]  # it was found a line above


@pytest.mark.parametrize("path", [*PAGES, "/status.json", "/status?sort=nosuch", *(f"/{name}" for name in ASSETS)])
async def test_every_answer_keeps_the_browser_on_a_short_leash(path: str) -> None:
    """Nothing from elsewhere, nothing inline, no frame, no guess of types, nothing kept; errors included."""
    async with opened(Scene([status(1)])) as client, client.get(path) as answer:
        assert HEADERS.items() <= dict(answer.headers).items()
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy


@pytest.mark.parametrize("path", PAGES)
async def test_the_page_can_be_used_without_seeing_or_a_mouse(path: str) -> None:
    """It says its language and title; fields have labels, headings step by one, heads of tables their scope."""
    async with opened(Scene([stalled(number) for number in range(120)])) as client:
        found = await page(client, path)
    assert found.get("lang") == "en"
    assert words(found.find(".//title"))
    assert found.find(".//a[@class='skip']") is not None
    labels = {label.get("for") for label in found.findall(".//label")}
    assert {field.get("id") for kind in ("input", "select") for field in found.findall(f".//{kind}")} == labels
    levels = [int(name_of(one)[1]) for one in found.iter() if name_of(one) in {"h1", "h2", "h3"}]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(head.get("scope") in {"col", "row"} for head in found.findall(".//th"))
    ids = [element.get("id") for element in found.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


async def test_a_table_that_is_wider_than_a_phone_scrolls_by_itself() -> None:
    """Each stands in a region of its own that scrolls and can be reached by keys, so the page itself never does."""
    async with opened(Scene([])) as client, client.get("/status") as answer:
        tree = parsed(await answer.text())
    tables = tree.findall(".//table")
    regions = [one for one in tree.iter() if one.get("class") == "scroll"]
    assert len(tables) == 2
    assert [region.find("table") for region in regions] == tables
    assert all(region.get("tabindex") == "0" for region in regions)


async def test_the_front_door_leads_to_the_page() -> None:
    """The address alone redirects, to where a proxy in front would have it too."""
    async with opened(Scene([])) as client, client.get("/", allow_redirects=False) as answer:
        assert answer.status == 302
        assert answer.headers["Location"] == "status"


async def test_a_daemon_without_topics_says_what_to_do() -> None:
    """An empty list names the command that fills it."""
    async with opened(Scene([])) as client:
        assert "offloadctl topics enable" in words(await page(client, "/status"))


async def test_positions_that_are_unknown_are_dashes() -> None:
    """A topic that is being claimed has no positions, no owner known, no segment."""
    claiming = replace(status(1), state="claiming", confirmed=None, offloaded=None, open_segment_id="", lag_entries=0)
    async with opened(Scene([claiming])) as client:
        (line,) = rows(await page(client, "/status"))
    assert line[4:] == ["-", "0", "2.0 MiB", "-", "0 B/s", "-", "0"]
    assert claiming.offloaded != Position(0, 0)


def quoted(name: str) -> str:
    """Return a name for a query."""
    return "".join(f"%{byte:02X}" for byte in name.encode())

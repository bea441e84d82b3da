"""Everything but the bucket is lost: `make test-restore` (MESSAGES=n VERSIONS="..."), on servers of its own.

Three bookies, two brokers, topics of ten sorts (tests/real/histories.py), a daemon and an S3 server. All but the last
is killed and deleted. Then an empty cluster of each version in turn comes up: its topics are mounted out of the bucket,
and everything is compared with what the cluster before had. Consumers and producers go on there, new ledgers are
offloaded, and that cluster is lost as well. On the way mounts are killed, taken back, and refused to be taken back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

from offloaderd.core.clock import SystemClock
from tests.integration.command_line import ran
from tests.integration.processes import DaemonProcess
from tests.real import stores
from tests.real.broker_speed import say
from tests.real.driven import RECEIVE_MS
from tests.real.histories import SORTS, VERSIONS, receive
from tests.real.mounting import (
    SHORT_IDS_END,
    accept_source,
    applied,
    cluster_of_its_own,
    coordinated,
    empty_cluster,
    mount,
    nodes,
    reading,
)
from tests.real.pulsar_topics import pulsar_client
from tests.real.restoring import (
    CONSUMERS,
    Cluster,
    Scenario,
    first_written,
    messages_of,
    names_of,
    produce_all,
    read_all,
    settled,
)
from tests.servers import S3Server, bucket_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.integration.processes import Site
    from tests.real.histories import Note

CLOCK = SystemClock()
KILLS = ((1, "midway"), (2, "after"), (5, "midway"), (9, "after"))
"""Writes of a mount below Pulsar's lists at which it is killed, and when."""
MORE = 60
"""Messages that producers send to each topic of a cluster that came up."""
PREFIX = 16
"""Characters of a digest that people are shown."""
KEPT = ("/managed-ledgers", "/admin/policies", "/admin/partitioned-topics", "/ledgers/idgen-long")
"""Nodes of a cluster that a mount writes below."""
CHECKS = ("bytes", "ids", "subscription", "goes on")


@dataclass
class Generation:
    """What came of one mount: how long its parts took, and for each topic whether all is as it was."""

    version: str
    parts_s: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of the time until everything is back."""
        began = CLOCK.monotonic()
        yield
        self.parts_s[name] = round(CLOCK.monotonic() - began, 2)
        say(f"{name}: {self.parts_s[name]} s")

    @property
    def is_whole(self) -> bool:
        """Whether everything is as it was."""
        return all(row[check] in (True, None) for row in self.rows.values() for check in CHECKS)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        first = sum(value for name, value in self.parts_s.items() if name != "whole history read")
        return {
            "version": self.version,
            "parts_s": self.parts_s,
            "until_first_messages_s": round(first, 2),
            "until_whole_history_s": round(sum(self.parts_s.values()), 2),
            "first_message_s": self.first_s,
            "topics": self.rows,
        }


def written_nodes(live: Cluster) -> dict[str, bytes]:
    """Return the nodes that a mount may have written."""
    with live.bookkeeper.zookeeper_client() as client:
        return {
            f"{root}{below}": value
            for root in KEPT
            if client.exists(root)
            for below, value in nodes(client, root).items()
        }


async def undone(live: Cluster, site: Site, before: Mapping[str, bytes]) -> None:
    """Take everything back; what is left is folders, the raised ids, the tenant and the namespace."""
    code, said = await mount(site, "undo", *chosen(live), "--yes")
    assert code == 0, said
    left = await asyncio.to_thread(written_nodes, live)
    new = {path for path, value in left.items() if before.get(path) != value}
    namespace = f"public/{live.scenario.namespace}"
    allowed = {f"/admin/policies/{namespace}"} | {
        f"{root}/{folder}"
        for root in ("/managed-ledgers", "/admin/partitioned-topics")
        for folder in ("", "public", namespace, f"{namespace}/persistent")
    }
    assert {path.rstrip("/") for path in new} <= {path.rstrip("/") for path in allowed}, sorted(new)


def chosen(live: Cluster) -> list[str]:
    """Return what is mounted: all topics, and those of Pulsar itself by their names."""
    return [live.scenario.pattern, *map(str, live.own)]


async def mounted(live: Cluster, site: Site, found: Generation) -> None:
    """Mount everything; then take it back, and mount it again with mounts that are killed on the way."""
    before = await asyncio.to_thread(written_nodes, live)
    with found.part("plan"):
        code, said = await mount(site, "plan", *chosen(live), "--json")
    assert code == 0, said
    with found.part("apply"):
        code, said = await mount(site, "apply", *chosen(live))
    assert code == 0, said
    whole = await asyncio.to_thread(written_nodes, live)
    environment = site.process_environment(1, 2)
    for number, moment in KILLS:
        await undone(live, site, before)
        code = await applied(environment, *chosen(live), kill_at=f"create managed-ledgers:{moment}:{number}")
        assert code == -signal.SIGKILL, f"it ended with {code} before write {number}"
        assert await applied(environment, *chosen(live)) == 0
        assert await asyncio.to_thread(written_nodes, live) == whole, f"killed at write {number}, {moment}"
    say(f"taken back, killed at {len(KILLS)} writes and completed by the next: the same nodes")


def first_message(url: str, topic: str) -> float:
    """Return how long a new client waits for the first message of a topic."""
    began = CLOCK.monotonic()
    with pulsar_client(url) as client:
        client.create_reader(topic, pulsar.MessageId.earliest).read_next(RECEIVE_MS)
        return round(CLOCK.monotonic() - began, 2)


async def came_up(live: Cluster, site: Site, found: Generation) -> None:
    """Mount, and compare everything with what the bucket had."""
    scenario = live.scenario
    await mounted(live, site, found)
    await live.driven("").offload()  # by the new daemon: brokers read the policies of topics out of the bucket
    site.settings["pulsar"] = {"admin_url": live.brokers[0].admin_url}
    with found.part("schemas"):
        code, said = await mount(site, "schemas", scenario.pattern, "--json")
    assert code == 0, said
    counts = {row["topic"]: row["versions_written"] for row in json.loads(said)["topics"]}
    assert counts[live.name("versions")] == len(VERSIONS), said
    with found.part("first message of each topic"):
        for sort in SORTS:
            found.first_s[sort.name] = await asyncio.to_thread(first_message, live.url, live.name(names_of(sort)[0]))
    with found.part("whole history read"):
        histories = await read_all(live)
    given: dict[str, Note] = {}
    for sort in SORTS:
        if sort.subscribed:
            count = sum(messages_of(scenario.had[name].left) for name in names_of(sort))
            given |= await asyncio.to_thread(receive, live.url, live.name(sort.name), count)
    for name in scenario.parts:
        had, here = scenario.had[name], histories[name].note()
        left, subscription = had.left, given.get(live.name(name))
        found.rows[name] = {
            "messages": had.note.messages,
            "not offloaded": had.lost,
            "sha256": had.note.contents,
            "bytes": here.contents == had.note.contents,
            "ids": here.places == had.note.places,
            "subscription": subscription == left if left is not None else None,
            "stands at": ":".join(map(str, had.begin)) if had.begin is not None else "",
            "left": left.messages if left is not None else "",
        }
    policies = [await broker.get(f"{live.driven('holes').path}/maxConsumers") for broker in live.brokers]
    assert CONSUMERS in policies, f"the policy of a topic is {policies}"


async def went_on(live: Cluster, stack: AsyncExitStack, found: Generation) -> None:
    """Have producers go on and their ledgers offloaded: they join the same history, and no undo takes them out."""
    scenario, site = live.scenario, live.scenario.follower(live.directory, live.bookkeeper)
    await produce_all(live, lambda _: MORE)
    code, said, told = await ran(site, "offloaderd", "rebuild", "--apply", "--enable")
    assert code == 0, said + told
    daemon = await stack.enter_async_context(DaemonProcess(site))
    async with daemon.client() as client:
        for topic in (*(live.driven(name).topic for name in scenario.parts), *live.own):
            await accept_source(client, topic)
    live.address = daemon.address
    await live.driven("").offload()
    before = dict(scenario.had)
    histories = await settled(live, daemon)
    for name, history in histories.items():
        note, first = history.notes.get(before[name].note.messages), before[name].note
        more = history.note()
        found.rows[name]["goes on"] = (
            note is not None
            and (note.contents, note.places) == (first.contents, first.places)
            and more.messages > first.messages
            and more.last[0] > SHORT_IDS_END
        )
    sent = {sort.name: sum(histories[name].note().messages for name in names_of(sort)) for sort in SORTS}
    came = {sort.name: sum(before[name].note.messages for name in names_of(sort)) for sort in SORTS}
    tails = {sort.name: 6 * len(names_of(sort)) for sort in SORTS}
    assert sent == {name: came[name] + MORE + tails[name] for name in sent}
    daemon.signal(signal.SIGKILL)  # an unload closes ledgers, and it would offload more than was noted
    await live.unload()
    for local, why in (("unbatched", "producers have written to it"), ("batched", "it has subscriptions")):
        code, said = await mount(site, "undo", str(live.driven(local).topic), "--yes")
        assert (code, why in said) == (1, True), said
    say("producers went on, and an undo is refused")


async def first_life(scenario: Scenario) -> None:
    """Write everything into a cluster of the usual version, and lose it."""
    directory = scenario.directory / "0"
    async with cluster_of_its_own(directory, scenario.shape("")) as (bookkeeper, brokers):
        await coordinated(brokers[0], bookkeeper)
        async with DaemonProcess(scenario.follower(directory, bookkeeper)) as daemon:
            await daemon.serving()
            live = Cluster(scenario, directory, bookkeeper, brokers, daemon.address)
            await first_written(live, daemon)
            say(f"{sum(scenario.sent.values())} messages are written")
            await settled(live, daemon)
            daemon.signal(signal.SIGKILL)
        await live.kill()
    shutil.rmtree(directory)


async def next_life(scenario: Scenario, number: int, version: str) -> Generation:
    """Bring everything up in an empty cluster of a version, go on there, and lose that as well."""
    found, directory = Generation(version), scenario.directory / str(number)
    directory.mkdir()
    site = reading(directory, scenario.store, scenario.bucket, scenario.cluster)
    async with AsyncExitStack() as stack:
        with found.part("start of the empty cluster"):
            starting = empty_cluster(directory, site, scenario.shape(version))
            bookkeeper, brokers = await stack.enter_async_context(starting)
        await coordinated(brokers[0], bookkeeper)
        with found.part("start of the daemon"):
            reader = await stack.enter_async_context(DaemonProcess(site))
            await reader.serving()
        live = Cluster(scenario, directory, bookkeeper, brokers, reader.address)
        await came_up(live, site, found)
        await went_on(live, stack, found)
        await live.kill()
    shutil.rmtree(directory)
    return found


async def run(directory: Path, messages: int, versions: Sequence[str]) -> list[Generation]:
    """Run all lives. Raises AssertionError for what cannot go on."""
    async with stores.store(stores.wanted(), directory / "store", CLOCK) as server:
        store = S3Server(server.endpoint, server.access_key, server.secret_key)
        with bucket_at(store) as bucket:
            scenario = Scenario(directory, store, bucket, messages)
            await first_life(scenario)
            found = []
            for number, version in enumerate(versions, 1):
                say(f"\nPulsar {version}")
                found.append(await next_life(scenario, number, version))
                say(table(found[-1]))
            return found


def table(found: Generation) -> str:
    """Return what was compared, and how long it took, as Markdown."""
    columns = ("messages", "not offloaded", "sha256", *CHECKS, "stands at", "left")
    shown = {True: "equal", False: "**DIFFERS**", None: ""}
    lines = [f"| topic | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in found.rows.items():
        cells = {**row, "sha256": row["sha256"][:PREFIX]} | {check: shown[row[check]] for check in CHECKS}
        lines.append(f"| {name} | {' | '.join(str(cells[column]) for column in columns)} |")
    lines += ["", "| part | seconds |", "|---|---:|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in found.parts_s.items()]
    said = found.document()
    lines.append(f"| **until the first messages of all topics** | {said['until_first_messages_s']:.1f} |")
    lines.append(f"| **until the whole history is read** | {said['until_whole_history_s']:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="in all topics together")
    parser.add_argument("--versions", nargs="+", required=True, help="of the empty clusters, in this order")
    parser.add_argument("--output", type=Path, default=Path("build/restore.json"), help="what was found, as JSON")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="restore-run-"))
    say(f"what the servers say is in {directory} until all is well")
    found = asyncio.run(run(directory, arguments.messages, arguments.versions))
    document = {"messages": arguments.messages, "lives": [one.document() for one in found]}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    if not all(one.is_whole for one in found):
        say("something is not as it was: see DIFFERS above")
        return 1
    shutil.rmtree(directory)
    times = ", ".join(f"{one.version} {one.document()['until_first_messages_s']:.0f} s" for one in found)
    count = sum(row["messages"] for row in found[0].rows.values())
    say(f"{count:,} messages came up byte for byte; until the first messages of all topics: {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The loop over stock brokers at length: `make test-broker` (MESSAGES=n), on servers of its own.

Three bookies, two brokers, two daemons, an S3 server. First our driver is measured beside Pulsar's own
(tests/real/broker_speed.py). Then it is put to the test: a daemon is killed while messages are produced and
offloaded, the topic moves to the other broker, a daemon and a broker are killed while somebody reads. Whatever
happens, a reader from the earliest one gets every message as it was sent, and seeks by message id and by time and a
compacted reader get what they got before.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar

from tests.real.broker_servers import CLOCK, OURS, broker_servers
from tests.real.broker_speed import KEYS, Scale, content, measured, say, send
from tests.real.driven import RECEIVE_MS
from tests.real.pulsar_topics import pulsar_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real.broker_servers import Servers

PARTS = "speed", "faults"


def read_all(service_url: str, topic: str, count: int) -> list[str]:
    """Return place and digest of every message; the numbers have to be those that were sent, each once, in order."""
    found = []
    with pulsar_client(service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=2000)
        for number in range(count):
            message = reader.read_next(RECEIVE_MS)
            assert message.data() == content(number), f"message {number} is another: {message.data()[:20]!r}"
            found.append(f"{message.message_id()}")
    return found


def seek_and_compact(service_url: str, topic: str, places: Sequence[str]) -> dict[str, list[str]]:
    """Return what a reader gets after seeks into the middle, and what a compacted one gets."""
    found: dict[str, list[str]] = {}
    with pulsar_client(service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10)
        third = [reader.read_next(RECEIVE_MS) for _ in range(max(1, len(places) // 3))][-1]
        reader.seek(third.message_id())
        found["by id"] = [str(reader.read_next(RECEIVE_MS).message_id()) for _ in range(20)]
        reader.seek(third.publish_timestamp())
        found["by time"] = [str(reader.read_next(RECEIVE_MS).message_id()) for _ in range(20)]
        reader.close()
        compacted = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found["compacted"] = [str(compacted.read_next(RECEIVE_MS).message_id()) for _ in range(KEYS)]
    return found


async def tried(servers: Servers, count: int) -> None:
    """Send and read one topic through our driver, whatever happens. Raises AssertionError."""
    driven, brokers = await servers.driven(OURS), servers.brokers
    topic, url = str(driven.topic), servers.url
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(send, url, topic, range(count)))
        await servers.kill_a_daemon()
        say("a daemon was killed and is back")
    say(f"{len(await driven.freed())} ledgers are offloaded and gone from BookKeeper")
    places = await asyncio.to_thread(read_all, url, topic, count)
    say("every message came as it was sent")
    await driven.put("compaction")
    while (await driven.get("compaction") or {}).get("status") == "RUNNING":
        await CLOCK.sleep(1)
    sought = await asyncio.to_thread(seek_and_compact, url, topic, places)
    assert sought["by id"][0] in places
    for broker in (*brokers[1:], brokers[0]):
        await driven.move(broker)
        assert await asyncio.to_thread(read_all, url, topic, count) == places
    say("the same after the topic has moved to the other broker and back")
    await driven.unload()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(asyncio.to_thread(read_all, url, topic, count))
        await servers.kill_a_daemon()
        await servers.kill_a_broker()
    assert reading.result() == places
    assert await asyncio.to_thread(seek_and_compact, url, topic, places) == sought
    say("the same after a daemon and a broker were killed while somebody read")


async def run(scale: Scale, directory: Path, *, parts: Sequence[str]) -> str:
    """Run the parts. Raises AssertionError for the first message that is not what was sent."""
    is_far, flags = scale.latency_s > 0, scale.flags
    async with broker_servers(directory, ledger_mib=scale.ledger_mib, is_far=is_far, flags=flags) as servers:
        found = await measured(servers, scale, directory) if "speed" in parts else ""
        if "faults" in parts:
            await tried(servers, scale.messages)
        return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="through each driver, 1000 bytes each")
    parser.add_argument("--rate", type=float, default=inf, help="messages a second while it is measured")
    parser.add_argument("--turns", type=int, default=1, help="of writing through each driver")
    parser.add_argument("--rounds", type=int, default=5, help="of reading what the last turn has written, both ways")
    parser.add_argument("--topics", type=int, default=1, help="that share the messages, and are read at once")
    parser.add_argument("--readers", type=int, default=1, help="of each topic, which take a message in turns")
    parser.add_argument("--ledger-mib", type=int, default=32, help="size of a ledger")
    parser.add_argument("--latency-ms", type=float, default=0, help="of the store while it is read, added by a proxy")
    parser.add_argument("--direct", action="store_true", help="with DirectReads of our driver")
    parser.add_argument(
        "--parts", nargs="+", choices=("speed", "faults"), default=("speed", "faults"), help="what to do"
    )
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="broker-run-"))
    say(f"what the servers say is in {directory} until all is well")
    scale = Scale(
        messages=arguments.messages,
        rate=arguments.rate,
        ledger_mib=arguments.ledger_mib,
        turns=arguments.turns,
        rounds=arguments.rounds,
        latency_s=arguments.latency_ms / 1000,
        topics=arguments.topics,
        readers=arguments.readers,
        flags=["-Doffloaderd.DirectReads=true"] if arguments.direct else (),
    )
    found = asyncio.run(run(scale, directory, parts=arguments.parts))
    if found:
        say(found)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()

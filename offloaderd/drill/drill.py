"""A drill from its start to its report: proxies, a separate daemon, the exercises, the clean-up, and the report.

The daemon is part of this process, listens on loopback alone and has a cluster of its own, so it and other daemons
never see each other's topics. At the end, even after errors, it is cleaned up; what cannot be deleted is named.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from offloaderd import __version__
from offloaderd.client import DaemonClient, Trust
from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError, Transient, first_of
from offloaderd.daemon.daemon import Addresses, Daemon
from offloaderd.drill.exercises import EXERCISES, Broken, Exercise, Ground
from offloaderd.drill.s3_proxy import S3Proxy
from offloaderd.drill.scratch import TOPIC, Pair, Scratch
from offloaderd.drill.tcp_proxy import Link
from offloaderd.objects.opening import bucket_store
from offloaderd.standalone.ports import free_ports

PROMISES = {
    "P1": "What was reported durable is readable and bit-identical.",
    "P2": "Committed ranges are contiguous and disjoint.",
    "P3": "Nothing is deleted from the source without a verified copy.",
    "P4": "One owner commits; a deposed one changes nothing.",
    "P5": "Garbage collection deletes nothing that is referred to, and in the end everything that is not.",
    "P6": "A reader gets each entry of its range once, in order, across tiers, or a typed error.",
    "P7": "Memory stays under the budget.",
    "P8": "Entries are durable within the greatest age of a segment and a stated overhead, while the bucket works.",
    "P9": "The bucket alone restores the map.",
    "P10": "Older formats stay readable.",
}


class Outcome(StrEnum):
    """The outcome of the check of a promise."""

    KEPT = "kept"
    BROKEN = "BROKEN"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The check of a promise: the exercise, the outcome, the finding, and the duration."""

    promise: str
    done: str
    outcome: Outcome
    found: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a drill. `left`: what could not be deleted; empty if everything was."""

    drill: str
    started_ms: int
    version: str
    where: dict[str, str]
    findings: Sequence[Finding]
    faults: dict[str, int]
    left: str = ""

    @property
    def sound(self) -> bool:
        """Whether no promise was broken and everything was deleted."""
        return not self.left and all(one.outcome is not Outcome.BROKEN for one in self.findings)

    def document(self) -> dict[str, object]:
        """Return the report as JSON."""
        return {
            "drill": self.drill,
            "started_ms": self.started_ms,
            "version": self.version,
            "sound": self.sound,
            "where": self.where,
            "findings": [
                {
                    "promise": one.promise,
                    "text": PROMISES[one.promise],
                    "done": one.done,
                    "outcome": one.outcome.value,
                    "found": one.found,
                    "seconds": round(one.seconds, 3),
                }
                for one in self.findings
            ],
            "faults": self.faults,
            "left": self.left or None,
        }

    def markdown(self, moment: str) -> str:
        """Return the report as Markdown; `moment` is its start as text."""
        verdict = "No promise was broken." if self.sound else "SOMETHING IS WRONG: see below."
        lines = [f"# Drill {self.drill}", "", f"{moment} UTC, offloaderd {self.version}. {verdict}", ""]
        lines += [f"- {name}: {_cell(value)}" for name, value in self.where.items()]
        lines += ["", "| promise | what was done | outcome | what was found | seconds |", "|---|---|---|---|---|"]
        for one in self.findings:
            promise = f"**{one.promise}** {PROMISES[one.promise]}"
            cells = (promise, one.done, one.outcome.value, one.found, f"{one.seconds:.1f}" if one.seconds else "")
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        if self.faults:
            lines += ["", "Faults that were done to requests:", ""]
            lines += [f"- {count} x {name}" for name, count in sorted(self.faults.items())]
        lines += ["", f"Left behind: {self.left or 'nothing'}"]
        return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


Tell = Callable[[Exercise, Finding | None], None]
"""Called for each exercise when it begins (None) and when it is done."""

START_S = 90.0
EXERCISE_S = 300.0


def where(scratch: Scratch) -> dict[str, str]:
    """Return the places of a drill, for its report and its plan."""
    return {
        "bucket": f"{scratch.endpoint}, {scratch.settings.objects.bucket}, keys below {scratch.prefix}",
        "ZooKeeper": f"{scratch.settings.metadata.servers}, nodes below {scratch.root}",
        "entries": "some 31 MB from a ledger store in a temporary directory; no bookie, broker or other topic is asked",
    }


async def check_reach(scratch: Scratch, clock: Clock) -> None:
    """Check that both stores answer and the bucket can be used. Raises Transient, Denied, BucketMissing."""
    async with bucket_store(scratch.settings.objects, clock) as store:
        await store.check()
    async with scratch.metadata_store(above=True) as metadata:
        await metadata.children("/")


async def run(scratch: Scratch, clock: Clock, tell: Tell, exercises: Sequence[Exercise] = EXERCISES) -> Report:
    """Run all exercises one after the other, and clean up. Raises what prevents the start of the drill."""
    await check_reach(scratch, clock)
    started_ms = clock.wall_ms()
    findings: list[Finding] = []
    faults: dict[str, int] = {}
    left = ""
    try:
        with tempfile.TemporaryDirectory(prefix=scratch.name) as directory:
            await _exercised(scratch, Path(directory), clock, exercises, findings, faults, tell)
    finally:
        left = await _cleaned(scratch, clock)
    return Report(
        drill=scratch.name,
        started_ms=started_ms,
        version=__version__,
        where=where(scratch),
        findings=findings,
        faults=faults,
        left=left,
    )


async def _cleaned(scratch: Scratch, clock: Clock) -> str:
    """Delete everything of the drill; return a text about what could not be deleted."""
    try:
        await scratch.clean(clock)
    except OffloaderError as error:
        word = scratch.name.rpartition("-")[2]
        return f"{scratch.prefix} and {scratch.root}: {error}; `offloadctl drill --clean {word}` tries again"
    return ""


async def _exercised(
    scratch: Scratch,
    directory: Path,
    clock: Clock,
    exercises: Sequence[Exercise],
    findings: list[Finding],
    faults: dict[str, int],
    tell: Tell,
) -> None:
    grpc_port, http_port = free_ports(2, clock)
    theirs = scratch.zookeeper_tls()
    pair = Pair.made(directory, clock)
    own = pair.server() if theirs is not None else None
    async with (
        S3Proxy(scratch.endpoint, prefix=scratch.prefix, tls=scratch.s3_tls()) as s3,
        Link(scratch.settings.metadata.servers, tls=theirs, own=own) as zookeeper,
    ):
        settings = scratch.of_daemon(
            directory, zookeeper=zookeeper.address, s3=s3.endpoint, ports=(grpc_port, http_port), pair=pair
        )
        serving = asyncio.Event()

        def on_ready(_: Addresses) -> None:
            serving.set()

        daemon = Daemon(settings, on_ready, clock=clock)
        try:
            async with Group() as group:
                life = group.create_task(daemon.run(), name="drill's daemon")
                async with asyncio.timeout(START_S):
                    await serving.wait()
                trust = Trust(ca_file=pair.cert, cert_file=pair.cert, key_file=pair.key)
                async with DaemonClient(f"127.0.0.1:{grpc_port}", trust=trust) as client:
                    ground = Ground(
                        scratch=scratch, daemon=daemon, client=client, s3=s3, zookeeper=zookeeper, clock=clock
                    )
                    watching = group.create_task(ground.watch_memory(), name="memory of the drill's daemon")
                    await client.enable(TOPIC)
                    for exercise in exercises:
                        tell(exercise, None)
                        findings.append(await _tried(exercise, ground, clock))
                        tell(exercise, findings[-1])
                    watching.cancel()
                daemon.stop("the drill is over")
                await asyncio.wait([life])
        except TimeoutError:
            raise Transient(f"the drill's daemon did not serve within {START_S:g} s") from None
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        faults |= {f"{operation}: {fault.value}": count for (operation, fault), count in s3.counts.faults.items()}


async def _tried(exercise: Exercise, ground: Ground, clock: Clock) -> Finding:
    """Run one exercise; its result or error is its finding. The faults are removed afterwards."""
    if exercise.run is None:
        return Finding(promise=exercise.promise, done="nothing", outcome=Outcome.NOT_TRIED, found=exercise.done)
    started_s, outcome = clock.monotonic(), Outcome.KEPT
    try:
        async with asyncio.timeout(EXERCISE_S):
            found = await exercise.run(ground)
    except Broken as error:
        outcome, found = Outcome.BROKEN, error.message
    except OffloaderError as error:
        outcome, found = Outcome.BROKEN, f"{type(error).__name__}: {error}"
    except TimeoutError:
        outcome, found = Outcome.BROKEN, f"it did not end within {EXERCISE_S:g} s"
    finally:
        ground.s3.heal()
        ground.zookeeper.mend()
    return Finding(
        promise=exercise.promise,
        done=exercise.done,
        outcome=outcome,
        found=found,
        seconds=clock.monotonic() - started_s,
    )

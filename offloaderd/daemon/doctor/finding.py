"""Results of checks, the state that checks share, and the frame of a check: timed, bounded, and isolated."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.daemon.settings import Settings
from offloaderd.metadata.topic_map.unnamed import UnnamedPlace

DEADLINE_S = 15.0
"""Longest that one check may take."""


class Verdict(StrEnum):
    """The verdict of a check. A warning: it works now and may fail later."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a check, and its hint (empty: nothing to do)."""

    verdict: Verdict
    found: str
    what_to_do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult(Finding):
    """One line of the examination."""

    name: str
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the daemon cannot work until this is repaired."""
        return self.verdict is Verdict.FAIL


def ok(found: str) -> Finding:
    """The check found no fault."""
    return Finding(Verdict.OK, found)


def warn(found: str, what_to_do: str) -> Finding:
    """The check passed, but with a risk that the operator should know."""
    return Finding(Verdict.WARN, found, what_to_do)


def fail(found: str, what_to_do: str) -> Finding:
    """The check failed: the daemon cannot work with this."""
    return Finding(Verdict.FAIL, found, what_to_do)


def skipped(name: str, why: str) -> CheckResult:
    """Return the line of a check that was not run."""
    return CheckResult(Verdict.SKIPPED, why, name=name)


async def examined(name: str, work: Awaitable[Finding], clock: Clock, deadline_s: float = DEADLINE_S) -> CheckResult:
    """Run a check; any error of it becomes its result."""
    started = clock.monotonic()
    try:
        async with asyncio.timeout(deadline_s):
            found = await work
    except TimeoutError:
        found = fail(f"no answer within {deadline_s:g} s", "look at its load, and at the network between")
    except OffloaderError as error:
        found = fail(error.message, error.hint)
    except OSError as error:
        reason = error.strerror or str(error)
        found = fail(f"{error.filename}: {reason}" if error.filename else reason, "")
    except Exception as error:  # noqa: BLE001 - one broken check must not hide what the others find
        found = fail(f"the check itself broke: {type(error).__name__}: {error}", "report it: it is a defect")
    lines, seconds = (_one_line(found.found), _one_line(found.what_to_do)), clock.monotonic() - started
    return CheckResult(found.verdict, *lines, name=name, seconds=seconds)


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def unknown(found: str, what_to_do: str) -> Finding:
    """What was to be checked could not be looked at, and the daemon works without."""
    return Finding(Verdict.SKIPPED, found, what_to_do)


@dataclass(frozen=True, slots=True)
class Reading:
    """The time of a server, `told_ms`, to within `grain_ms`, read between two times of our clock."""

    told_ms: int
    before_ms: int
    after_ms: int
    grain_ms: int = 1

    @property
    def skew_ms(self) -> int:
        """Smallest possible lead of the server's clock (below 0: lag); 0 if the clocks may agree."""
        least, most = self.told_ms - self.after_ms, self.told_ms + self.grain_ms - self.before_ms
        if least <= 0 <= most:
            return 0
        return least if least > 0 else most


@dataclass(slots=True)
class Case:
    """One examination. `serving`: the daemon itself runs it, so its ports and locks are in use."""

    settings: Settings
    clock: Clock
    serving: bool = False
    readings: dict[str, Reading] = field(default_factory=dict)
    knows_topics: bool | None = None
    """Whether the metadata of the daemon has any topic; None: unknown."""
    deployment_id: str = ""
    """Id of the deployment in the metadata; empty: none yet, or unknown."""
    open_s_max: float = 0.0
    """How long a policy of the metadata lets a segment be open, at most."""
    unnamed: Mapping[TopicName, Sequence[UnnamedPlace]] | None = None
    """Places that the settings do not name, by topic, as the daemon has counted them; None: nobody has."""
    topic: TopicName | None = None
    """Any topic of the cluster, for the check of the admin API."""

    @property
    def home(self) -> str:
        """The node of the daemon's cluster."""
        return f"{self.settings.metadata.root}/{self.settings.daemon.cluster}"

    async def check(self, name: str, work: Awaitable[Finding]) -> CheckResult:
        """Run one check."""
        return await examined(name, work, self.clock)

    def probe_name(self) -> str:
        """Return a unique name."""
        return f"doctor-{self.clock.uuid()}"

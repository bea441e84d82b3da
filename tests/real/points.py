"""Kill points: the requests at which tests end a daemon's process, on real servers and in the simulation.

A point is written `LABEL:MOMENT` or `LABEL:MOMENT:NUMBER`; labels are those of `labels.py`. The process ends at the
first request with the label, or at the one with that number: `before` it is sent, `midway` (it is on its way, or its
answer is), or `after` it has been answered and before anybody in the process has heard of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOMENTS = ("before", "midway", "after")


@dataclass(slots=True)
class KillPoint:
    """One point of one process, which it reaches once."""

    label: str
    moment: str
    number: int = 1
    seen: int = field(default=0, init=False)

    @classmethod
    def parse(cls, text: str) -> KillPoint:
        """Read `LABEL:MOMENT[:NUMBER]`."""
        label, moment, *number = text.split(":")
        if moment not in MOMENTS:
            raise ValueError(f"{text}: {moment!r} is none of {MOMENTS}")
        return cls(label, moment, int(number[0]) if number else 1)

    def is_reached(self, label: str) -> bool:
        """Count a request; return whether the process ends at this one."""
        self.seen += label == self.label
        return label == self.label and self.seen == self.number


FIRST_LIFE = (
    "register:before",
    "register:after",
    "claim:midway",
    "claim:after",
    "begin:before",
    "begin:midway",
    "begin:after",
    "create_upload:before",
    "create_upload:midway",
    "create_upload:after",
    "note upload:before",
    "note upload:after",
    "upload_part:before",
    "upload_part:midway",
    "upload_part:after",
    "upload_part:midway:2",
    "upload_part:after:2",
    "upload_part:before:3",
    "seal:before",
    "seal:midway",
    "seal:after",
    "complete_upload:before",
    "complete_upload:midway",
    "complete_upload:after",
    "put index:midway",
    "put index:after",
    "put manifest:midway",
    "put manifest:after",
    "head data:before",
    "get index:after",
    "get manifest:after",
    "commit:before",
    "commit:midway",
    "commit:after",
    "begin:after:2",
    "commit:after:2",
    "note ledger:before",
    "note ledger:after",
)
"""Steps of a daemon that finds a new topic."""

ONE_PART = (
    "begin:after",
    "seal:before",
    "seal:midway",
    "seal:after",
    "put data:before",
    "put data:midway",
    "put data:after",
    "put index:midway",
    "put manifest:after",
    "commit:midway",
)
"""Steps of a daemon whose segment has one part, which is put without an upload."""

AT_THE_END = (
    "seal:after",
    "head data:before",
    "commit:midway",
    "commit:after",
    "release:before",
    "release:midway",
    "release:after",
)
"""Steps of a daemon that was told to stop, with one segment open."""

WHILE_OPEN = ("note progress:before", "note progress:midway", "note progress:after")
"""Steps of a daemon whose segment grows too slowly to be sealed at once."""

CONTINUED = (
    "claim:after",
    "list_parts:before",
    "list_parts:after",
    "upload_part:midway",
    "upload_part:after",
    "seal:after",
    "complete_upload:midway",
    "commit:midway",
)
"""Steps of a daemon that goes on with a segment of which two parts are in the bucket."""

AFTER_A_FAILURE = (
    "give up:before",
    "give up:midway",
    "give up:after",
    "abort_upload:before",
    "abort_upload:after",
    "delete:before",
    "delete:midway",
    "delete:after",
    "delete trash:before",
    "delete trash:after",
    "begin:after",
    "upload_part:after",
    "commit:after",
)
"""Steps of a daemon that takes over a segment whose upload has vanished from the bucket meanwhile."""

GRANTED = (
    "grant:before",
    "grant:midway",
    "grant:after",
    "decide:before",
    "decide:after",
    "delete source:before",
    "delete source:after",
)
"""Steps by which a ledger's copy is verified and the ledger deleted at its source."""

RETIRED = (
    "remove:before",
    "remove:midway",
    "remove:after",
    "delete:before",
    "delete:midway",
    "delete:after",
    "delete trash:before",
    "delete trash:after",
    "forget grant:after",
)
"""Steps by which a segment that retention does not keep leaves the map and the bucket."""

TWO_PARTS_STORED = "upload_part:after:2"
"""Where the first owner dies in histories in which another one continues, or gives up."""

HISTORIES = {
    "first life": FIRST_LIFE,
    "one part": ONE_PART,
    "at the end": AT_THE_END,
    "while open": WHILE_OPEN,
    "continued": CONTINUED,
    "after a failure": AFTER_A_FAILURE,
    "granted": GRANTED,
    "retired": RETIRED,
}
"""All points, by the history of which they are a step."""

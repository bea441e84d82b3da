"""The report of a drill, as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

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
    """Return a text as a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")

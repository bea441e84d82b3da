"""The query of the status page: parsed within bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args
from urllib.parse import urlencode

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName

Sort = Literal["lag", "bytes", "rate", "segment", "topic", "state"]
Only = Literal["all", "troubled"]
SORTS: tuple[str, ...] = get_args(Sort)
ONLY: tuple[str, ...] = get_args(Only)
TOPICS_A_PAGE = 50
TOPICS_A_PAGE_MAX = 500
SEARCH_CHARS_MAX = 200
PAGE_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One page of the list of topics: those whose name holds `search`, `size` of them."""

    sort: str = "lag"
    search: str = ""
    only: str = "all"
    page: int = 1
    size: int = TOPICS_A_PAGE

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """Parse a query; missing values are the defaults. Raises InvalidInput."""
        return cls(
            sort=_word("sort", query.get("sort", "lag"), SORTS),
            search=query.get("q", "").strip()[:SEARCH_CHARS_MAX],
            only=_word("only", query.get("only", "all"), ONLY),
            page=_number("page", query.get("page", "1"), PAGE_MAX),
            size=_number("size", query.get("size", str(TOPICS_A_PAGE)), TOPICS_A_PAGE_MAX),
        )

    def address(self, **others: object) -> str:
        """Return the address with some values replaced; defaults are left out."""
        other = replace(self, **others)  # type: ignore[arg-type]  # named by a template
        said = {
            name: value
            for name, value, usual in (
                ("q", other.search, ""),
                ("sort", other.sort, "lag"),
                ("only", other.only, "all"),
                ("page", other.page, 1),
                ("size", other.size, TOPICS_A_PAGE),
            )
            if value != usual
        }
        return f"status?{urlencode(said)}" if said else "status"


def wanted_topic(query: Mapping[str, str]) -> TopicName | None:
    """Return the topic of the query, None for the list. Raises InvalidInput."""
    return TopicName.parse(query["topic"]) if query.get("topic") else None


def _word(name: str, given: str, words: tuple[str, ...]) -> str:
    if given not in words:
        raise InvalidInput(f"no such {name}: {given[:40]!r}", hint=f"{name} is one of {', '.join(words)}")
    return given


def _number(name: str, given: str, most: int) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 0 < int(given) <= most):
        raise InvalidInput(f"{name} is no number from 1 to {most:,}: {given[:40]!r}")
    return int(given)

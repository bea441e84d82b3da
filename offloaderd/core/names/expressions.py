"""Regular expressions for topic names, matched in linear time whoever wrote them.

Every administrator of a namespace may store one, and every daemon matches it with every topic on its only event loop.
So the engine is RE2: an expression takes at most a few milliseconds per name and `MEMORY_BYTES`. Look-around, back
references and all else that needs backtracking are refused. What both engines accept has the same meaning in both, as
expressions of earlier releases are stored: `\\w`, `\\d` and `\\s` match the letters of all languages, and `{,n}`, which
is plain text in RE2, is refused. (`\\b` is that of ASCII letters.)
"""

import re
from typing import Protocol, cast
from weakref import WeakValueDictionary

import re2

from offloaderd.core.errors import InvalidInput

HINT = "it is held against TENANT/NAMESPACE/TOPIC and has to match all of it, as in re:public/default/eu-.*"
MEMORY_BYTES = 512 * 1024
"""Most memory of an expression, enough for 20 `\\w`; a name of 4,096 characters then takes at most 30 ms."""

_CLASSES = {"w": r"\pL\pN_", "d": r"\p{Nd}", "s": r"\s\x1c-\x1f\x85\pZ"}
_WORD = re.compile(r"\\.|\[:|\[\^?[]\[]?|\]|\{,\d*\}|\{\d{5}|.", re.DOTALL)


class _Engine(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


class Expression:
    """A compiled expression."""

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def fullmatch(self, text: str) -> object | None:
        """Return a match object if the whole text matches, else None."""
        return self._engine.fullmatch(text)


_in_use: WeakValueDictionary[str, Expression] = WeakValueDictionary()
"""Expressions in use: selections are read again at each change, without compiling an expression twice."""


def compiled(source: str) -> Expression:
    """Return a compiled expression. Raises InvalidInput for one that is malformed, too large, or nonlinear."""
    found = _in_use.get(source)
    if found is None:
        found = _in_use[source] = _compiled(source)
    return found


def _compiled(source: str) -> Expression:
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MEMORY_BYTES, False, True
    try:
        return Expression(cast("_Engine", re2.compile(_in_all_languages(source), options)))
    except (re2.error, ValueError) as error:
        text = error.args[0] if error.args else error
        reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise InvalidInput(
            f"malformed expression {source!r}: {reason}", hint=f"{HINT}; look-around and back references are not taken"
        ) from None


def _in_all_languages(source: str) -> str:
    """Return the expression with its classes spelled out. Raises ValueError for text with another meaning in RE2."""
    spelled_out, within = [], False
    for word in _WORD.findall(source):
        spelled, kind = word, word[1:]
        if word == r"\Q" or (word == "[:" and within) or (not within and word in {"[[", "[^["}):
            raise ValueError(f"{word}: write \\ before each [ that is meant")
        if word.startswith("\\") and kind.lower() in _CLASSES:
            if within and kind.isupper():
                raise ValueError(f"{word} within [ ]")
            inner = _CLASSES[kind.lower()]
            spelled = inner if within else f"[{'^' if kind.isupper() else ''}{inner}]"
        elif len(word) > 1 and word.startswith("{") and not within:
            raise ValueError(f"{word}: write a repetition as {{0,3}}, with at most 1000")
        elif word.startswith("["):
            within = True
        elif word == "]":
            within = False
        spelled_out.append(spelled)
    return "".join(spelled_out)

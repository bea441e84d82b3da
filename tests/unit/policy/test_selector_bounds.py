"""What somebody who administers a namespace can make every daemon do by storing expressions: so many, compiled once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import re2

from offloaderd.core.errors import Conflict
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.metadata import paths
from offloaderd.policy import store as policies
from offloaderd.policy.discovery import Discovery
from offloaderd.policy.records import Selection
from tests.unit.policy.test_selector import Room, running


async def stored(one: Room) -> int:
    """Return how many selections there are."""
    return len(await one.store.children(paths.SELECTIONS))


async def test_a_namespace_has_so_many_expressions() -> None:
    """Also in a dry run; others have their own, and what is there may be changed."""
    async with running("public/default/a") as one:
        one.selector.expressions_max = 2
        for number in range(2):
            await one.enable(f"re:public/default/{number}.*")
        with pytest.raises(Conflict, match="public/default has 2 expressions, and 2 are the most") as error:
            await one.enable("re:public/default/more", dry_run=True)
        assert "access.namespace_expressions_max" in error.value.hint
        with pytest.raises(Conflict):
            await one.enable("re:public/default/more")
        assert await stored(one) == 2
        await one.enable("re:public/default/0.*")
        await one.enable("public/default/*")
        for other in ("re:public/other/.*", "re:public/.*", "re:.*"):
            await one.enable(other)
        await one.disable("re:public/default/1.*")
        await one.enable("re:public/default/more")


async def test_the_number_is_looked_at_where_it_is_written() -> None:
    """Two daemons that have looked before either wrote store no more than one."""
    async with running("public/default/a") as one:
        one.selector.expressions_max = 1
        await one.enable("re:public/default/a.*")
        said = await policies.selections(one.store)
        (selection,) = said.values()
        assert isinstance(selection, Selection)
        with pytest.raises(Conflict, match="1 expressions"):
            await policies.put(
                one.store,
                one.clock,
                replace(selection, pattern=TopicPattern.parse("re:public/default/b")),
                expressions_max=1,
            )
        assert await stored(one) == 1


async def test_an_expression_is_compiled_once_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often what was said is read again: each time takes up to a second of every daemon otherwise."""
    compiled = 0
    compile_ = re2.compile

    def counted(*given: object) -> object:
        nonlocal compiled
        compiled += 1
        return compile_(*given)

    monkeypatch.setattr(re2, "compile", counted)
    async with running("public/default/abc") as one:
        discovery = Discovery(one.selector, one.metrics)
        for text in ("re:public/default/a.*", "re:public/default/b.*", "re:public/.*"):
            await one.enable(text)
        await discovery.run_once()
        first = compiled
        for _ in range(5):
            discovery._stale = True
            await discovery.run_once()
        assert compiled == first
        assert one.metrics.registry.get_sample_value("offloaderd_selection_expressions_highest") == 2

"""Tokens of a provider at the gate: their groups, and a provider whose keys are not known yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.access.roles import Grant, Rights
from offloaderd.access.tokens import TokenRules
from offloaderd.api.gate import Authentication, Limits
from offloaderd.core.errors import Denied, Unauthenticated
from tests.authority import Authority, token
from tests.unit.api.guarded import guarded
from tests.unit.api.test_gate import GRANTS, SECRET, keys

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "gRPC"


async def test_a_group_of_a_token_is_no_subject(tmp_path: Path) -> None:
    """A group with the name of a subject has not that one's grants, and its own are the group's."""
    ca = Authority(tmp_path)
    rights = Rights(map(Grant.parse, ["read token:alice *", "read group:team *"]))
    rules = Authentication(rights=rights, token_keys=keys, token_rules=TokenRules(groups_claim="groups"))
    async with guarded(files=ca.server(), grants=GRANTS, token_keys=keys) as site:
        site.gate.follow(Limits(), rules)
        async with site.client(ca_file=ca.file, token=token(SECRET, "mallory", groups=["alice"])) as client:
            with pytest.raises(Denied, match="mallory may not call Status"):
                await client.status()
        async with site.client(ca_file=ca.file, token=token(SECRET, "mallory", groups=["alice", "team"])) as client:
            await client.status()


async def test_keys_of_a_provider_that_were_not_read_yet_are_said_to_be_so(tmp_path: Path) -> None:
    """It is no setting that is missing, so nobody has to change one."""
    ca = Authority(tmp_path)
    rules = Authentication(rights=Rights([]), missed=lambda: None)
    async with guarded(files=ca.server(), grants=GRANTS, token_keys=keys) as site:
        site.gate.follow(Limits(), rules)
        async with site.client(ca_file=ca.file, token=token(SECRET, "alice")) as client:
            with pytest.raises(Unauthenticated, match="keys for tokens have not been read yet"):
                await client.status()

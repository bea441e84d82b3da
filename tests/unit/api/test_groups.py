"""Groups that a token names, at the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.access.roles import Grant, Rights
from offloaderd.access.tokens import TokenRules
from offloaderd.api.gate import Authentication, Limits
from offloaderd.core.errors import Denied
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

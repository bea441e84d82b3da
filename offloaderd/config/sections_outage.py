"""Settings of what uploads may do at a time, and of what happens while the store is away; see sections.py."""

from __future__ import annotations

from pydantic import Field

from offloaderd.config.section import Section


class UploadSettings(Section):
    """How hard the store is driven by all topics together."""

    concurrency_max: int = Field(
        default=16,
        ge=1,
        le=1000,
        description="Parts of all topics on their way at the same time. The store lowers this by answering 503 "
        "SlowDown, and it is raised again step by step. 16 parts of 8 MiB are memory.upload_bytes; more than "
        "objects.connections_max only wait for connections.",
    )

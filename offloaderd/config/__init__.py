"""Settings: `load(path, environ)` gives one frozen value or one InvalidConfig with every mistake.

sections.py and sections_source.py hold the settings themselves, rules.py what must hold between them, given.py reads
file and environment, loading.py joins all, fields.py describes each setting for messages and documentation. pydantic
is used in this package only; its companion for environments is not, because it reads the process's own environment
whenever a value is made, passes over unknown names, and cannot say where a value came from.
"""

from __future__ import annotations

from offloaderd.config.loading import Report, Row, check, describe, load, usable
from offloaderd.config.sections import (
    DaemonSettings,
    GrpcSettings,
    HttpSettings,
    LogSettings,
    MemorySettings,
    OffloadSettings,
    ReadSettings,
    Settings,
    ShutdownSettings,
)
from offloaderd.config.sections_source import BookkeeperSettings, LedgersSettings, PulsarSettings
from offloaderd.config.sections_stores import MetadataSettings, ObjectsSettings

__all__ = [
    "BookkeeperSettings",
    "DaemonSettings",
    "GrpcSettings",
    "HttpSettings",
    "LedgersSettings",
    "LogSettings",
    "MemorySettings",
    "MetadataSettings",
    "ObjectsSettings",
    "OffloadSettings",
    "PulsarSettings",
    "ReadSettings",
    "Report",
    "Row",
    "Settings",
    "ShutdownSettings",
    "check",
    "describe",
    "load",
    "usable",
]

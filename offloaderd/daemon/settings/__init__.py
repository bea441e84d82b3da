"""Settings: `load(path, environ)` gives one frozen value or one InvalidConfig with every mistake.

sections.py holds the settings of all packages together, rules.py what must hold between them, given.py reads file and
environment, loading.py joins all, fields.py describes each setting for messages and documentation. pydantic's companion
for environments is not used, because it reads the process's own environment whenever a value is made, passes over
unknown names, and cannot say where a value came from.
"""

from offloaderd.daemon.settings.loading import Report, Row, check, describe, load, usable
from offloaderd.daemon.settings.sections import Settings

__all__ = ["Report", "Row", "Settings", "check", "describe", "load", "usable"]

"""Settings: `load(path, environ)` gives one frozen value or one InvalidConfig with every mistake.

sections.py joins the settings of all packages and describes each for messages and documentation, rules.py has the rules
between them, loading.py reads file and environment. pydantic-settings is not used: it reads the environment of the
process whenever a value is made, ignores unknown names, and does not say where it came from.
"""

from offloaderd.daemon.settings.loading import Report, Row, check, describe, load, usable
from offloaderd.daemon.settings.sections import Settings

__all__ = ["Report", "Row", "Settings", "check", "describe", "load", "usable"]

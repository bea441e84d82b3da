"""`format("offload")` in any session: Spark looks for sources in modules whose names begin with `pyspark_`.

It imports this one for every session whose first source in Python is asked for, so it fails for nobody, whatever is not
installed, and imports little.
"""

from contextlib import suppress

with suppress(ImportError):
    from offloaderd.spark.source import SegmentSource as DefaultSource  # noqa: F401 - Spark's name for it

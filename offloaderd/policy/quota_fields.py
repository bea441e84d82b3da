"""The quotas by name, with units and ranges, for the API and the command line; a client needs nothing else of them."""

from collections.abc import Mapping

from offloaderd.policy.policies import Field, Kind

WEIGHT_MAX = 1000

FIELDS: Mapping[str, Field] = {
    one.name: one
    for one in (
        Field(name="write_bytes_per_s", option="write-rate", kind=Kind.BYTES, low=1, off=True),
        Field(name="read_bytes_per_s", option="read-rate", kind=Kind.BYTES, low=1, off=True),
        Field(name="stored_bytes", option="stored", kind=Kind.BYTES, off=True),
        Field(name="topics", option="topics", kind=Kind.NUMBER, off=True),
        Field(name="readers", option="readers", kind=Kind.NUMBER, off=True),
        Field(name="calls", option="calls", kind=Kind.NUMBER, off=True),
        Field(name="unpack_bytes", option="unpack", kind=Kind.BYTES, low=1, off=True),
        Field(name="weight", option="weight", kind=Kind.NUMBER, low=1, high=WEIGHT_MAX),
    )
}
"""The quotas by name, in the order of `Quotas`."""

"""What the object store charges."""

from pydantic import Field

from offloaderd.core.section import Amount, Section


class Prices(Section):
    """The prices that `offloadctl plan-cost` calculates with, in any one currency, and the disk cache."""

    put_1000: Amount = Field(default=0.005, ge=0)
    """A thousand requests that are charged as PUT, COPY, POST or LIST. The defaults are AWS's list prices for S3
    Standard in us-east-1, in dollars; look up those of your region and class."""

    get_1000: Amount = Field(default=0.0004, ge=0)
    """A thousand that are charged as GET, as HEAD is."""

    delete_1000: Amount = Field(default=0.0, ge=0)
    """A thousand deletions; AWS charges nothing for them."""

    stored_gib_month: Amount = Field(default=0.023, ge=0)
    """A GiB that is stored for a month."""

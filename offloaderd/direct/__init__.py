"""Direct reads: a client fetches committed entries from the bucket itself, by a daemon's plan (docs/client.md)."""

from offloaderd.direct.bucket import BucketReads, bucket_reads

__all__ = ["BucketReads", "bucket_reads"]

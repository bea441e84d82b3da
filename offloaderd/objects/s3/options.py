"""Where a bucket is, and how to talk to its service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES_PER_S_MIN = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Where the bucket is and how to talk to it; `others` are buckets of the same service, opened with the same keys.

    Without `endpoint` it is AWS in `region`; without keys, `profile` or `role_arn` (with a web identity), botocore's
    own search (environment, profile, role) applies. `encryption` is S3's ServerSideEncryption: AES256 or aws:kms.
    `signed_host` is what the service calls itself where `endpoint` is another way to it; `sign_payloads`: sign bodies.
    A transfer slower than `bytes_per_s_min`, after the time that every request has, counts as stuck.
    """

    bucket: str
    others: tuple[str, ...] = ()
    endpoint: str | None = None
    signed_host: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    web_identity_token_file: str | None = None
    encryption: str | None = None
    kms_key_id: str | None = None
    path_style: bool = True
    sign_payloads: bool = False
    connections_max: int = 32
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    bytes_per_s_min: int = BYTES_PER_S_MIN
    page_keys: int = 1000

    def encrypting(self) -> dict[str, Any]:
        """Return what a new object is asked to be encrypted with; the bucket's own setting needs no word."""
        said = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {name: value for name, value in said.items() if value is not None}

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"S3Options(bucket={self.bucket!r}, endpoint={self.endpoint!r}, region={self.region!r})"

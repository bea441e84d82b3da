"""Settings of the object store."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr

from offloaderd.core.section import OptionalSecret, OptionalText, Seconds, Section, Shape, Url, is_private
from offloaderd.objects.kinds import KINDS
from offloaderd.objects.places import Place, Places
from offloaderd.objects.stored_as import STORAGE_CLASS, STORAGE_CLASS_FORM, TAGS, TAGS_FORM

AWS = ".amazonaws.com"
Bucket = Annotated[
    str,
    Field(pattern=r"^([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])?$"),
    Shape("3 to 63 lower-case letters, digits, dots, dashes and (Google) underscores"),
]
KeyPrefix = Annotated[
    str,
    Field(max_length=500, pattern=r"^([^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*)?$"),
    Shape("up to 500 characters, no slash at the start"),
]
StorageClass = Annotated[str, Field(pattern=rf"^{STORAGE_CLASS}$"), Shape(STORAGE_CLASS_FORM)]
Tags = Annotated[str, Field(pattern=rf"^{TAGS}$"), Shape(TAGS_FORM)]
_PLACE = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/([^,/\x00-\x1f\x7f][^,\x00-\x1f\x7f]{0,499})?)?"
PlaceList = Annotated[
    str,
    Field(pattern=rf"^(\s*{_PLACE}(\s*,\s*{_PLACE})*\s*)?$"),
    Shape("BUCKET or BUCKET/PREFIX, several with commas between them"),
]


SERVICES = "objects.services"
"""The table of further services in the settings."""
ServiceName = Annotated[
    str,
    Field(max_length=40, pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"),
    Shape("up to 40 lower-case letters, digits and single underscores, a letter first"),
]
"""Name of a further service; an environment variable can have it as a part."""


class ServiceSettings(Section):
    """A further service where segments are stored, under a name of yours. It has all settings of `objects`: another
    kind, another endpoint, other credentials. Policies name its places as they name all others, by bucket and prefix,
    so no two services have a bucket of the same name; a directory is named by its `bucket`. A service that cannot be
    reached stops the topics that need it, and no others.
    """

    _section: str = PrivateAttr("objects")

    kind: Literal["s3", "azure", "gcs", "filesystem"] = "s3"
    """Kind of object store: an S3 service, Azure Blob Storage (extra `azure`), Google Cloud Storage (extra `gcs`), or a
    directory (PIP-76's filesystem offloader)."""

    bucket: Bucket = Field(default="", examples=["pulsar-offload"])
    """Bucket for all topics, with Azure the container; must exist. There is no default, as a guess could be someone
    else's."""

    prefix: KeyPrefix = ""
    """Prefix of every key, for a shared bucket; write a slash at its end for a folder. Empty by default, because
    Pulsar's own reader expects keys without a prefix."""

    places: PlaceList = Field(default="", examples=["pulsar-offload-eu/topics/, pulsar-archive"])
    """Further places that policies may name: buckets of the same service, with the same keys, each with a prefix if it
    needs one; those of other services are in objects.services. Segments there are read, collected, verified and rebuilt
    as well; keep a place here for as long as segments lie in it."""

    storage_class: StorageClass = Field(default="", examples=["STANDARD_IA"])
    """Storage class of new data objects, unless a policy names another. Empty: the bucket's own. Archives are refused,
    as their objects cannot be read at once. Index and manifest keep the bucket's class."""

    tags: Tags = Field(default="", examples=["tenant={tenant}, namespace={namespace}"])
    """Tags of new objects, for the bill, unless a policy names others: NAME=VALUE, several with commas between them;
    {tenant}, {namespace} and {cluster} stand for the topic's. Needs s3:PutObjectTagging, in Azure blobs/tags/write."""

    endpoint: Url = Field(default=None, examples=["http://127.0.0.1:9000"])
    """URL of an S3 service other than AWS, of Azure's Blob service where it is not
    https://ACCOUNT.blob.core.windows.net, or of an emulator of Google's. Not set: AWS in objects.region, that, or
    Google."""

    signed_host: OptionalText = Field(default=None, examples=["s3.eu-west-1.amazonaws.com"])
    """Name of the service where objects.endpoint is another way to it (a tunnel, a forwarded port), sent and signed as
    Host. Not set: the host of the endpoint."""

    region: str = Field(default="us-east-1", min_length=1)
    """Region of the bucket; most other services ignore it."""

    access_key: OptionalText = Field(default=None, examples=["AKIAIOSFODNN7EXAMPLE"])
    """Access key. Not set: the usual AWS chain (environment, profile, instance role)."""

    secret_key: OptionalSecret = Field(default=None, examples=[""])
    """Its secret; better given as OFFLOADERD__OBJECTS__SECRET_KEY than in a file. Never shown."""

    profile: OptionalText = Field(default=None, examples=[""])
    """Profile of the AWS files to take credentials from, also one that takes a role or calls a program. Not set: the
    chain's own choice."""

    role_arn: OptionalText = Field(default=None, examples=[""])
    """Role to take with a web identity (objects.web_identity_token_file), as in a Kubernetes pod; its credentials are
    renewed before they end. Not set: AWS_ROLE_ARN, if there is one."""

    web_identity_token_file: OptionalText = Field(default=None, examples=[""])
    """File with the web identity token for role_arn; read at each renewal."""

    credentials_file: OptionalText = Field(default=None, examples=[""])
    """File with credentials. Google's (kind = gcs): a workload identity federation, a service account's key, or a
    user's; not set: the application default credentials, in a pod those of its service account. Azure's (kind = azure):
    a SAS, a key or a connection string. It is read again once the store has refused what was in it."""

    encryption: Literal["default", "sse-s3", "sse-kms"] = "default"
    """Server-side encryption of each new object. default: what the bucket is set to. sse-s3: keys of S3. sse-kms: a key
    of the KMS; every read then needs the right to use that key."""

    kms_key_id: OptionalText = Field(default=None, examples=[""])
    """Id, alias or ARN of the key for sse-kms. Not set: the service's own key for S3."""

    path_style: bool = True
    """Name the bucket in the path rather than in the host's name, which services without wildcard DNS need and AWS
    still accepts."""

    connections_max: int = Field(default=32, ge=1, le=1000)
    """Connections to each bucket. Enough for the default uploads and as many reads."""

    connect_timeout_s: Seconds = Field(default=5.0, gt=0, le=300)
    """How long one connection may take to open."""

    read_timeout_s: Seconds = Field(default=30.0, gt=0, le=3600)
    """How long the store may be silent in the middle of a request."""

    azure_account: OptionalText = Field(default=None, examples=["pulsaroffload"])
    """Name of the storage account (kind = azure). Not set: the one of azure_connection_string."""

    azure_key: OptionalSecret = Field(default=None, examples=[""])
    """Key of the account; better given as OFFLOADERD__OBJECTS__AZURE_KEY than in a file. Never shown. Without a key, a
    SAS and a connection string the identity of this machine or pod is used, which can have fewer rights."""

    azure_sas: OptionalSecret = Field(default=None, examples=[""])
    """Shared access signature for the container, from `sv=` on. Never shown."""

    azure_connection_string: OptionalSecret = Field(default=None, examples=[""])
    """Address and credentials in one text, as the portal shows them. Never shown."""

    azure_client_id: OptionalText = Field(default=None, examples=[""])
    """Client id of the identity, if there are several. Not set: AZURE_CLIENT_ID, or the system's own one."""

    directory: str = Field(default="/var/lib/offloaderd/objects", min_length=1)
    """Root of the filesystem store (kind = filesystem). Its place is written /PREFIX, / without a prefix: its bucket is
    empty, or in a table of objects.services the `bucket` there."""

    @property
    def section(self) -> str:
        """Its table in the settings, with which the names of its settings begin."""
        return self._section

    @property
    def is_first(self) -> bool:
        """Whether it is the daemon's own service, for topics whose policy names no place."""
        return self._section == "objects"

    @property
    def every_service(self) -> tuple["ServiceSettings", ...]:
        """This service, and the further ones."""
        return (self,)

    @property
    def own_places(self) -> tuple[Place, ...]:
        """The places of this service alone, the one of `bucket` and `prefix` first."""
        kind = KINDS[self.kind]
        fixed = {"driver": kind.driver} | {name: getattr(self, name) or "" for name in kind.located}
        named = {(self.bucket, self.prefix): None} | dict.fromkeys(named_places(self.places))
        unnamed = not kind.has_buckets and (self.is_first or not self.bucket)
        return tuple(
            Place(
                driver=fixed | ({} if unnamed else {"bucket": bucket}) | {"prefix": prefix},
                storage_class=self.storage_class,
                tags=self.tags,
            )
            for bucket, prefix in named
        )

    @property
    def all_places(self) -> Places:
        """The daemon's own place, and those that policies may name."""
        return Places(*(place for service in self.every_service for place in service.own_places))

    def service_at(self, bucket: str) -> "ServiceSettings":
        """Return the service with a bucket; the first one for a bucket that no service names."""
        return next((one for one in self.every_service if any(bucket == at.bucket for at in one.own_places)), self)

    def each_place(self) -> Iterator[tuple[Place, "ServiceSettings"]]:
        """Yield every place, and its service with that place alone."""
        for service in self.every_service:
            for place in service.own_places:
                bucket = place.bucket or service.bucket
                yield place, service.alone(bucket, place.prefix)

    def alone(self, bucket: str, prefix: str) -> Self:
        """Return the settings of this service with one place."""
        return self.model_copy(update={"bucket": bucket, "prefix": prefix, "places": ""})

    @property
    def service(self) -> str:
        """Kind of the service, as in `stored_as.CLASSES`."""
        host = urlsplit(self.endpoint).hostname or "" if self.endpoint is not None else AWS
        return "aws" if self.kind == "s3" and f".{host}".endswith(AWS) else self.kind

    @property
    def sign_payloads(self) -> bool:
        """Whether bodies are signed: if a third party could replace them on the way."""
        return self.endpoint is not None and not is_private(self.endpoint)

    @property
    def azure_secrets(self) -> tuple[str, str, str]:
        """Connection string, key and SAS in clear, each empty without one."""
        connection_string, key, sas = (
            given.get_secret_value() if given is not None else ""
            for given in (self.azure_connection_string, self.azure_key, self.azure_sas)
        )
        return connection_string, key, sas

    def encrypting(self) -> dict[str, Any]:
        """Return the request's parameters for the encryption of a new object; none for the bucket's own setting."""
        algorithm = {"default": None, "sse-s3": "AES256", "sse-kms": "aws:kms"}[self.encryption]
        said = {"ServerSideEncryption": algorithm, "SSEKMSKeyId": self.kms_key_id}
        return {name: value for name, value in said.items() if value is not None}


class ObjectsSettings(ServiceSettings):
    """Where segments are stored."""

    services: Mapping[ServiceName, ServiceSettings] = Field(default_factory=dict)
    """Further services by name, see objects.services.NAME."""

    def model_post_init(self, context: object, /) -> None:
        """Tell each further service its name."""
        super().model_post_init(context)
        self._name_services()

    def with_services(self, services: Mapping[str, ServiceSettings]) -> Self:
        """Return these settings with further services by name."""
        found = self.model_copy(update={"services": services})
        found._name_services()  # noqa: SLF001 - of the same type
        return found

    def _name_services(self) -> None:
        for name, service in self.services.items():
            service._section = f"{SERVICES}.{name}"  # noqa: SLF001 - of the same module

    @property
    def every_service(self) -> tuple[ServiceSettings, ...]:
        """See ServiceSettings."""
        return (self, *self.services.values())

    def alone(self, bucket: str, prefix: str) -> Self:
        """See ServiceSettings."""
        return self.model_copy(update={"bucket": bucket, "prefix": prefix, "places": "", "services": {}})


def named_places(text: str) -> list[tuple[str, str]]:
    """Return the bucket and prefix of each place of a PlaceList."""
    items = [item.strip().partition("/") for item in text.split(",") if item.strip()]
    return [(bucket, prefix) for bucket, _, prefix in items]

"""Reading a broker's configuration of offloading: for each key its use here, or why it has none. Pure.

The keys, their defaults and their traps are those of OffloadPoliciesImpl and TieredStorageConfiguration (Pulsar 4.0):
- of a policy's own name and the file's name for it, its own counts (`OffloadPoliciesImpl.getCompatibleValue`);
- driver aws-s3 reads the `s3...` key of a place before the universal one, also an empty one, and its block size alone;
  driver S3 reads the universal names alone, though its validation passes the `s3...` bucket (apache/pulsar#22839);
- driver google-cloud-storage does the same with its `gcs...` keys, has none for the endpoint, which has the universal
  name alone, and a file with its credentials;
- driver azureblob reads the universal names but the endpoint, and account and key from the brokers' environment;
- driver aliyun-oss reads the universal names, speaks S3 to OSS with the bucket in the name of the host, as OSS wants
  it, and has its key from the brokers' environment (JCloudBlobStoreProvider);
- without a lag in the file brokers never delete, unlike the 4 hours of the documentation.
Secrets are never copied and never shown.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import OffloadMethod
from offloaderd.objects.kinds import KINDS
from offloaderd.policy.policies import FIELDS, OFF, MiB, OffloadPolicies

BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 5 * MiB, 1024 * MiB


class Driver(StrEnum):
    """Pulsar's drivers that store where this daemon can."""

    AWS_S3 = "aws-s3"
    S3 = "S3"
    ALIYUN = "aliyun-oss"
    GCS = "google-cloud-storage"
    AZURE = "azureblob"
    FILESYSTEM = "filesystem"


STORES: Mapping[Driver, str] = {
    Driver.AWS_S3: "s3",
    Driver.S3: "s3",
    Driver.ALIYUN: "s3",
    Driver.GCS: "gcs",
    Driver.AZURE: "azure",
    Driver.FILESYSTEM: "filesystem",
}
"""The kind of store of each; a release may lack one."""
OWN_KEYS: Mapping[Driver, str] = {Driver.AWS_S3: "s3ManagedLedgerOffload", Driver.GCS: "gcsManagedLedgerOffload"}
"""The begin of a driver's own keys, which it reads before the universal ones, also empty ones."""
ENDPOINT = "ServiceEndpoint"
KEY_FILE = "gcsManagedLedgerOffloadServiceAccountKeyFile"
UNSUPPORTED = ("transient",)
OURS = re.compile(
    r"managedLedgerOffload|managedLedgerDataReadPriority|s3ManagedLedgerOffload|gcsManagedLedgerOffload|fileSystem"
    r"(ProfilePath|URI)|offloadersDirectory|triggerOffloadOnTopicLoad|managedLedgerInactiveOffloaded"
    r"|m(ax|in)\w*OffloadSegment"
)
SECRET = re.compile(r"(?i)credential|secret|password|token|KeyFile")

POLICIES: Mapping[str, str] = {
    "managedLedgerOffloadThresholdInBytes": "threshold_bytes",
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "threshold_bytes",
    "managedLedgerOffloadThresholdInSeconds": "threshold_s",
    "managedLedgerOffloadDeletionLagInMillis": "deletion_lag_s",
    "managedLedgerOffloadDeletionLagMs": "deletion_lag_s",
    "managedLedgerOffloadedReadPriority": "read_priority",
    "managedLedgerDataReadPriority": "read_priority",
}
"""Policies by their names in the file; of two names the first one counts."""

PLACES: Mapping[str, str] = {
    "Bucket": "objects.bucket",
    "Region": "objects.region",
    ENDPOINT: "objects.endpoint",
    "MaxBlockSizeInBytes": "ledger_based.block_bytes",
}
"""Settings by the end of the keys `managedLedgerOffload...` and `s3ManagedLedgerOffload...`."""

_WITHOUT: Mapping[tuple[Driver, str], str] = {
    (Driver.GCS, "Region"): "a bucket of Google's is found by its name, wherever it is",
    (Driver.AZURE, "Region"): "an account of Azure's is found by its name, wherever it is",
    (Driver.AZURE, ENDPOINT): "driver azureblob writes to https://ACCOUNT.blob.core.windows.net, whatever it says",
}
"""Keys of places that a driver, or its kind of store, does without, with the reason."""

UNUSED: Mapping[str, str] = {
    "ReadBufferSizeInBytes": "reads take whole blocks through a cache: memory.cache_bytes and read.read_ahead_bytes",
    "managedLedgerOffloadMaxThreads": "uploads are bounded by upload.concurrency_max",
    "managedLedgerOffloadReadThreads": "reads are bounded by read.readers_max and objects.connections_max",
    "managedLedgerOffloadPrefetchRounds": "read ahead is bounded by read.read_ahead_bytes",
    "managedLedgerOffloadMinBlockSizeInBytes": "parts are offload.part_bytes; Pulsar itself never reads this key",
    "managedLedgerOffloadWriteBufferSizeInBytes": "buffers are memory.buffer_bytes; Pulsar itself never reads this key",
    "managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds": "no handle is kept open for a reader",
    "offloadersDirectory": "the daemon loads no plug-ins",
    "triggerOffloadOnTopicLoad": "topics are looked at all the time, loaded by a broker or not",
    "s3ManagedLedgerOffloadRole": "roles come with the AWS chain: profile, web identity or instance role",
    "s3ManagedLedgerOffloadRoleSessionName": "roles come with the AWS chain: profile, web identity or instance role",
    "s3ManagedLedgerOffloadCredentialId": "secrets are not copied: set objects.access_key",
    "s3ManagedLedgerOffloadCredentialSecret": "secrets are not copied: set OFFLOADERD__OBJECTS__SECRET_KEY",
    "fileSystemProfilePath": "a profile of Hadoop; the daemon writes files without it",
}

UNITS = {"threshold_bytes": "bytes", "threshold_s": "seconds", "deletion_lag_s": "milliseconds up to ten years"}

_BUCKET = FIELDS["bucket"]
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_LINE = re.compile(r"line (\d+)")
_URL = re.compile(r"https?://[^\s/]+/?")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The use of one key: a policy or a setting in `used_as`; empty: it is ignored for the reason in `why`."""

    line: int
    key: str
    value: str
    used_as: str = ""
    why: str = ""


@dataclass(slots=True)
class Import:
    """The result for a configuration. `mistakes` name their lines; with any of them nothing should be applied."""

    verdicts: list[Verdict] = field(default_factory=list)
    policies: OffloadPolicies = field(default_factory=OffloadPolicies)
    settings: dict[str, str | int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def read(text: str, kinds: Collection[str] = KINDS) -> Import:
    """Read a broker.conf (or standalone.conf, or the properties of a namespace's offload policies).

    `kinds` are the kinds of stores that this daemon has.
    """
    found, mistakes = properties(text, lambda key: OURS.match(key) is not None)
    return _Reader({one.key: one for one in found}, mistakes, kinds).read()


class _Reader:
    """One file being read."""

    def __init__(self, given: "dict[str, Property]", mistakes: list[str], kinds: Collection[str]) -> None:
        self._given = given
        self._kinds = kinds
        self._out = Import(mistakes=mistakes)
        self._values: dict[str, object] = {}
        self._verdicts: dict[str, Verdict] = {}

    def read(self) -> Import:
        """Return the use of every key."""
        driver = self._driver()
        for name in dict.fromkeys(POLICIES.values()):
            self._policy(name)
        if driver is Driver.FILESYSTEM:
            self._directory()
        elif driver is not None:
            self._places(driver)
            self._credentials(driver)
        for one in self._given.values():
            if one.key not in self._verdicts:
                self._ignore(one, self._why_unused(one.key, driver))
        if driver is not None:
            self._as_pulsar_would()
        out = self._out
        out.policies = OffloadPolicies(**self._values)  # type: ignore[arg-type]
        out.verdicts = sorted(self._verdicts.values(), key=lambda one: one.line)
        out.mistakes.sort(key=_line_of)
        return out

    def _driver(self) -> Driver | None:
        one = self._given.get("managedLedgerOffloadDriver")
        if one is None or not one.value:
            self._out.notes.append("no driver is set: brokers with this configuration offload nothing")
            return None
        named = next((driver for driver in Driver if one.value.lower() == driver.lower()), None)
        if named is not None and STORES[named] in self._kinds:
            self._use(one, "objects.kind")
            self._out.settings["objects.kind"] = STORES[named]
            return named
        if named is not None or one.value.lower() in UNSUPPORTED:
            self._ignore(one, f"this release stores in {', '.join(self._kinds)}")
            self._out.notes.append(f"driver {one.value} is not supported: say in the settings where to store")
        else:
            known = ", ".join((*Driver, *UNSUPPORTED))
            self._wrong(one, f"{one.value!r} is no driver of Pulsar; it has {known}")
        return None

    def _policy(self, name: str) -> None:
        """Take the first of a policy's names that has a value."""
        keys = [key for key, policy in POLICIES.items() if policy == name]
        present = [self._given[key] for key in keys if key in self._given and self._given[key].value]
        for number, one in enumerate(present):
            if number:
                self._ignore(one, f"{present[0].key} in line {present[0].line} counts")
                continue
            value = _read(name, one.value)
            if value is None:
                asked = f"a whole number of {UNITS[name]}" if name in UNITS else FIELDS[name].allowed
                self._wrong(one, f"{one.value!r} is not {asked}")
            else:
                self._values[name] = value
                self._use(one, f"policy {name}")

    def _places(self, driver: Driver) -> None:
        """Take bucket, region, endpoint and block size as the driver does."""
        for end, setting in PLACES.items():
            universal = self._filled(f"managedLedgerOffload{end}")
            own = self._given.get(f"{OWN_KEYS.get(driver, OWN_KEYS[Driver.AWS_S3])}{end}")
            if why := _WITHOUT.get((driver, end)):
                for one in filter(None, (universal, own if driver in OWN_KEYS else None)):
                    self._ignore(one, why)
                continue
            if driver not in OWN_KEYS or (driver, end) == (Driver.GCS, ENDPOINT):
                if own is not None and own.value:
                    self._ignore(own, f"driver {driver} reads managedLedgerOffload{end} alone")
                self._place(universal, setting)
                continue
            if end == "MaxBlockSizeInBytes":
                if universal is not None:
                    counts = f"{OWN_KEYS[driver]}{end}"
                    self._ignore(universal, f"with driver {driver} it has no effect: {counts} counts")
            elif own is not None and universal is not None:
                empty = "" if own.value else ", though it is empty"
                self._ignore(universal, f"with driver {driver} {own.key} in line {own.line} counts{empty}")
            self._place(own if own is not None or end == "MaxBlockSizeInBytes" else universal, setting)
        if "objects.bucket" not in self._out.settings:
            needed = f"{OWN_KEYS.get(driver, 'managedLedgerOffload')}Bucket"
            self._out.mistakes.append(f"no bucket: driver {driver} needs {needed}")
        if driver in {Driver.S3, Driver.ALIYUN} and "objects.endpoint" not in self._out.settings:
            self._out.mistakes.append(f"no endpoint: driver {driver} needs managedLedgerOffloadServiceEndpoint")
        if driver is Driver.ALIYUN:
            self._out.settings["objects.path_style"] = False

    def _credentials(self, driver: Driver) -> None:
        """Take the file with Google's credentials; say where those for Azure and Aliyun are."""
        if driver is Driver.GCS:
            one = self._filled(KEY_FILE)
            if one is not None:
                self._use(one, "objects.credentials_file")
                self._out.settings["objects.credentials_file"] = one.value
            else:
                self._out.notes.append("no file with credentials: the daemon takes Google's application defaults")
        if driver is Driver.ALIYUN:
            self._out.notes.append(
                "brokers have the key in their environment (ALIYUN_OSS_ACCESS_KEY_ID, ALIYUN_OSS_ACCESS_KEY_SECRET): "
                "set objects.access_key and OFFLOADERD__OBJECTS__SECRET_KEY"
            )
        if driver is Driver.AZURE:
            self._out.notes.append(
                "brokers have account and key in their environment (AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_ACCESS_KEY): "
                "set objects.azure_account and OFFLOADERD__OBJECTS__AZURE_KEY, or give the daemon a managed identity"
            )
            self._out.notes.append(
                "Pulsar records the container of a ledger, not its account: objects.azure_account has to be that of "
                "brokers, or their ledgers are not found"
            )

    def _place(self, one: "Property | None", setting: str) -> None:
        if one is None or not one.value:
            return
        value: str | int = one.value
        wrong = None
        if setting == "objects.bucket" and _BUCKET.flaw(value):
            wrong = f"is not {_BUCKET.allowed}"
        if setting == "objects.endpoint" and not _URL.fullmatch(one.value):
            wrong = "is not http://HOST:PORT or https://HOST"
        if setting == "ledger_based.block_bytes":
            value = int(one.value) if one.value.isascii() and one.value.isdecimal() else -1
            if not BLOCK_BYTES_MIN <= value <= BLOCK_BYTES_MAX:
                wrong = f"is not {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX} bytes"
        if wrong is not None:
            self._wrong(one, f"{one.value!r} {wrong}")
            return
        self._use(one, setting)
        self._out.settings[setting] = value

    def _directory(self) -> None:
        """Take the directory of the filesystem driver, which is Hadoop's."""
        one = self._filled("fileSystemURI")
        if one is None:
            self._out.mistakes.append("no directory: driver filesystem needs fileSystemURI")
        elif one.value.startswith("file:///"):
            self._use(one, "objects.directory")
            self._out.settings["objects.directory"] = one.value.removeprefix("file://")
            self._out.notes.append(
                "files that Pulsar's filesystem driver wrote are Hadoop's; the daemon does not read them"
            )
        else:
            self._ignore(one, "the daemon writes to a mounted directory, file:///PATH, not to HDFS")

    def _as_pulsar_would(self) -> None:
        """Add Pulsar's defaults that are not in the file."""
        self._values["method"] = OffloadMethod.LEDGER_BASED
        self._out.notes.append("method = ledger-based, as brokers offload; streaming is PIP-76's")
        if "deletion_lag_s" not in self._values:
            self._values["deletion_lag_s"] = float(OFF)
            self._out.notes.append(
                "deletion_lag_s = off: without a lag in the file brokers delete nothing from BookKeeper"
            )
        if all(self._values.get(name, OFF) in {OFF, float(OFF)} for name in ("threshold_bytes", "threshold_s")):
            self._out.notes.append("no threshold is set: brokers with this configuration offload by hand only")

    def _why_unused(self, key: str, driver: Driver | None) -> str:
        if not self._given[key].value:
            return "it is empty"
        if driver is not None and re.match("(s3|gcs)M", key) and not key.startswith(f"{STORES[driver]}M"):
            return f"driver {driver} does not read it"
        if SECRET.search(key) and key not in UNUSED:
            return "secrets are not copied; see the settings objects.access_key and objects.secret_key"
        known = next(
            (why for name, why in UNUSED.items() if key == name or (name[0] == "R" and key.endswith(name))), None
        )
        if known is not None:
            return known
        if key.startswith("managedLedgerOffloadExtraConfig"):
            return "it is for a driver's own use"
        if key.startswith("fileSystem") or re.match("(m|s3M|gcsM)anagedLedgerOffload", key):
            return f"driver {driver} does not read it" if driver is not None else "there is no driver that reads it"
        return "neither brokers nor the daemon read it from this file"

    def _filled(self, key: str) -> "Property | None":
        one = self._given.get(key)
        return one if one is not None and one.value else None

    def _use(self, one: "Property", what: str) -> None:
        self._verdicts[one.key] = Verdict(one.line, one.key, one.value, what)

    def _ignore(self, one: "Property", why: str) -> None:
        value = "(not shown)" if SECRET.search(one.key) and one.value else one.value
        self._verdicts[one.key] = Verdict(one.line, one.key, value, "", why)

    def _wrong(self, one: "Property", why: str) -> None:
        self._verdicts[one.key] = Verdict(one.line, one.key, one.value, "", why)
        self._out.mistakes.append(f"line {one.line}: {one.key}: {why}")


def _read(name: str, text: str) -> object:
    """Read a policy's value as brokers do, numbers without a unit; None for an invalid one."""
    if name in UNITS and not _WHOLE.fullmatch(text):
        return None
    try:
        return FIELDS[name].read(text, scale=FIELDS[name].scale)
    except InvalidInput:
        return None


def _line_of(mistake: str) -> int:
    """Return the line that a mistake names; the greatest number without one."""
    match = _LINE.match(mistake)
    return int(match[1]) if match is not None else sys.maxsize


def toml(settings: Mapping[str, str | int]) -> Iterator[str]:
    """Yield the lines of a settings file with these settings."""
    section = ""
    for key, value in sorted(settings.items()):
        table, _, name = key.rpartition(".")
        if table != section:
            yield from ("", f"[{table}]") if section else (f"[{table}]",)
            section = table
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        yield f"{name} = {str(value).lower()}" if isinstance(value, int) else f'{name} = "{escaped}"'


class Property(NamedTuple):
    """One key with its value; `line` is its first one, from 1 on."""

    line: int
    key: str
    value: str


def properties(text: str, wanted: Callable[[str], bool]) -> tuple[list[Property], list[str]]:
    """Return the `wanted` keys, and the mistakes: lines without `=` or key, and wanted keys given twice.

    Java uses the last of two lines with one key, and any blank as `=`; in a broker's file both are mistakes.
    """
    found: dict[str, Property] = {}
    mistakes = []
    for number, line in _lines(text):
        key, equals, value = line.partition("=")
        key = key.rstrip()
        if not equals or not key or any(map(str.isspace, key)):
            begin = ascii(line.split()[0][:40])  # no more of it: the rest may be a secret
            mistakes.append(f"line {number}, which begins with {begin}, is not KEY=VALUE")
            continue
        if not wanted(key):
            continue
        if key in found:
            mistakes.append(
                f"line {number}: {key} was given in line {found[key].line} already; Java takes the last one"
            )
        found[key] = Property(number, key, value.strip())
    return list(found.values()), mistakes


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines but blank ones and comments; a line that ends with a backslash is joined with the next."""
    begun, whole = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not whole and (not line or line[0] in "#!"):
            continue
        begun = begun or number
        if len(line) - len(line.rstrip("\\")) & 1:
            whole += line[:-1]
            continue
        yield begun, whole + line
        begun, whole = 0, ""
    if whole:
        yield begun, whole

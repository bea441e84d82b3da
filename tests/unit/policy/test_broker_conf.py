"""A broker's configuration: which key counts under which driver, what is said of the others, and bad files."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import OffloadMethod
from offloaderd.core.read_options import ReadPriority
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.policy.broker_conf import Import, read, toml
from offloaderd.policy.policies import OffloadPolicies

MiB = 2**20
S3 = "managedLedgerOffloadDriver=aws-s3\ns3ManagedLedgerOffloadBucket=topics\n"


def verdicts(found: Import) -> dict[str, str]:
    """Return what became of each key: as what it is used, or in brackets why it is not."""
    return {one.key: one.used_as or f"({one.why})" for one in found.verdicts}


def test_a_usual_file_is_taken_over() -> None:
    """Policies in their units, the place as settings; the rest of the file is passed over in silence."""
    found = read(
        "# a comment = 1\nclusterName=pulsar\n! another\n\n"
        "managedLedgerOffloadDriver = AWS-S3\n"
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes=1073741824\n"
        "managedLedgerOffloadThresholdInSeconds=-1\n"
        "managedLedgerOffloadDeletionLagMs=\\\n    60000\n"
        "managedLedgerDataReadPriority=bookkeeper-first\n"
        "s3ManagedLedgerOffloadBucket=topics\ns3ManagedLedgerOffloadRegion=eu-west-3\n"
        "s3ManagedLedgerOffloadServiceEndpoint=https://s3.example:9000\n"
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes=67108864\n"
    )
    assert not found.mistakes
    assert found.policies == OffloadPolicies(
        method=OffloadMethod.LEDGER_BASED,
        threshold_bytes=2**30,
        threshold_s=-1.0,
        deletion_lag_s=60.0,
        read_priority=ReadPriority.BOOKKEEPER_FIRST,
    )
    assert found.settings == {
        "objects.kind": "s3",
        "objects.bucket": "topics",
        "objects.region": "eu-west-3",
        "objects.endpoint": "https://s3.example:9000",
        "ledger_based.block_bytes": 64 * MiB,
    }
    assert [one.line for one in found.verdicts] == [5, 6, 7, 8, 10, 11, 12, 13, 14]
    settings = Settings(**tomllib.loads("\n".join(toml(found.settings))))
    assert broken_rules(settings) == []
    assert (settings.objects.bucket, settings.ledger_based.block_bytes) == ("topics", 64 * MiB)


def test_driver_aws_s3_reads_its_own_keys_first() -> None:
    """The universal key counts only where its own is missing, and the universal block size never."""
    found = read(
        S3 + "managedLedgerOffloadBucket=other\nmanagedLedgerOffloadRegion=here\n"
        "managedLedgerOffloadMaxBlockSizeInBytes=5242880\n"
    )
    said = verdicts(found)
    assert "line 2 counts" in said["managedLedgerOffloadBucket"]
    assert said["managedLedgerOffloadRegion"] == "objects.region"
    assert "no effect" in said["managedLedgerOffloadMaxBlockSizeInBytes"]
    assert found.settings == {"objects.kind": "s3", "objects.bucket": "topics", "objects.region": "here"}


def test_driver_s3_reads_the_universal_keys_alone() -> None:
    """A bucket under the other name passes Pulsar's validation and is not read: the set-up of apache/pulsar#22839."""
    keys = "s3ManagedLedgerOffloadBucket=topics\ns3ManagedLedgerOffloadServiceEndpoint=http://e:1\n"
    found = read("managedLedgerOffloadDriver=S3\n" + keys)
    assert "managedLedgerOffloadBucket alone" in verdicts(found)["s3ManagedLedgerOffloadBucket"]
    assert found.mistakes == [
        "no bucket: driver S3 needs managedLedgerOffloadBucket",
        "no endpoint: driver S3 needs managedLedgerOffloadServiceEndpoint",
    ]
    universal = "managedLedgerOffloadBucket=b-1\nmanagedLedgerOffloadServiceEndpoint=http://e:1\n"
    found = read("managedLedgerOffloadDriver=s3\nmanagedLedgerOffloadMaxBlockSizeInBytes=5242880\n" + universal)
    assert not found.mistakes
    assert found.settings["ledger_based.block_bytes"] == 5 * MiB
    assert found.settings["objects.bucket"] == "b-1"


def test_of_two_names_the_one_that_pulsar_takes_counts() -> None:
    """The policies' own name, not the file's."""
    found = read(
        S3 + "managedLedgerOffloadAutoTriggerSizeThresholdBytes=1\nmanagedLedgerOffloadThresholdInBytes=2\n"
        "managedLedgerOffloadDeletionLagMs=1000\nmanagedLedgerOffloadDeletionLagInMillis=2000\n"
        "managedLedgerDataReadPriority=bookkeeper-first\nmanagedLedgerOffloadedReadPriority=tiered-first\n"
    )
    policies = found.policies
    assert (policies.threshold_bytes, policies.deletion_lag_s) == (2, 2.0)
    assert policies.read_priority is ReadPriority.TIERED_STORAGE_FIRST
    assert verdicts(found)["managedLedgerOffloadDeletionLagMs"] == (
        "(managedLedgerOffloadDeletionLagInMillis in line 6 counts)"
    )


@pytest.mark.parametrize(("driver", "own"), [("aws-s3", "s3"), ("google-cloud-storage", "gcs")])
def test_an_empty_key_of_a_driver_counts(driver: str, own: str) -> None:
    """As in a broker.conf that nobody has removed it from: Pulsar reads no universal key then."""
    found = read(
        f"managedLedgerOffloadDriver={driver}\nmanagedLedgerOffloadBucket=topics\n{own}ManagedLedgerOffloadBucket=\n"
    )
    assert found.mistakes == [f"no bucket: driver {driver} needs {own}ManagedLedgerOffloadBucket"]
    assert verdicts(found)["managedLedgerOffloadBucket"] == (
        f"(with driver {driver} {own}ManagedLedgerOffloadBucket in line 3 counts, though it is empty)"
    )
    assert verdicts(found)[f"{own}ManagedLedgerOffloadBucket"] == "(it is empty)"


def test_what_is_not_in_the_file_is_as_in_pulsar() -> None:
    """Without a lag nothing is deleted; without a threshold it goes by hand; without a driver nothing at all."""
    found = read(S3)
    assert found.policies == OffloadPolicies(method=OffloadMethod.LEDGER_BASED, deletion_lag_s=-1.0)
    assert [note.split()[0] for note in found.notes] == ["method", "deletion_lag_s", "no"]
    bare = read("managedLedgerOffloadThresholdInBytes=0\nmanagedLedgerOffloadDriver=\n")
    assert bare.policies == OffloadPolicies(threshold_bytes=0)
    assert "offload nothing" in bare.notes[0]
    assert verdicts(bare)["managedLedgerOffloadDriver"] == "(it is empty)"


def test_directories_are_taken_and_hdfs_is_not() -> None:
    """The filesystem driver's URI names a mounted directory or something that the daemon cannot write to."""
    found = read("managedLedgerOffloadDriver=filesystem\nfileSystemURI=file:///data/x\nfileSystemProfilePath=/p\n")
    assert found.settings == {"objects.kind": "filesystem", "objects.directory": "/data/x"}
    found = read("managedLedgerOffloadDriver=filesystem\nfileSystemURI=hdfs://x:1\n")
    assert "HDFS" in verdicts(found)["fileSystemURI"]
    assert read("managedLedgerOffloadDriver=filesystem\n").mistakes == [
        "no directory: driver filesystem needs fileSystemURI"
    ]


def test_the_driver_of_google_cloud_storage_is_taken_over() -> None:
    """Its own keys before the universal ones, but no endpoint; the file with its credentials; the region has no use."""
    found = read(
        "managedLedgerOffloadDriver=google-cloud-storage\nmanagedLedgerOffloadBucket=other\n"
        "gcsManagedLedgerOffloadBucket=topics\ngcsManagedLedgerOffloadRegion=europe-west3\n"
        "gcsManagedLedgerOffloadServiceAccountKeyFile=/etc/key.json\n"
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes=67108864\nmanagedLedgerOffloadServiceEndpoint=https://e:1\n"
        "gcsManagedLedgerOffloadServiceEndpoint=https://other:1\nmanagedLedgerOffloadRegion=europe-west4\n"
        "managedLedgerOffloadMaxBlockSizeInBytes=5242880\n"
    )
    assert not found.mistakes
    assert found.settings == {
        "objects.kind": "gcs",
        "objects.bucket": "topics",
        "objects.endpoint": "https://e:1",
        "objects.credentials_file": "/etc/key.json",
        "ledger_based.block_bytes": 64 * MiB,
    }
    said = verdicts(found)
    assert "line 3 counts" in said["managedLedgerOffloadBucket"]
    assert said["gcsManagedLedgerOffloadServiceEndpoint"] == (
        "(driver google-cloud-storage reads managedLedgerOffloadServiceEndpoint alone)"
    )
    assert all("found by its name" in said[key] for key in said if key.endswith("Region"))
    assert "gcsManagedLedgerOffloadMaxBlockSizeInBytes counts" in said["managedLedgerOffloadMaxBlockSizeInBytes"]
    assert not any("adopted" in note or "application defaults" in note for note in found.notes)
    assert Settings(**tomllib.loads("\n".join(toml(found.settings)))).objects.kind == "gcs"
    bare = read("managedLedgerOffloadDriver=google-cloud-storage\n")
    assert bare.mistakes == ["no bucket: driver google-cloud-storage needs gcsManagedLedgerOffloadBucket"]
    assert any("application defaults" in note for note in bare.notes)


def test_the_driver_of_aliyun_is_one_of_s3_with_the_bucket_in_the_hosts_name() -> None:
    """The universal keys alone; an endpoint has to be there; the note says where the key is."""
    found = read(
        "managedLedgerOffloadDriver=aliyun-oss\nmanagedLedgerOffloadBucket=topics\ns3ManagedLedgerOffloadBucket=other\n"
        "managedLedgerOffloadServiceEndpoint=https://oss-cn-hangzhou.aliyuncs.com\n"
    )
    assert not found.mistakes
    assert found.settings == {
        "objects.kind": "s3",
        "objects.bucket": "topics",
        "objects.endpoint": "https://oss-cn-hangzhou.aliyuncs.com",
        "objects.path_style": False,
    }
    assert verdicts(found)["s3ManagedLedgerOffloadBucket"] == (
        "(driver aliyun-oss reads managedLedgerOffloadBucket alone)"
    )
    assert any("ALIYUN_OSS_ACCESS_KEY_ID" in note for note in found.notes)
    written = Settings(**tomllib.loads("\n".join(toml(found.settings)))).objects
    assert (written.kind, written.path_style) == ("s3", False)
    assert read("managedLedgerOffloadDriver=aliyun-oss\nmanagedLedgerOffloadBucket=topics\n").mistakes == [
        "no endpoint: driver aliyun-oss needs managedLedgerOffloadServiceEndpoint"
    ]


def test_the_driver_of_azure_is_taken_over_where_the_release_has_such_a_store() -> None:
    """The universal keys alone, but not the endpoint; the notes say where account and key are."""
    text = (
        "managedLedgerOffloadDriver=azureblob\nmanagedLedgerOffloadBucket=topics\nmanagedLedgerOffloadRegion=west\n"
        "s3ManagedLedgerOffloadBucket=other\nmanagedLedgerOffloadMaxBlockSizeInBytes=5242880\n"
        "managedLedgerOffloadServiceEndpoint=https://blob.example\ngcsManagedLedgerOffloadServiceAccountKeyFile=/k\n"
        "s3ManagedLedgerOffloadCredentialId=hush\ns3ManagedLedgerOffloadRole=\n"
    )
    found = read(text)
    assert not found.mistakes
    assert found.settings == {
        "objects.kind": "azure",
        "objects.bucket": "topics",
        "ledger_based.block_bytes": 5 * MiB,
    }
    said = verdicts(found)
    assert "managedLedgerOffloadBucket alone" in said["s3ManagedLedgerOffloadBucket"]
    assert "found by its name" in said["managedLedgerOffloadRegion"]
    assert "ACCOUNT.blob.core.windows.net" in said["managedLedgerOffloadServiceEndpoint"]
    for key in ("gcsManagedLedgerOffloadServiceAccountKeyFile", "s3ManagedLedgerOffloadCredentialId"):
        assert said[key] == "(driver azureblob does not read it)", "no hint at a setting that Azure has not"
    assert said["s3ManagedLedgerOffloadRole"] == "(it is empty)"
    assert "hush" not in repr(found)
    assert any("AZURE_STORAGE_ACCESS_KEY" in note for note in found.notes)
    bare = read("managedLedgerOffloadDriver=azureblob\n")
    assert bare.mistakes == ["no bucket: driver azureblob needs managedLedgerOffloadBucket"]
    lacking = read(text, kinds=("s3", "filesystem"))
    assert (lacking.settings, lacking.mistakes) == ({}, [])
    assert "this release stores in s3, filesystem" in verdicts(lacking)["managedLedgerOffloadDriver"]


@pytest.mark.parametrize("driver", ["transient"])
def test_a_driver_that_the_daemon_has_not_is_ignored_with_its_keys(driver: str) -> None:
    """It is no mistake of the file; the policies are taken all the same."""
    found = read(
        f"managedLedgerOffloadDriver={driver}\ngcsManagedLedgerOffloadBucket=b-1\nmanagedLedgerOffloadBucket=b-2\n"
        "managedLedgerOffloadThresholdInBytes=5\n"
    )
    assert not found.mistakes
    assert found.settings == {}
    assert found.policies == OffloadPolicies(threshold_bytes=5)
    assert all(why.startswith("(") for key, why in verdicts(found).items() if "Threshold" not in key)


def test_secrets_are_neither_copied_nor_shown() -> None:
    """Not in a verdict, a note, a mistake, or a line that is none; the setting is named instead."""
    found = read(
        S3 + "s3ManagedLedgerOffloadCredentialId=hush1\ns3ManagedLedgerOffloadCredentialSecret=hush2\n"
        "gcsManagedLedgerOffloadServiceAccountKeyFile=hush3\ns3ManagedLedgerOffloadCredentialSecret hush4\n"
        "managedLedgerOffloadExtraConfigToken=hush5\n"
    )
    assert "hush" not in repr(found)
    assert "OFFLOADERD__OBJECTS__SECRET_KEY" in verdicts(found)["s3ManagedLedgerOffloadCredentialSecret"]


def test_every_key_of_pulsars_table_has_a_verdict() -> None:
    """None is passed over: used, or ignored with a reason."""
    keys = [
        "offloadersDirectory", "managedLedgerOffloadMaxThreads", "managedLedgerOffloadReadThreads",
        "managedLedgerOffloadPrefetchRounds", "triggerOffloadOnTopicLoad",
        "managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds", "s3ManagedLedgerOffloadRole",
        "s3ManagedLedgerOffloadRoleSessionName", "s3ManagedLedgerOffloadReadBufferSizeInBytes",
        "managedLedgerOffloadReadBufferSizeInBytes", "managedLedgerOffloadMinBlockSizeInBytes",
        "managedLedgerOffloadWriteBufferSizeInBytes", "managedLedgerOffloadExtraConfigX", "fileSystemProfilePath",
        "gcsManagedLedgerOffloadRegion", "gcsManagedLedgerOffloadMaxBlockSizeInBytes",
        "gcsManagedLedgerOffloadReadBufferSizeInBytes", "maxOffloadSegmentSizeInBytes",
        "managedLedgerOffloadSomethingNew",
    ]  # fmt: skip
    found = read(S3 + "".join(f"{key}=1\n" for key in keys))
    said = verdicts(found)
    assert set(keys) < set(said)
    assert all(said[key].startswith("(") and len(said[key]) > 5 for key in keys)


def test_everything_that_is_wrong_is_told_with_its_line() -> None:
    """Unknown driver, numbers, words, lines that are none, keys given twice; in the order of the file."""
    found = read(
        "managedLedgerOffloadDriver=ftp\n"
        "managedLedgerOffloadThresholdInBytes=10G\n"
        "managedLedgerOffloadThresholdInSeconds=\n"
        "managedLedgerOffloadDeletionLagMs=1.5\n"
        "some line\n"
        "=value\n"
        "managedLedgerDataReadPriority=fastest\n"
        "managedLedgerOffloadDeletionLagMs=2\n"
        "clusterName=a\nclusterName=b\n"
        "managedLedgerOffloadThresholdInSeconds=99999999999999999999\n"
    )
    lines = [mistake.split(":")[0].split(",")[0] for mistake in found.mistakes]
    assert lines == [f"line {number}" for number in (1, 2, 5, 6, 7, 8, 11, 11)]
    assert "aws-s3" in found.mistakes[0]
    assert "'10G' is not a whole number of bytes" in found.mistakes[1]
    assert "given in line 4 already" in found.mistakes[5]
    assert found.policies.deletion_lag_s == 0.002


@pytest.mark.parametrize(
    "line",
    [
        "s3ManagedLedgerOffloadBucket=No_Bucket",
        "s3ManagedLedgerOffloadServiceEndpoint=s3.example",
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes=64M",
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes=1024",
    ],
)
def test_a_place_that_cannot_be_is_a_mistake(line: str) -> None:
    """Checked as the daemon's settings are, before anybody copies it there."""
    found = read(f"managedLedgerOffloadDriver=aws-s3\nmanagedLedgerOffloadBucket=b-1\n{line}\n")
    assert any(mistake.startswith("line 3: ") for mistake in found.mistakes)


@given(st.text())
def test_any_text_is_read_without_a_crash(text: str) -> None:
    """Whatever is in the file; what comes of it is sound."""
    found = read(text)
    assert isinstance(found.mistakes, list)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1))
def test_settings_survive_the_way_through_toml(value: str) -> None:
    """Quotes and backslashes as well."""
    assert tomllib.loads("\n".join(toml({"objects.region": value, "objects.kind": "s3"})))["objects"]["region"] == value

"""Settings of security: what opens the API by mistake, what locks everybody out, and where secrets are not shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from offloaderd.access.settings import AccessSettings, TlsSettings
from offloaderd.api.settings import GrpcSettings
from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.settings import Settings, check, describe, load
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.daemon.settings.sections import HttpSettings, all_settings
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.settings import ObjectsSettings

if TYPE_CHECKING:
    from pathlib import Path

EVERYWHERE = "0.0.0.0"  # noqa: S104 - settings to judge; nothing listens
PAIR = {"cert_file": "c", "key_file": "k"}
GRANTS = ("admin alice *",)
SECRET = SecretStr("s")
FILES = ObjectsSettings(kind="filesystem")
AZURE: Any = {"kind": "azure", "bucket": "bucket", "azure_account": "a"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpc": GrpcSettings(host=EVERYWHERE)}, "opens the API to others"),
        ({"grpc": GrpcSettings(host=EVERYWHERE), "tls": TlsSettings(**PAIR)}, "opens the API to others"),
        ({"tls": TlsSettings(cert_file="c")}, "tls.cert_file is set without tls.key_file"),
        ({"http": HttpSettings(tls="server")}, "http.tls = server needs tls.cert_file"),
        ({"http": HttpSettings(tls="mutual"), "tls": TlsSettings(**PAIR)}, "http.tls = mutual needs tls.client_ca"),
        ({"tls": TlsSettings(**PAIR, client_ca_file="a")}, "access.grants gives none of them a role"),
        ({"access": AccessSettings(grants=GRANTS)}, "nobody has to say who they are"),
        ({"access": AccessSettings(grants=GRANTS, token_secret_key=SECRET)}, "tokens would be sent unencrypted"),
        (
            {
                "access": AccessSettings(grants=GRANTS, token_secret_key=SECRET, token_public_key=SECRET),
                "tls": TlsSettings(**PAIR),
            },
            "are both set",
        ),
        ({"metadata": MetadataSettings(acl="creator")}, "metadata.acl = creator needs a name"),
        ({"metadata": MetadataSettings(tls_ca_file="a")}, "metadata.tls is not"),
        ({"metadata": MetadataSettings(username="u")}, "metadata.username is set without metadata.password"),
        ({"objects": ObjectsSettings(bucket="bucket", role_arn="r")}, "objects.role_arn is set without"),
        ({"objects": ObjectsSettings(bucket="bucket", kms_key_id="k")}, "set it to sse-kms"),
        (
            {"objects": ObjectsSettings(kind="filesystem", encryption="sse-s3")},
            "set the encryption of the bucket or disk",
        ),
        (
            {"objects": ObjectsSettings(kind="gcs", bucket="bucket", encryption="sse-kms")},
            'objects.encryption is for objects.kind = "s3" alone, and it is "gcs"',
        ),
        ({"objects": ObjectsSettings(bucket="bucket", credentials_file="f")}, "objects.credentials_file is for"),
        ({"objects": ObjectsSettings(kind="gcs", bucket="bucket", region="eu-west-1")}, "objects.region is for"),
        ({"objects": ObjectsSettings(kind="gcs", bucket="bucket", profile="p")}, "objects.profile is for"),
        ({"objects": ObjectsSettings(bucket="bucket", azure_account="a")}, "objects.azure_account is for"),
        (
            {"objects": ObjectsSettings(**AZURE, credentials_file="f", azure_key=SECRET)},
            "objects.credentials_file and objects.azure_key are both set",
        ),
        ({"objects": ObjectsSettings(bucket="bucket", directory="/d")}, "objects.directory is for"),
        ({"objects": ObjectsSettings(kind="filesystem", storage_class="STANDARD")}, "it has no storage classes"),
        ({"objects": ObjectsSettings(kind="filesystem", tags="team=a")}, "a directory has no tags"),
        ({"objects": ObjectsSettings(bucket="bucket", storage_class="GLACIER")}, "GLACIER is an archive"),
        ({"objects": ObjectsSettings(bucket="bucket", storage_class="HOT")}, "HOT is no class of this kind of store"),
        ({"objects": ObjectsSettings(bucket="bucket", tags="team=a,team=b")}, "team is given twice"),
        ({"objects": ObjectsSettings(bucket="my_bucket")}, "no bucket: S3 has none with an underscore"),
        ({"objects": ObjectsSettings(bucket="bucket", places="10.0.0.1/x")}, "no bucket: S3 has none with"),
        ({"objects": ObjectsSettings(kind="gcs", bucket="my-google-bucket")}, "Google has none with google in it"),
        ({"objects": ObjectsSettings(**{**AZURE, "bucket": "a.bucket"})}, "Azure has none with a dot"),
        (
            {"objects": ObjectsSettings(bucket="bucket", profile="p", access_key="a", secret_key=SECRET)},
            "are ways to the same credentials",
        ),
    ],
)
def test_each_mistake_is_told(changes: dict[str, object], message: str) -> None:
    """One rule, one sentence with the settings and what to do."""
    settings = Settings.model_validate({"objects": FILES} | changes)
    (broken,) = broken_rules(settings)
    assert message in broken.text


def test_keys_of_s3_are_a_mistake_for_google() -> None:
    """Each is named; without the mistake they would be ignored, and other credentials used."""
    objects = ObjectsSettings(kind="gcs", bucket="bucket", access_key="a", secret_key=SECRET)
    broken = broken_rules(Settings(objects=objects))
    assert [one.keys for one in broken] == [
        ("objects.kind", "objects.access_key"),
        ("objects.kind", "objects.secret_key"),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"tls": TlsSettings(**PAIR)},
        {
            "grpc": GrpcSettings(host=EVERYWHERE),
            "tls": TlsSettings(**PAIR, client_ca_file="a"),
            "access": AccessSettings(grants=GRANTS),
        },
        {
            "grpc": GrpcSettings(host=EVERYWHERE),
            "tls": TlsSettings(**PAIR),
            "access": AccessSettings(grants=GRANTS, token_public_key=SECRET),
        },
        {"metadata": MetadataSettings(acl="creator", username="u", password=SECRET)},
        {"metadata": MetadataSettings(acl="creator", tls=True, tls_cert_file="c", tls_key_file="k")},
        {"objects": ObjectsSettings(bucket="bucket", encryption="sse-kms")},
        {"objects": ObjectsSettings(**AZURE, credentials_file="f")},
    ],
)
def test_what_belongs_together_is_allowed(changes: dict[str, object]) -> None:
    """Nothing to complain of."""
    assert broken_rules(Settings.model_validate({"objects": FILES} | changes)) == []


def test_grants_come_as_a_list_or_as_one_text(tmp_path: Path) -> None:
    """The file has a list, the environment semicolons; a wrong one is told with what is allowed."""
    file = tmp_path / "o.toml"
    file.write_text('[objects]\nkind="filesystem"\n[tls]\ncert_file="c"\nkey_file="k"\nclient_ca_file="a"\n')
    text = "admin alice *; read 'bob the reader' public/*;"
    found = load(file, {"OFFLOADERD__ACCESS__GRANTS": text}).access.grants
    assert found == ("admin alice *", "read 'bob the reader' public/*")
    file.write_text(file.read_text() + '[access]\ngrants = ["admin alice *", "read bob public/*"]\n')
    assert load(file, {}).access.grants == ("admin alice *", "read bob public/*")
    with pytest.raises(InvalidConfig, match="no such role 'write'"):
        load(file, {"OFFLOADERD__ACCESS__GRANTS": "write bob *"})


def test_no_secret_is_shown_whatever_is_wrong_with_the_others() -> None:
    """Every secret setting gets a canary: neither the rows nor the mistakes nor the values' own words have it."""
    secrets = [setting for setting in all_settings() if setting.is_secret]
    assert {"access.token_secret_key", "metadata.password", "objects.secret_key"} <= {one.key for one in secrets}
    environ = {setting.environment: f"canary-{setting.name}" for setting in secrets}
    report = check(None, {**environ, "OFFLOADERD__GRPC__PORT": "x", "OFFLOADERD__ACCESS__TOKEN_SECRET": "canary-x"})
    assert report.mistakes
    assert "canary" not in str(report)
    settings = Settings(
        objects=ObjectsSettings(kind="filesystem", secret_key=SecretStr("canary")),
        access=AccessSettings(token_secret_key=SecretStr("canary"), token_public_key=SecretStr("canary")),
        metadata=MetadataSettings(password=SecretStr("canary")),
    )
    assert "canary" not in str(describe(settings))
    assert "canary" not in repr(settings)
    assert "canary" not in settings.model_dump_json()

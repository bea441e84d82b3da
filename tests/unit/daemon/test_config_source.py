"""Settings of the ledger source: what must hold between them, and what is never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.daemon.settings import Settings, check, load
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.ledgers.settings import LedgersSettings, PulsarSettings
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.settings import ObjectsSettings

if TYPE_CHECKING:
    from pathlib import Path

KiB = 1024
BUCKET = {"OFFLOADERD__OBJECTS__BUCKET": "pulsar"}
FILES = ObjectsSettings(kind="filesystem")
BOOKIES = LedgersSettings(kind="bookkeeper")


class TestRules:
    """What must hold between settings."""

    @pytest.mark.parametrize(
        ("changes", "keys"),
        [
            (
                {"bookkeeper": BookkeeperSettings(managed_ledgers_root="/ledgers/managed")},
                ("bookkeeper.ledgers_root", "bookkeeper.managed_ledgers_root"),
            ),
            (
                {"ledgers": BOOKIES, "metadata": MetadataSettings(root="/ledgers/offloaderd")},
                ("ledgers.kind", "metadata.root", "bookkeeper.ledgers_root"),
            ),
            (
                {"ledgers": BOOKIES, "metadata": MetadataSettings(root="/managed-ledgers")},
                ("ledgers.kind", "metadata.root", "bookkeeper.managed_ledgers_root"),
            ),
            (
                {
                    "ledgers": BOOKIES,
                    "metadata": MetadataSettings(root="/pulsar"),
                    "bookkeeper": BookkeeperSettings(ledgers_root="/pulsar/ledgers"),
                },
                ("ledgers.kind", "metadata.root", "bookkeeper.ledgers_root"),
            ),
            (
                {"bookkeeper": BookkeeperSettings(poll_min_s=2.1)},
                ("bookkeeper.poll_min_s", "bookkeeper.poll_max_s"),
            ),
            (
                {"bookkeeper": BookkeeperSettings(hedge_s=5.1)},
                ("bookkeeper.hedge_s", "bookkeeper.request_timeout_s"),
            ),
            ({"bookkeeper": BookkeeperSettings(bytes_per_s=64 * KiB - 1)}, ("bookkeeper.bytes_per_s",)),
            ({"bookkeeper": BookkeeperSettings(topic_bytes_per_s=50)}, ("bookkeeper.topic_bytes_per_s",)),
            ({"bookkeeper": BookkeeperSettings(tls_ca_file="ca")}, ("bookkeeper.tls_ca_file", "bookkeeper.tls")),
            (
                {"bookkeeper": BookkeeperSettings(tls=True, tls_cert_file="c")},
                ("bookkeeper.tls_cert_file", "bookkeeper.tls_key_file"),
            ),
            (
                {"bookkeeper": BookkeeperSettings(tls=True, tls_key_file="k")},
                ("bookkeeper.tls_cert_file", "bookkeeper.tls_key_file"),
            ),
            (
                {"bookkeeper": BookkeeperSettings(sasl_username="u")},
                ("bookkeeper.sasl_username", "bookkeeper.sasl_password"),
            ),
            (
                {"bookkeeper": BookkeeperSettings(sasl_password=SecretStr("p"))},
                ("bookkeeper.sasl_username", "bookkeeper.sasl_password"),
            ),
            (
                {"pulsar": PulsarSettings(admin_url="https://b", admin_token=SecretStr("t"), admin_token_file="f")},
                ("pulsar.admin_token", "pulsar.admin_token_file"),
            ),
            ({"pulsar": PulsarSettings(admin_token=SecretStr("t"))}, ("pulsar.admin_token", "pulsar.admin_url")),
            ({"pulsar": PulsarSettings(admin_token_file="f")}, ("pulsar.admin_token_file", "pulsar.admin_url")),
            ({"pulsar": PulsarSettings(admin_ca_file="f")}, ("pulsar.admin_ca_file", "pulsar.admin_url")),
            (
                {"pulsar": PulsarSettings(admin_url="http://b:8080", admin_ca_file="f")},
                ("pulsar.admin_ca_file", "pulsar.admin_url"),
            ),
        ],
    )
    def test_each_rule_stands_alone(self, changes: dict[str, object], keys: tuple[str, ...]) -> None:
        """Just beyond the bound exactly that rule breaks."""
        settings = Settings.model_validate({"objects": FILES} | changes)
        assert [rule.keys for rule in broken_rules(settings)] == [keys]

    @pytest.mark.parametrize(
        "changes",
        [
            {"ledgers": BOOKIES},
            {"ledgers": BOOKIES, "metadata": MetadataSettings(root="/ledgers-of-ours")},
            {"ledgers": LedgersSettings(kind="none"), "metadata": MetadataSettings(root="/ledgers/ours")},
            {"bookkeeper": BookkeeperSettings(poll_min_s=2, hedge_s=5, bytes_per_s=64 * KiB, requests_per_s=1)},
            {
                "bookkeeper": BookkeeperSettings(
                    tls=True, tls_cert_file="c", tls_key_file="k", sasl_username="u", sasl_password=SecretStr("p")
                )
            },
            {"pulsar": PulsarSettings(admin_url="https://b", admin_token_file="f", admin_ca_file="c")},
        ],
    )
    def test_the_bounds_themselves_are_allowed(self, changes: dict[str, object]) -> None:
        """On the bound everything holds; a name that only begins alike is no node below."""
        settings = Settings.model_validate({"objects": FILES} | changes)
        assert broken_rules(settings) == []

    def test_all_mistakes_come_at_once(self) -> None:
        """Three rules and a wrong word give four lines, each with its variable and what to do."""
        report = check(
            None,
            BUCKET
            | {
                "OFFLOADERD__LEDGERS__KIND": "bookeeper",
                "OFFLOADERD__BOOKKEEPER__BYTES_PER_S": "50",
                "OFFLOADERD__BOOKKEEPER__TLS_CA_FILE": "/ca.pem",
                "OFFLOADERD__PULSAR__ADMIN_TOKEN": "t",
            },
        )
        kind, rate, tls, token = report.mistakes
        assert kind.startswith("environment OFFLOADERD__LEDGERS__KIND")
        assert "did you mean bookkeeper?" in kind
        assert '"50MiB"' in rate
        assert "set bookkeeper.tls = true" in tls
        assert "pulsar.admin_url" in token


class TestSecrets:
    """A password and a token."""

    def test_they_are_masked_wherever_settings_are_shown(self, tmp_path: Path) -> None:
        """In the rows of check-config and in the settings themselves."""
        file = tmp_path / "o.toml"
        file.write_text(
            '[bookkeeper]\nsasl_username = "u"\nsasl_password = "hunter2"\n'
            '[pulsar]\nadmin_url = "https://b"\nadmin_token = "hunter2"\n'
        )
        report = check(file, BUCKET)
        assert report.settings is not None
        assert report.settings.bookkeeper.sasl_password is not None
        assert report.settings.bookkeeper.sasl_password.get_secret_value() == "hunter2"
        assert "hunter2" not in repr(report)

    def test_an_empty_variable_unsets_the_servers(self, tmp_path: Path) -> None:
        """So that a deployment can go back to the daemon's own ZooKeeper."""
        file = tmp_path / "o.toml"
        file.write_text('[bookkeeper]\nservers = "zk:2181"\n')
        assert load(file, BUCKET).bookkeeper.servers == "zk:2181"
        assert load(file, BUCKET | {"OFFLOADERD__BOOKKEEPER__SERVERS": ""}).bookkeeper.servers is None

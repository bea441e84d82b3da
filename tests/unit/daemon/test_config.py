"""Settings: precedence, every mistake at once in a person's words, secrets never shown, generated files current."""

from __future__ import annotations

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from offloaderd.api.settings import GrpcSettings
from offloaderd.core.errors import InvalidConfig
from offloaderd.core.model import OutagePolicy, TierRetention
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.section import is_loopback
from offloaderd.core.units import format_bytes, parse_bytes
from offloaderd.daemon.settings import Settings, check, describe, load
from offloaderd.daemon.settings.loading import nearest_key
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.daemon.settings.sections import MemorySettings, all_settings, environment_name
from offloaderd.objects.settings import ObjectsSettings, named_places
from offloaderd.read.settings import ReadSettings
from offloaderd.segment.settings import OffloadSettings
from offloaderd.topic.settings import OutageSettings, SpillSettings
from offloaderd.upkeep.settings import RetentionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
MiB = 1024**2
EVERYWHERE = "0.0.0.0"  # noqa: S104 - settings to judge; nothing listens
BUCKET = {"OFFLOADERD__OBJECTS__BUCKET": "pulsar"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A path for a settings file."""
    return tmp_path / "o.toml"


def mistakes(path: Path | None, environ: Mapping[str, str]) -> list[str]:
    """The lines of the InvalidConfig that `load` raises, without its head and with the path shortened."""
    with pytest.raises(InvalidConfig) as caught:
        load(path, environ)
    return [line.strip().replace(str(path), "o.toml") for line in caught.value.message.splitlines()[1:]]


class TestSizes:
    """Sizes with units."""

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("64MiB", 64 * MiB),
            ("1.5 GiB", 1536 * MiB),
            ("5kB", 5000),
            ("1TB", 10**12),
            ("7", 7),
            (" 2kib ", 2048),
            (9, 9),
            ("0", 0),
        ],
    )
    def test_reads_what_people_write(self, text: object, size: int) -> None:
        """Units of both families, blanks and fractions that come to whole bytes."""
        assert parse_bytes(text) == size

    @pytest.mark.parametrize("text", ["", "MiB", "3XB", "-1", "1e3", "0.5", "1,5MiB", True, 1.0, None, [], "9" * 40])
    def test_refuses_the_rest(self, text: object) -> None:
        """Nothing is guessed and nothing is rounded."""
        with pytest.raises(ValueError, match=r"not a size|not a whole number"):
            parse_bytes(text)

    @given(st.integers(0, 2**60))
    def test_writes_what_it_reads(self, size: int) -> None:
        """Every size survives being shown and read."""
        assert parse_bytes(format_bytes(size)) == size


class TestPrecedence:
    """Default, file, environment."""

    def test_environment_goes_over_file_and_file_over_default(self, file: Path) -> None:
        """Setting by setting, so that a section may come from three places."""
        file.write_text('[objects]\nbucket = "from-file"\nregion = "eu-1"\n[offload]\nsegment_age_max_s = 5\n')
        environ = {
            "OFFLOADERD__OBJECTS__BUCKET": "from-environment",
            "OFFLOADERD__OFFLOAD__PART_BYTES": "6MiB",
            "OFFLOADERD__OFFLOAD__PREAMBLE": "true",
            "UNRELATED": "x",
        }
        settings = load(file, environ)
        assert (settings.objects.bucket, settings.objects.region) == ("from-environment", "eu-1")
        assert (settings.offload.segment_age_max_s, settings.offload.part_bytes) == (5.0, 6 * MiB)
        assert settings.offload.preamble is True
        assert settings.offload.block_bytes == 1 * MiB
        report = check(file, environ)
        sources = {row.key: row.source for row in report.rows}
        assert sources["objects.bucket"] == "environment"
        assert sources["objects.region"] == "file"
        assert sources["objects.prefix"] == "default"
        assert {row.key: row.value for row in report.rows}["offload.part_bytes"] == '"6MiB"'

    def test_an_empty_variable_unsets_an_optional_setting(self, file: Path) -> None:
        """The only way to say `not set` over a file that sets it."""
        file.write_text('[objects]\nbucket = "pulsar"\nendpoint = "http://127.0.0.1:9000"\n')
        assert load(file, {}).objects.endpoint == "http://127.0.0.1:9000"
        assert load(file, {"OFFLOADERD__OBJECTS__ENDPOINT": ""}).objects.endpoint is None

    def test_the_process_environment_is_never_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Settings are values: only what is passed in counts."""
        monkeypatch.setenv("OFFLOADERD__GRPC__PORT", "1")
        assert load(None, BUCKET).grpc.port == 7650
        assert GrpcSettings().port == 7650

    def test_an_empty_id_becomes_the_name_of_the_host(self) -> None:
        """Two daemons on two machines need no setting to be told apart."""
        assert load(None, BUCKET).daemon.id
        assert load(None, BUCKET | {"OFFLOADERD__DAEMON__ID": "d1"}).daemon.id == "d1"

    def test_a_file_with_a_byte_order_mark_is_read(self, file: Path) -> None:
        """Some editors write one."""
        file.write_bytes(b'\xef\xbb\xbf[objects]\nbucket = "pulsar"\n')
        assert load(file, {}).objects.bucket == "pulsar"

    def test_the_priority_of_the_pip_is_accepted(self) -> None:
        """PIP-73 spells it tiered-first, Pulsar's code tiered-storage-first."""
        settings = load(None, BUCKET | {"OFFLOADERD__READ__PRIORITY": "tiered-first"})
        assert settings.read.priority is ReadPriority.TIERED_STORAGE_FIRST

    def test_settings_are_frozen(self) -> None:
        """A value does not change under those who hold it."""
        settings = load(None, BUCKET)
        with pytest.raises(ValidationError, match="frozen"):
            settings.grpc.port = 1  # type: ignore[misc]


class TestMistakes:
    """All of them at once, each in one line."""

    def test_five_mistakes_in_two_places_give_five_lines(self, file: Path) -> None:
        """Unknown name, wrong unit, out of range, wrong word and a broken rule: where, what, and what is allowed."""
        file.write_text(
            '[objects]\nbukcet = "x"\nbucket = "pulsar"\n'
            '[grpc]\nport = 70000\nhost = "0.0.0.0"\n'
            '[log]\nlevel = "inof"\n'
        )
        assert mistakes(file, {"OFFLOADERD__OFFLOAD__PART_BYTES": "3XB"}) == [
            "o.toml: objects.bukcet: no such setting; did you mean objects.bucket?",
            "o.toml: grpc.port = 70000: out of range; allowed: 0 to 65_535",
            'environment OFFLOADERD__OFFLOAD__PART_BYTES = "3XB": not a size: write a whole number of bytes or one '
            'with a unit, such as "64MiB" or "256MB"; allowed: 64KiB to 5GiB',
            'o.toml: log.level = "inof": did you mean info?; allowed: one of debug, info, warning, error',
            "o.toml: grpc.host: grpc.host = '0.0.0.0' opens the API to others without encryption or authentication: "
            "use 127.0.0.1, set tls.client_ca_file or a key for tokens, or set grpc.allow_unauthenticated = true if "
            "the network keeps strangers out",
        ]

    def test_one_mistake_is_one_line_with_a_hint(self) -> None:
        """The head counts, the hint names the page."""
        with pytest.raises(InvalidConfig) as caught:
            load(None, {})
        assert caught.value.message == (
            'the settings have a mistake:\n  defaults: objects.kind = "s3" needs a bucket: set objects.bucket'
        )
        assert "docs/settings.md" in caught.value.hint

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("offlod", "offload"),
            ("grcp.port", "grpc.port"),
            ("offload.part_byte", "offload.part_bytes"),
            ("objects.part_bytes", "offload.part_bytes"),
            ("part_bytes", "offload.part_bytes"),
            ("objects.buckett", "objects.bucket"),
            ("s3.bucket", "objects.bucket"),
            ("metadata.session_timeout", "metadata.session_timeout_s"),
            ("zzz.qqq", None),
        ],
    )
    def test_the_nearest_name_is_found(self, wrong: str, right: str | None) -> None:
        """By spelling, or by the same name in another section; none where nothing is near."""
        assert nearest_key(wrong) == right

    def test_a_variable_is_corrected_as_a_variable(self) -> None:
        """What is to be typed is shown as it is to be typed."""
        assert mistakes(None, BUCKET | {"OFFLOADERD__OFLOAD__PART_BYTES": "6MiB", "OFFLOADERD__GRPC": "x"}) == [
            "environment OFFLOADERD__GRPC names a section: add __ and the setting, as in OFFLOADERD__GRPC__HOST",
            "environment OFFLOADERD__OFLOAD__PART_BYTES: no such setting; did you mean "
            "OFFLOADERD__OFFLOAD__PART_BYTES?",
        ]

    def test_a_section_that_is_a_value_and_a_value_that_is_a_section(self, file: Path) -> None:
        """Both ways of mistaking one for the other are told apart."""
        file.write_text('log = "info"\n[objects]\nbucket = "pulsar"\n[grpc.port]\nnumber = 1\n')
        assert mistakes(file, {}) == [
            "o.toml: log is a section, not a value: write [log] and its settings below",
            "o.toml: grpc.port is a table: input should be a valid integer; allowed: 0 to 65_535",
        ]

    def test_a_rule_is_not_reported_for_what_was_wrong_already(self) -> None:
        """A misspelt bucket or an impossible part size gives one line, not two."""
        assert len(mistakes(None, {"OFFLOADERD__OBJECTS__BUKET": "pulsar"})) == 1
        wrong_part = BUCKET | {"OFFLOADERD__OFFLOAD__PART_BYTES": "many", "OFFLOADERD__OFFLOAD__BLOCK_BYTES": "9MiB"}
        assert len(mistakes(None, wrong_part)) == 1

    def test_a_wrong_value_in_the_file_does_not_matter_once_it_is_overridden(self, file: Path) -> None:
        """Only what holds is checked, so that one variable can repair a deployed file."""
        file.write_text('[objects]\nbucket = "pulsar"\n[grpc]\nport = "many"\n')
        assert load(file, {"OFFLOADERD__GRPC__PORT": "7000"}).grpc.port == 7000

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("[objects]\nbucket = pulsar\n", "line 2, column 10"),
            ("[objects\n", "line 1, column 9"),
            ('[log]\nlevel = "info', "line 2"),
            ("[log]\n[log]\n", "line 2, column 5"),
        ],
    )
    def test_a_file_that_is_not_toml_is_one_line_with_its_number(self, file: Path, text: str, line: str) -> None:
        """The place is in the message; nothing else is tried."""
        file.write_text(text)
        with pytest.raises(InvalidConfig) as caught:
            load(file, {"OFFLOADERD__NO__SUCH": "1"})
        assert caught.value.message.startswith(f"{file}: {line}")
        assert "\n" not in str(caught.value)
        assert ("twice" in caught.value.hint) == (text.count("[log]") == 2)

    def test_a_file_that_cannot_be_read_is_one_line(self, file: Path, tmp_path: Path) -> None:
        """Missing, a directory, or not text."""
        with pytest.raises(InvalidConfig, match=r"cannot read the settings file .*o\.toml: No such file"):
            load(file, {})
        with pytest.raises(InvalidConfig, match="Is a directory"):
            load(tmp_path, {})
        file.write_bytes(b"a = '\xff'")
        with pytest.raises(InvalidConfig, match="byte 5 is not UTF-8"):
            load(file, {})

    @given(st.dictionaries(st.sampled_from([environment_name(s.key) for s in all_settings()]), st.text(), max_size=8))
    def test_any_text_in_the_environment_is_settings_or_mistakes(self, environ: dict[str, str]) -> None:
        """No text makes anything else than a value or a report."""
        report = check(None, environ)
        assert (report.settings is None) == bool(report.mistakes)
        assert all("\n" not in mistake for mistake in report.mistakes)

    def test_strange_names_and_bytes_stay_on_one_line(self, file: Path) -> None:
        """A line break in a key, or bytes that are no UTF-8, can be shown on any terminal."""
        file.write_text('"a\\nb" = 1\n[objects]\nbucket = "pulsar"\n')
        lines = mistakes(file, {"OFFLOADERD__GRPC__PORT": "\udcff"})
        assert lines[0].endswith("a\\nb': no such setting")
        assert lines[1].startswith('environment OFFLOADERD__GRPC__PORT = "\\\\udcff": ')
        assert "\n".join(lines).encode()


class TestRules:
    """What must hold between settings."""

    FILES = ObjectsSettings(kind="filesystem")
    S3 = ObjectsSettings(bucket="pulsar")

    @pytest.mark.parametrize(
        ("changes", "keys"),
        [
            ({"objects": ObjectsSettings()}, ("objects.kind", "objects.bucket")),
            (
                {"objects": ObjectsSettings(kind="filesystem", places="other-bucket")},
                ("objects.kind", "objects.places"),
            ),
            ({"objects": ObjectsSettings(bucket="abc", access_key="a")}, ("objects.access_key", "objects.secret_key")),
            (
                {"objects": ObjectsSettings(bucket="abc", secret_key=SecretStr("s"))},
                ("objects.access_key", "objects.secret_key"),
            ),
            (
                {"objects": S3, "offload": OffloadSettings(part_bytes=5 * MiB - 1)},
                ("objects.kind", "offload.part_bytes"),
            ),
            ({"offload": OffloadSettings(block_bytes=9 * MiB)}, ("offload.block_bytes", "offload.part_bytes")),
            (
                {"offload": OffloadSettings(segment_bytes_max=80_001 * MiB)},
                ("objects.kind", "offload.segment_bytes_max", "offload.part_bytes"),
            ),
            (
                {"offload": OffloadSettings(segment_age_min_s=601)},
                ("offload.segment_age_min_s", "offload.segment_age_max_s"),
            ),
            ({"memory": MemorySettings(upload_bytes=24 * MiB - 1)}, ("memory.upload_bytes", "offload.part_bytes")),
            (
                {"memory": MemorySettings(cache_bytes=4 * MiB - 1), "read": ReadSettings(read_ahead_bytes=0)},
                ("memory.cache_bytes", "offload.block_bytes"),
            ),
            ({"memory": MemorySettings(cache_bytes=15 * MiB)}, ("read.read_ahead_bytes", "memory.cache_bytes")),
            (
                {"grpc": GrpcSettings(host=EVERYWHERE)},
                ("grpc.host", "grpc.allow_unauthenticated", "tls.client_ca_file", "access.token_secret_key"),
            ),
            ({"grpc": GrpcSettings(port=7651)}, ("grpc.port", "http.port")),
            ({"read": ReadSettings(batch_bytes=11 * MiB)}, ("read.batch_bytes", "grpc.message_bytes_max")),
            (
                {"retention": RetentionSettings(kind=TierRetention.LIMITED)},
                ("retention.kind", "retention.age_s", "retention.size_bytes"),
            ),
            ({"retention": RetentionSettings(kind=TierRetention.FOLLOW)}, ("retention.kind", "ledgers.kind")),
            ({"outage": OutageSettings(policy=OutagePolicy.SPILL)}, ("outage.policy", "spill.directory")),
        ],
    )
    def test_each_rule_stands_alone(self, changes: dict[str, object], keys: tuple[str, str]) -> None:
        """Just beyond the bound exactly that rule breaks."""
        settings = Settings.model_validate({"objects": self.FILES} | changes)
        assert [rule.keys for rule in broken_rules(settings)] == [keys]

    @pytest.mark.parametrize(
        "changes",
        [
            {"objects": S3, "offload": OffloadSettings(part_bytes=5 * MiB)},
            {"offload": OffloadSettings(part_bytes=64 * 1024, block_bytes=64 * 1024, segment_bytes_max=625 * MiB)},
            {"offload": OffloadSettings(segment_bytes_max=80_000 * MiB)},
            {"offload": OffloadSettings(segment_age_min_s=600)},
            {"memory": MemorySettings(upload_bytes=24 * MiB, cache_bytes=16 * MiB)},
            {"grpc": GrpcSettings(host=EVERYWHERE, allow_unauthenticated=True)},
            {"grpc": GrpcSettings(port=0)},
            {"retention": RetentionSettings(kind=TierRetention.LIMITED, size_bytes=1)},
            {"retention": RetentionSettings(kind=TierRetention.LIMITED, age_s=0.5)},
            {"outage": OutageSettings(policy=OutagePolicy.SPILL), "spill": SpillSettings(directory="spill")},
        ],
    )
    def test_the_bounds_themselves_are_allowed(self, changes: dict[str, object]) -> None:
        """On the bound everything holds; small parts are for stores other than S3."""
        settings = Settings.model_validate({"objects": self.FILES} | changes)
        assert broken_rules(settings) == []

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [
            ("127.0.0.1", True),
            ("127.9.9.9", True),
            ("::1", True),
            ("[::1]", True),
            ("localhost", True),
            (EVERYWHERE, False),
            ("::", False),
            ("example", False),
            ("127.0.0.1.example", False),
        ],
    )
    def test_loopback_is_recognised(self, host: str, loopback: bool) -> None:
        """Numbers by what they are, names only if they can be nothing else."""
        assert is_loopback(host) is loopback


class TestSecrets:
    """The secret key is nowhere to be seen."""

    SECRET = "hush-hush-hush"
    ENVIRON = BUCKET | {"OFFLOADERD__OBJECTS__ACCESS_KEY": "me", "OFFLOADERD__OBJECTS__SECRET_KEY": SECRET}

    def test_masked_wherever_settings_are_shown(self) -> None:
        """repr, str, dumps and rows; only who asks by name gets it."""
        settings = load(None, self.ENVIRON)
        shown = [repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()]
        shown += [str(describe(settings)), str(check(None, self.ENVIRON))]
        assert not [text for text in shown if self.SECRET in text]
        assert settings.objects.secret_key is not None
        assert settings.objects.secret_key.get_secret_value() == self.SECRET
        assert {row.key: row.value for row in describe(settings)}["objects.secret_key"] == "********"

    def test_masked_in_mistakes(self, file: Path) -> None:
        """A wrong type, a misspelt name, a missing partner: none of them quotes it."""
        file.write_text(f'[objects]\nbucket = "pulsar"\nsecret_key = ["{self.SECRET}"]\nsecret_kye = "{self.SECRET}"\n')
        lines = mistakes(file, {"OFFLOADERD__OBJECTS__SECRETKEY": self.SECRET})
        assert len(lines) == 3
        assert self.SECRET not in str(lines)
        alone = BUCKET | {"OFFLOADERD__OBJECTS__SECRET_KEY": self.SECRET}
        assert mistakes(None, alone) == [
            "environment OFFLOADERD__OBJECTS__SECRET_KEY: objects.secret_key is set without objects.access_key: "
            "set both, or neither for the AWS chain"
        ]

    def test_masked_when_its_quotes_were_forgotten(self, file: Path) -> None:
        """A secret of digits is a number to TOML: wrong, but no less secret."""
        file.write_text('[objects]\nbucket = "pulsar"\nsecret_key = 20250711\n')
        (line,) = mistakes(file, {})
        assert line.startswith("o.toml: objects.secret_key: ")
        assert "20250711" not in line

    def test_masked_when_toml_breaks_on_its_line(self, file: Path) -> None:
        """A syntax error says where, not what."""
        file.write_text(f'[objects]\nsecret_key = {self.SECRET}"\n')
        with pytest.raises(InvalidConfig) as caught:
            load(file, {})
        assert self.SECRET not in str(caught.value)
        assert self.SECRET[:4] not in str(caught.value)


class TestGeneratedFiles:
    """The settings file and the tables say what the code says."""

    def test_they_are_current(self) -> None:
        """`make docs` would change nothing."""
        assert runpy.run_path(str(ROOT / "tools/docs.py"))["outdated"](ROOT) == []

    def test_a_changed_file_is_noticed(self, tmp_path: Path) -> None:
        """A missing file and one byte of difference both count."""
        docs = runpy.run_path(str(ROOT / "tools/docs.py"))
        assert docs["outdated"](tmp_path) == list(docs["GENERATED"])
        for name in docs["GENERATED"]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        with (tmp_path / "docs/settings.md").open("a") as page:
            page.write("\n")
        assert docs["outdated"](tmp_path) == ["docs/settings.md"]

    def test_the_settings_file_changes_nothing_until_it_is_uncommented(self, file: Path) -> None:
        """As it is it sets nothing; uncommented it is valid and equals the defaults but for the examples."""
        text = (ROOT / "configs/offloaderd.toml").read_text()
        assert load(ROOT / "configs/offloaderd.toml", BUCKET) == load(None, BUCKET)
        file.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
        values = tomllib.loads(file.read_text())
        assert {f"{section}.{name}" for section in values for name in values[section]} == {
            setting.key for setting in all_settings()
        }
        whole = {  # what an example cannot give: secrets, another kind of store, and the switch that others ask for
            "OFFLOADERD__OBJECTS__ACCESS_KEY": "",
            "OFFLOADERD__OBJECTS__AZURE_ACCOUNT": "",
            "OFFLOADERD__BOOKKEEPER__SASL_USERNAME": "",
            "OFFLOADERD__BOOKKEEPER__TLS": "true",
            "OFFLOADERD__METADATA__USERNAME": "",
            "OFFLOADERD__METADATA__TLS": "true",
        }
        given_all = load(file, whole)
        default = load(None, BUCKET)
        differing = {
            setting.key
            for setting in all_settings()
            if getattr(getattr(given_all, setting.section), setting.name)
            != getattr(getattr(default, setting.section), setting.name)
        }
        examples = {setting.key for setting in all_settings() if setting.example not in {setting.default, '""'}}
        without = {"objects.access_key", "objects.azure_account", "bookkeeper.sasl_username", "metadata.username"}
        assert differing == examples - without | {"bookkeeper.tls", "metadata.tls"}

    def test_every_setting_says_what_it_is_and_why(self) -> None:
        """No setting without a sentence, and every section has one too."""
        for setting in all_settings():
            assert len(setting.description) > 25, setting.key
            assert setting.description.endswith("."), setting.key

    def test_the_standalone_file_is_valid(self) -> None:
        """It loads by itself and keeps the ledgers here."""
        settings = load(ROOT / "configs/standalone.toml", {})
        assert (settings.ledgers.kind, settings.daemon.id) == ("embedded", "standalone")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", []),
        ("eu-bucket", [("eu-bucket", "")]),
        (" eu-bucket/topics/ ,b.2/a b, eu-bucket ", [("eu-bucket", "topics/"), ("b.2", "a b"), ("eu-bucket", "")]),
    ],
)
def test_places_are_buckets_with_prefixes(text: str, places: list[tuple[str, str]]) -> None:
    """Blanks around a comma mean nothing; a prefix may have blanks and slashes within."""
    assert named_places(ObjectsSettings(bucket="b-1", places=text).places) == places


@pytest.mark.parametrize(
    "text", ["B", "ab", "eu-bucket,", ",eu-bucket", "eu-bucket//p", "s3://eu-bucket", "eu-bucket/a\nb"]
)
def test_what_is_no_list_of_places_is_refused(text: str) -> None:
    """Names that S3 does not take, empty items, prefixes that begin with a slash."""
    with pytest.raises(ValidationError, match="places"):
        ObjectsSettings(bucket="b-1", places=text)

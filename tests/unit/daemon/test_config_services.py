"""Further services in the settings: read, checked, shown and written as all others, each under its own name."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.reload import changes
from offloaderd.daemon.settings import check, describe, load
from offloaderd.daemon.settings.rules import broken_rules, doubtful
from offloaderd.daemon.settings.sections import Settings, as_toml
from offloaderd.daemon.stores import sites
from offloaderd.objects.settings import ObjectsSettings, ServiceSettings

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "c2VjcmV0IG9mIHRoZSBhcmNoaXZl"
FILE = """
[objects]
bucket = "segments"
prefix = "seg/"
places = "segments-eu"
storage_class = "STANDARD_IA"

[objects.services.archive]
kind = "azure"
bucket = "archive"
places = "archive-old/p/"
azure_account = "account"

[objects.services.nas]
kind = "filesystem"
bucket = "nas"
directory = "/mnt/nas"
"""
KEY = {"OFFLOADERD__OBJECTS__SERVICES__ARCHIVE__AZURE_KEY": SECRET}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file with two further services."""
    path = tmp_path / "offloaderd.toml"
    path.write_text(FILE)
    return path


def mistakes(text: str, tmp_path: Path, **environ: str) -> list[str]:
    """What is wrong with a settings file."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    return list(check(path, environ).mistakes)


class TestRead:
    """From the file and from the environment."""

    def test_each_service_is_one_of_its_own(self, file: Path) -> None:
        """With the settings of its table, and defaults else; the variable goes to the same one."""
        objects = load(file, KEY).objects
        archive, nas = objects.services["archive"], objects.services["nas"]
        assert (archive.kind, archive.bucket, archive.storage_class) == ("azure", "archive", "")
        assert archive.azure_key is not None
        assert archive.azure_key.get_secret_value() == SECRET
        assert [one.section for one in objects.every_service] == [
            "objects",
            "objects.services.archive",
            "objects.services.nas",
        ]
        assert nas.directory == "/mnt/nas"
        assert objects.model_fields_set >= {"bucket", "prefix"}
        assert "region" not in objects.model_fields_set

    def test_the_environment_is_enough(self) -> None:
        """As in a container without a file."""
        given = {"KIND": "gcs", "BUCKET": "archive"}
        environ = {f"OFFLOADERD__OBJECTS__SERVICES__COLD_STORE__{name}": value for name, value in given.items()}
        objects = load(None, {"OFFLOADERD__OBJECTS__BUCKET": "segments", **environ}).objects
        assert {name: (one.kind, one.bucket) for name, one in objects.services.items()} == {
            "cold_store": ("gcs", "archive")
        }

    def test_an_option_of_a_job_is_enough(self) -> None:
        """By its key, as any other setting."""
        options = {"objects.services.archive.bucket": "archive", "objects.bucket": "segments"}
        settings = check(None, {}, options).settings
        assert settings is not None
        assert settings.objects.services["archive"].bucket == "archive"

    def test_places_are_those_of_all_services(self, file: Path) -> None:
        """The daemon's own first; each says where it is, and how new objects are stored there."""
        objects = load(file, KEY).objects
        assert [(one.driver["driver"], one.bucket, one.prefix, one.storage_class) for one in objects.all_places] == [
            ("s3", "segments", "seg/", "STANDARD_IA"),
            ("s3", "segments-eu", "", "STANDARD_IA"),
            ("azureblob", "archive", "", ""),
            ("azureblob", "archive-old", "p/", ""),
            ("filesystem", "nas", "", ""),
        ]
        alone = [(place.bucket, one.section, len(one.all_places.buckets)) for place, one in objects.each_place()]
        assert alone == [
            ("segments", "objects", 1),
            ("segments-eu", "objects", 1),
            ("archive", "objects.services.archive", 1),
            ("archive-old", "objects.services.archive", 1),
            ("nas", "objects.services.nas", 1),
        ]

    def test_ledgers_of_brokers_are_of_the_driver_for_their_place(self, file: Path) -> None:
        """As a rebuild records them."""
        found = [(one.bucket, one.broker_driver) for one in sites(load(file, KEY))]
        azure = [("archive", "azureblob"), ("archive-old", "azureblob")]
        assert found[:4] == [("segments", "aws-s3"), ("segments-eu", "aws-s3"), *azure]

    def test_it_goes_to_other_processes(self, file: Path) -> None:
        """With the names of the tables, as executors of a job need them."""
        objects = load(file, KEY).objects
        copy = pickle.loads(pickle.dumps(objects))  # noqa: S301 - our own bytes
        assert copy == objects
        assert copy.services["nas"].section == "objects.services.nas"


class TestMistakes:
    """Each is told with the table that it is in."""

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ('azure_kei = "x"', "objects.services.archive.azure_kei: no such setting; did you mean "),
            ("connections_max = 0", "objects.services.archive.connections_max = 0: out of range"),
            ('endpoint = "nowhere"', 'objects.services.archive.endpoint = "nowhere": has not the right form'),
            (f'endpoint = "https://me:{SECRET}@blob"', "archive.endpoint has a name or password in it"),
            ('azure_sas = "sv=1"', "objects.services.archive.azure_key and objects.services.archive.azure_sas"),
            ('encryption = "sse-s3"', 'objects.services.archive.kind = "s3" alone'),
            ('storage_class = "Archive"', "Archive is an archive"),
            ("services = {}", "objects.services.archive.services: no such setting"),
        ],
    )
    def test_in_a_service(self, line: str, words: str, tmp_path: Path) -> None:
        """A wrong name, a wrong value and a broken rule; no secret is shown."""
        text = FILE.replace('azure_account = "account"', f'azure_account = "account"\n{line}')
        found = mistakes(text, tmp_path, **KEY)
        assert len(found) == 1
        assert words in found[0]
        assert SECRET not in found[0]

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ('azure_account = "account"', "", 'objects.services.archive.kind = "azure" needs an account'),
            ("[objects.services.archive]", "[objects.services.Archive]", "objects.services.Archive: not the name"),
            ("[objects.services.archive]", "[objects.services.a.b]", "objects.services.a.b"),
            ('bucket = "nas"', 'bucket = "segments-eu"', "objects and objects.services.nas both have 'segments-eu'"),
            ('bucket = "archive"', 'bucket = "segments"', "objects and objects.services.archive both have 'segments'"),
            ('bucket = "archive"', "", 'objects.services.archive.kind = "azure" needs a bucket: set objects.services.'),
            ("[objects.services.nas]", "[objects.services.empty]\n[objects.services.nas]", "services.empty is empty"),
        ],
    )
    def test_between_services(self, before: str, after: str, words: str, tmp_path: Path) -> None:
        """Buckets differ over all of them, since a segment names its bucket alone; names are of one form."""
        found = mistakes(FILE.replace(before, after, 1), tmp_path)
        assert any(words in one for one in found), found

    def test_a_bucket_of_two_services_is_refused(self) -> None:
        """Whatever their kinds: a segment names its bucket alone."""
        away = ServiceSettings(kind="gcs", bucket="segments")
        settings = Settings(objects=ObjectsSettings(bucket="segments", services={"away": away}))
        assert ["give each bucket of the daemon another name" in one.text for one in broken_rules(settings)] == [True]

    def test_a_mirror_is_another_place_of_any_service(self, tmp_path: Path) -> None:
        """The daemon's own place is no second copy, and a place has to be named; one of a further service will do."""
        own = mistakes(f'{FILE}[mirror]\nplace = "segments/seg/"', tmp_path, **KEY)
        assert ["mirror.place = segments/seg/ is the place of objects.bucket" in one for one in own] == [True]
        none = mistakes(f'{FILE}[mirror]\nplace = "nowhere/x"', tmp_path, **KEY)
        assert ["is none of objects.places, nor of a further service's" in one for one in none] == [True]
        assert mistakes(f'{FILE}[mirror]\nplace = "nas"', tmp_path, **KEY) == []

    def test_a_table_is_no_value(self, tmp_path: Path) -> None:
        """In the file and in the environment."""
        assert "write [objects.services.NAME]" in mistakes('[objects]\nbucket = "abc"\nservices = 3', tmp_path)[0]
        assert "write [objects.services.nas]" in mistakes('[objects]\nbucket = "abc"\nservices.nas = 3', tmp_path)[0]
        for name in ("SERVICES", "SERVICES__NAS"):
            variable = f"OFFLOADERD__OBJECTS__{name}"
            with pytest.raises(InvalidConfig, match=f"{variable} names a section"):
                load(None, {"OFFLOADERD__OBJECTS__BUCKET": "abc", variable: "x"})

    def test_directories_are_told_apart(self) -> None:
        """Two without names, and one inside the other: each would collect what is the other's."""

        def broken(**nas: str) -> str:
            services = {"nas": ServiceSettings(kind="filesystem", **nas)}
            home = ObjectsSettings(kind="filesystem", directory="/data/", services=services)
            return "\n".join(one.text for one in broken_rules(Settings(objects=home)))

        assert "set objects.services.nas.bucket" in broken(directory="/nas")
        assert "one must not be inside the other" in broken(bucket="nas", directory="/data/nas")
        assert "one must not be inside the other" in broken(bucket="nas", directory="/data")
        assert broken(bucket="nas", directory="/data2") == ""

    def test_a_directory_that_had_no_name_keeps_none(self) -> None:
        """So the segments of a daemon that began in a directory are found after it began to store elsewhere."""
        old = ServiceSettings(kind="filesystem", directory="/data")
        objects = ObjectsSettings(bucket="segments", services={"old": old})
        assert broken_rules(Settings(objects=objects)) == []
        (place,) = [one for one in objects.all_places if one.bucket == ""]
        assert place.driver == ObjectsSettings(kind="filesystem", directory="/data").all_places.home.driver

    def test_each_endpoint_is_doubted(self) -> None:
        """Entries in the clear are told with the setting to change."""
        away = ServiceSettings(bucket="archive", endpoint="http://s3.example.com")
        settings = Settings(objects=ObjectsSettings(bucket="segments", services={"away": away}))
        assert "use https:// in objects.services.away.endpoint" in [advice for _, advice in doubtful(settings)]


class TestShown:
    """Every form in which settings are shown has the services too."""

    def test_rows_have_each_setting_and_no_secret(self, file: Path) -> None:
        """With the source of each value."""
        rows = {row.key: row for row in describe(load(file, KEY))}
        assert rows["objects.services.archive.bucket"].value == '"archive"'
        assert SECRET not in str(rows)
        sources = {row.key: row.source for row in check(file, KEY).rows}
        assert sources["objects.services.archive.azure_key"] == "environment"
        assert sources["objects.services.nas.directory"] == "file"
        assert sources["objects.services.nas.bucket"] == "file"

    def test_a_written_file_reads_the_same(self, file: Path, tmp_path: Path) -> None:
        """As standalone and drill write one."""
        settings, written = load(file, KEY), tmp_path / "written.toml"
        written.write_text(as_toml(settings))
        assert load(written, {}) == settings

    def test_a_reload_shows_what_changed(self, file: Path) -> None:
        """A value, a new service and one that is gone; all of it needs a restart, and no secret is shown."""
        before = load(file, KEY)
        text = FILE.replace('bucket = "archive"', 'bucket = "archive-2"')
        file.write_text(text.partition("[objects.services.nas]")[0])
        found = changes(before, load(file, {next(iter(KEY)): "b3RoZXI="}))
        assert {one.key for one in found} == {
            "objects.services.archive.bucket",
            "objects.services.archive.azure_key",
            "objects.services.nas.kind",
            "objects.services.nas.bucket",
            "objects.services.nas.directory",
        }
        assert all(one.needs_restart for one in found)
        assert SECRET not in str(found)

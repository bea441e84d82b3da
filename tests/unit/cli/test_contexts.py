"""Contexts: daemons by name, in a file without secrets."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.cli import contexts
from offloaderd.cli.contexts import Context
from offloaderd.cli.offloadctl.__main__ import cli
from offloaderd.cli.options import Session
from offloaderd.client import Trust

if TYPE_CHECKING:
    from click.testing import Result

    from tests.unit.cli.fake_daemon import FakeDaemon

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "offloaderd" / "contexts.toml"


def run(*words: str) -> Result:
    """Run offloadctl without an address."""
    return CliRunner().invoke(cli, list(words), prog_name="offloadctl")


def test_a_context_in_use_is_asked_where_no_daemon_is_named(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option or the environment goes over it; without a context in use, the default is asked."""
    assert run("context", "set", "here", "--address", fake.address).exit_code == 0
    assert run("context", "set", "away", "--address", NOWHERE).exit_code == 0
    assert run("status", "--address", NOWHERE).exit_code == 3
    assert run("context", "use", "here").exit_code == 0
    assert run("status").exit_code == 0
    assert run("status", "--address", NOWHERE).exit_code == 3
    assert run("status", "--context", "away").exit_code == 3
    assert run("--context", "away", "status").exit_code == 3
    monkeypatch.setenv("OFFLOADCTL_CONTEXT", "away")
    assert run("status").exit_code == 3
    assert run("status", "--context", "here").exit_code == 0
    monkeypatch.setenv("OFFLOADCTL_ADDRESS", fake.address)
    assert run("status").exit_code == 0
    assert run("status", "--context", "here", "--address", NOWHERE).exit_code == 2


def test_an_unknown_context_is_named_with_those_that_there_are(fake: FakeDaemon) -> None:
    """It is no reason to ask another daemon."""
    run("context", "set", "here", "--address", fake.address)
    for words in (("status", "--context", "prod"), ("context", "use", "prod"), ("context", "delete", "prod")):
        result = run(*words)
        assert result.exit_code == 4, words
        assert "no context 'prod'" in result.stderr
        assert "known: here" in result.stderr
    assert not fake.requests


def test_contexts_are_listed_and_deleted(user: Path) -> None:
    """One that is deleted is in use no more."""
    assert "no contexts" in run("context", "list").stderr
    run("context", "set", "a", "--address", "a:1")
    run("context", "set", "b", "--address", "b:1", "--tls")
    run("context", "use", "b")
    assert run("context", "list").stdout.splitlines() == [
        "   NAME  ADDRESS  TLS  TOKEN FILE", "   a     a:1      no   -", "*  b     b:1      yes  -",
    ]  # fmt: skip
    assert run("context", "list", "-o", "name").stdout == "a\nb\n"
    run("context", "delete", "b")
    assert tomllib.loads(user.read_text()) == {"contexts": {"a": {"address": "a:1"}}}
    run("context", "use", "a")
    run("context", "use", "--none")
    assert "current" not in user.read_text()


def test_a_context_holds_the_names_of_files_and_no_secret(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are absolute, as it is used from every directory; the file is this user's alone."""
    monkeypatch.setenv("OFFLOADCTL_TOKEN", "very-secret")
    result = run("context", "set", "prod", "--address", "p:1", "--tls-ca", "ca.crt", "--token-file", 'to"ken')
    assert result.exit_code == 0
    assert tomllib.loads(user.read_text())["contexts"]["prod"] == {
        "address": "p:1", "tls_ca": str(tmp_path / "ca.crt"), "token_file": str(tmp_path / 'to"ken'),
    }  # fmt: skip
    assert "very-secret" not in user.read_text() + result.output
    assert user.stat().st_mode & 0o777 == 0o600
    assert contexts.load().named["prod"].tls_ca == tmp_path / "ca.crt"


def test_a_context_is_checked_when_it_is_made(user: Path) -> None:
    """An address, a name, and credentials that fit together; nothing is written otherwise."""
    for words, said in (
        (("prod",), "--address"),
        (("prod", "--address", "nonsense"), "not an address"),
        (("a/b", "--address", "p:1"), "no name of a context"),
        (("prod", "--address", "p:1", "--tls-cert", "x"), "go together"),
        (("prod", "--address", "p:1", "--token-file", "x"), "TLS"),
    ):
        result = run("context", "set", *words)
        assert result.exit_code == 2, words
        assert said in result.stderr
    assert not user.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[contexts.a\n", "contexts.toml"),
        ("current = 'b'\n", "'b' is no context"),
        ("[contexts.a]\naddress = 'a:1'\ntoken = 'x'\n", "a token has a file of its own"),
        ("[contexts.a]\ntls = true\n", "not an address"),
        ("[contexts.a]\naddress = 'a:1'\ntls = 'yes'\n", "neither true nor false"),
        ("[contexts.a]\naddress = 1\n", "no text"),
        ("contexts = 3\n", "contexts are tables"),
        ("other = 1\n", "'other' is unknown"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_mistake(user: Path, text: str, said: str) -> None:
    """One error, before any daemon is asked; an address that is given needs no contexts."""
    user.parent.mkdir(parents=True)
    user.write_text(text)
    result = run("status")
    assert result.exit_code == 2
    assert said in result.stderr
    assert str(user) in result.stderr
    assert run("status", "--address", NOWHERE).exit_code == 3


def test_what_is_given_goes_over_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file for itself. A token of a context is shown to its daemon alone."""
    made = Context(address="p:1", tls_ca=Path("ca"), token_file=Path("token"))
    contexts.save(contexts.Contexts("prod", {"prod": made}))
    assert made.trusted(Trust()) == Trust(ca_file=Path("ca"), token_file=Path("token"))
    given = Trust(ca_file=Path("other"), token="t")
    assert made.trusted(given) == given
    assert Session().chosen() == made
    assert replace(Session(), address="q:1").chosen() is None
    assert replace(Session(), standalone=Path("d")).chosen() is None

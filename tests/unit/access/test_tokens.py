"""Tokens: the forms that Pulsar takes, and every way to forge one that is known."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.access.tokens import TokenKey, TokenRules, bearer, public_key, secret_key
from offloaderd.core.errors import InvalidConfig, Unauthenticated
from offloaderd.testing.clock import FakeClock
from tests.authority import token

if TYPE_CHECKING:
    from pathlib import Path

SECRET = bytes(range(1, 33))
KEY = TokenKey(SECRET, ("HS256",))
RULES = TokenRules()
DER = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PEM = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def pem_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as a signer has it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def coded(value: object) -> str:
    """One part of a token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def refused(text: str, key: TokenKey = KEY, rules: TokenRules = RULES, clock: FakeClock | None = None) -> str:
    """Return why a token is refused; no part of the token may be in it."""
    with pytest.raises(Unauthenticated) as caught:
        bearer(text, [key], rules, clock or FakeClock())
    for part in text.split("."):
        assert len(part) < 8 or part not in str(caught.value)
    return caught.value.message


@pytest.mark.parametrize("form", ["base64", "data", "data-url", "file", "file-url", "path"])
@pytest.mark.parametrize("secret", [SECRET, bytes(range(64))])
def test_a_secret_is_taken_in_every_form_of_pulsar(form: str, secret: bytes, tmp_path: Path) -> None:
    """As tokenSecretKey of a broker.conf; longer secrets sign with stronger algorithms too."""
    path = tmp_path / "secret key"
    path.write_bytes(secret)
    text = base64.b64encode(secret).decode()
    given_text = {
        "base64": text,
        "data": f"data:;base64,{text}",
        "data-url": f"data:application/octet-stream;base64,{text.replace('+', '%2B')}",
        "file": f"file:{path}",
        "file-url": f"file://{str(path).replace(' ', '%20')}",
        "path": str(path),
    }[form]
    key = secret_key(given_text, "s")
    for algorithm in key.algorithms:
        assert bearer(token(secret, algorithm=algorithm), [key], RULES, FakeClock()).name == "alice"
    assert ("HS512" in key.algorithms) is (len(secret) == 64)


@pytest.mark.parametrize("form", [DER, PEM])
def test_public_keys_of_both_kinds(form: tuple[Encoding, PublicFormat], tmp_path: Path) -> None:
    """RSA and EC, DER as Pulsar writes it and PEM as everybody else does; a file or in place."""
    path = tmp_path / "key"
    path.write_bytes(RSA_KEY.public_key().public_bytes(*form))
    key = public_key(f"file://{path}", "RS256", "s")
    assert bearer(jwt.encode({"sub": "r"}, pem_of(RSA_KEY), "RS256"), [key], RULES, FakeClock()).name == "r"
    inline = "data:;base64," + base64.b64encode(EC_KEY.public_key().public_bytes(*form)).decode()
    key = public_key(inline, "ES256", "s")
    assert bearer(jwt.encode({"sub": "e"}, pem_of(EC_KEY), "ES256"), [key], RULES, FakeClock()).name == "e"


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: secret_key("short", "s"), "neither a file"),
        (lambda: secret_key("c2hvcnQ=", "s"), "5 bytes can be guessed"),
        (lambda: secret_key("file:///nowhere/at/all", "s"), "cannot read /nowhere/at/all"),
        (lambda: secret_key("data:abc", "s"), "without a comma"),
        (
            lambda: secret_key(base64.b64encode(RSA_KEY.public_key().public_bytes(*PEM)).decode(), "s"),
            "half, no secret",
        ),
        (lambda: public_key(base64.b64encode(SECRET).decode(), "RS256", "s"), "holds no public key"),
        (
            lambda: public_key(base64.b64encode(RSA_KEY.public_key().public_bytes(*DER)).decode(), "ES256", "s"),
            "cannot be used with ES256",
        ),
        (
            lambda: public_key(base64.b64encode(EC_KEY.public_key().public_bytes(*DER)).decode(), "ES384", "s"),
            "cannot be used with ES384",
        ),
    ],
)
def test_a_key_that_cannot_be_right_is_refused_at_the_start(load: Any, message: str) -> None:  # noqa: ANN401 - a thunk
    """The message names the setting, never the key."""
    with pytest.raises(InvalidConfig, match=message) as caught:
        load()
    assert "c2hvcnQ" not in str(caught.value)


def test_a_token_ends_when_it_says() -> None:
    """One that is replayed after its end is refused; so is one before its time; the leeway counts on both sides."""
    clock = FakeClock()
    now_s = clock.wall_ms() / 1000
    replayed = token(SECRET, exp=now_s + 60)
    assert bearer(replayed, [KEY], RULES, clock).expires_s == pytest.approx(now_s + 60)
    clock.jump(60_000)
    assert refused(replayed, clock=clock) == "the token has expired"
    assert bearer(replayed, [KEY], TokenRules(leeway_s=5), clock).name == "alice"
    early = token(SECRET, nbf=now_s + 120)
    assert refused(early, clock=clock) == "the token is not valid yet"
    clock.jump(60_000)
    assert bearer(early, [KEY], RULES, clock).name == "alice"


@pytest.mark.parametrize("date", ["1", None, True, [], {}, float("inf"), float("nan")])
def test_a_date_that_is_none_does_not_mean_for_ever(date: object) -> None:
    """A signer's mistake refuses the token."""
    assert "is no date" in refused(token(SECRET, exp=date))


def test_no_algorithm_but_the_configured_one() -> None:
    """`none`, none in other spellings, a stronger one than the secret is for, and an RSA key used as a secret."""
    body = coded({"sub": "alice"})
    for name in ("none", "None", "NONE", "nOnE", "", "HS256 ", "hs256"):
        assert refused(f"{coded({'alg': name, 'typ': 'JWT'})}.{body}.")
        assert refused(f"{coded({'alg': name})}.{body}.{coded('x')}")
    assert "HS256" in refused(token(bytes(64), algorithm="HS512"))
    spki = RSA_KEY.public_key().public_bytes(*DER)
    public = public_key(base64.b64encode(spki).decode(), "RS256", "s")
    for secret in (spki, RSA_KEY.public_key().public_bytes(*PEM)):
        head, claims = coded({"alg": "HS256"}), body
        signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        signed = base64.urlsafe_b64encode(signature.sign(f"{head}.{claims}".encode(), secret)).rstrip(b"=").decode()
        assert "RS256" in refused(f"{head}.{claims}.{signed}", public)
    assert "HS256" in refused(jwt.encode({"sub": "a"}, pem_of(RSA_KEY), "RS256"))


def test_a_token_is_no_other_after_a_change() -> None:
    """Changed claims, another key, a missing or foreign signature."""
    head, body, signature = token(SECRET).split(".")
    assert refused(f"{head}.{coded({'sub': 'admin'})}.{signature}") == "the token's signature is wrong"
    assert refused(f"{head}.{body}.") == "the token's signature is wrong"
    assert refused(f"{head}.{body}.{token(SECRET, 'bob').split('.')[2]}") == "the token's signature is wrong"
    assert refused(token(bytes(32))) == "the token's signature is wrong"
    embedded = jwt.encode({"sub": "a"}, bytes(32), "HS256", headers={"jwk": {"kty": "oct", "k": "AAAA"}, "kid": "../x"})
    assert refused(embedded) == "the token's signature is wrong"


@pytest.mark.parametrize(
    ("claims", "rules", "name"),
    [
        ({"sub": "alice"}, RULES, "alice"),
        ({"role": "spark"}, TokenRules(claim="role"), "spark"),
        ({"sub": ["first", "second"]}, RULES, "first"),
        ({}, RULES, None),
        ({"sub": ""}, RULES, None),
        ({"sub": 7}, RULES, None),
        ({"sub": []}, RULES, None),
        ({"sub": "a\nb"}, RULES, None),
        ({"sub": "x" * 257}, RULES, None),
        ({"sub": "alice", "aud": "offloaderd"}, TokenRules(audience="offloaderd"), "alice"),
        ({"sub": "alice", "aud": ["x", "offloaderd"]}, TokenRules(audience="offloaderd"), "alice"),
        ({"sub": "alice", "aud": "other"}, TokenRules(audience="offloaderd"), None),
        ({"sub": "alice"}, TokenRules(audience="offloaderd"), None),
        ({"sub": "alice", "aud": "whoever"}, RULES, "alice"),
    ],
)
def test_who_is_named_and_for_whom_it_is_meant(claims: dict[str, Any], rules: TokenRules, name: str | None) -> None:
    """The claim is configurable; a list names its first, as Pulsar takes it."""
    text = jwt.encode(claims, SECRET, "HS256") if not isinstance(claims.get("sub"), int | list) else signed(claims)
    if name is None:
        refused(text, rules=rules)
    else:
        assert bearer(text, [KEY], rules, FakeClock()).name == name


def signed(claims: object) -> str:
    """Sign what the library would not: claims of any type."""
    return jwt.api_jws.encode(json.dumps(claims).encode(), SECRET, "HS256")


@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("latin-1")), st.text("eyJ.AB_-", max_size=60)))
def test_any_text_is_refused_and_nothing_else_happens(text: str) -> None:
    """Garbage raises Unauthenticated and no other error."""
    with pytest.raises(Unauthenticated):
        bearer(text, [KEY], RULES, FakeClock())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["sub", "exp", "nbf", "aud"]), inner)
        ),
        max_leaves=6,
    )
)
def test_any_claims_that_are_signed_give_a_name_or_a_refusal(claims: object) -> None:
    """A signer may write what it wants; the reader raises nothing else."""
    try:
        found = bearer(signed(claims), [KEY], TokenRules(audience="x"), FakeClock())
    except Unauthenticated:
        return
    assert found.name


def test_what_is_wrong_is_told_of_the_newest_key() -> None:
    """While keys are replaced: a token of neither is judged by the key that will stay, and each key knows its place."""
    before = TokenKey(RSA_KEY.public_key(), ("RS256",))
    clock = FakeClock()
    with pytest.raises(Unauthenticated, match="the token's signature is wrong"):
        bearer(token(bytes(32)), [KEY, before], RULES, clock)
    with pytest.raises(Unauthenticated, match="the token is not signed with RS256"):
        bearer(token(bytes(32)), [before, KEY], RULES, clock)
    assert [bearer(token(SECRET), keys, RULES, clock).key for keys in ([KEY, before], [before, KEY])] == [0, 1]


def test_keys_are_never_shown() -> None:
    """Neither in a traceback's locals nor in a log line."""
    assert "1" not in repr(TokenKey(b"\x31\x31", ("HS",))).replace("HS", "")

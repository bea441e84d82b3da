"""Keys of an OpenID provider: which are taken, how they rotate, and what a token of theirs has to have."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from offloaderd.access import jwks
from offloaderd.access.jwks import RemoteKeys, parse
from offloaderd.access.roles import Grant, Identity, Kind, Rights, Role
from offloaderd.access.tokens import TokenKey, TokenRules, bearer, key_id_of
from offloaderd.core.errors import InvalidConfig, Transient, Unauthenticated
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.testing.clock import FakeClock

RSA_KEY, OTHER_KEY = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER = "https://login.example.org"
RULES = TokenRules(issuer=ISSUER, groups_claim="realm_access.roles")
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def jwk(key: Private, key_id: str = "", **more: object) -> dict[str, Any]:
    """Return a public key as a provider lists it."""
    kind: Any = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    return {**found, **({"kid": key_id} if key_id else {}), **more}


def listed(*keys: object) -> bytes:
    """Return a document of keys."""
    return json.dumps({"keys": keys}).encode()


def signed(key: Private, key_id: str = "", **claims: object) -> str:
    """Return a token of the provider."""
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    headers = {"kid": key_id} if key_id else None
    return jwt.encode({"sub": "bob", "iss": ISSUER, **claims}, key, algorithm, headers=headers)


def refused(text: str, keys: tuple[TokenKey, ...]) -> str:
    """Return why a token is refused."""
    with pytest.raises(Unauthenticated) as caught:
        bearer(text, keys, RULES, FakeClock())
    return caught.value.message


def test_keys_for_signatures_are_taken_and_no_others() -> None:
    """Not those for encryption, secrets, private or weak ones, or ones of unknown kinds; the rest is used."""
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505 - to be refused
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_KEY))
    found = parse(
        listed(
            jwk(RSA_KEY, "a", use="sig", alg="RS512"),
            jwk(EC_KEY, "b"),
            jwk(OTHER_KEY, "c", use="enc"),
            jwk(OTHER_KEY, "d", alg="HS256"),
            jwk(EC_KEY, "e", alg="ES384"),
            jwk(weak, "f"),
            {"kty": "oct", "k": "c2VjcmV0", "kid": "g"},
            {"kty": "RSA", "kid": "h"},
            jwk(OTHER_KEY, "i", alg=["RS256"]),
            jwk(OTHER_KEY, "j", alg={}),
            private,
            "no key",
        ),
        "here",
    )
    assert [(key.key_id, key.algorithms) for key in found] == [("a", ("RS512",)), ("b", ("ES256",))]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"{" * 10_000, b" " * (2 << 20)])
def test_what_holds_no_keys_is_refused(data: bytes) -> None:
    """The page of a login, an answer without end, a document of another kind."""
    with pytest.raises(InvalidConfig, match="holds no"):
        parse(data, "here")


def test_a_token_is_compared_with_the_key_that_it_names() -> None:
    """A key that is not listed is said to be so; without a name all are tried; another issuer is none."""
    keys = parse(listed(jwk(RSA_KEY, "a"), jwk(EC_KEY, "b")), "here")
    assert bearer(signed(RSA_KEY, "a"), keys, RULES, FakeClock()).name == "bob"
    assert bearer(signed(EC_KEY), keys, RULES, FakeClock()).key == 1
    assert "its provider does not list" in refused(signed(OTHER_KEY, "c"), keys)
    assert "signature is wrong" in refused(signed(OTHER_KEY, "a"), keys)
    assert "was not issued by" in refused(signed(RSA_KEY, "a", iss="https://evil.example.org"), keys)
    assert key_id_of(signed(RSA_KEY, "a")) == "a"
    assert key_id_of("no token") == ""


def test_a_token_of_the_settings_key_needs_no_issuer() -> None:
    """Pulsar's tokens have none, and are accepted beside those of the provider."""
    secret = TokenKey(bytes(32), ("HS256",))
    keys = (secret, *parse(listed(jwk(RSA_KEY, "a")), "here"))
    assert bearer(jwt.encode({"sub": "broker"}, bytes(32), "HS256"), keys, RULES, FakeClock()).name == "broker"
    assert bearer(signed(RSA_KEY, "a"), keys, RULES, FakeClock()).key == 1


def test_groups_of_a_token_have_grants() -> None:
    """A claim within others too; what cannot be a name is left out, and their number is bounded."""
    keys = parse(listed(jwk(RSA_KEY, "a")), "here")
    groups = ["analysts", "", 7, "x\x00"]
    found = bearer(signed(RSA_KEY, "a", realm_access={"roles": groups}), keys, RULES, FakeClock())
    assert found.groups == ("analysts",)
    flat = TokenRules(groups_claim="groups")
    many = bearer(signed(RSA_KEY, "a", groups=[f"g{n}" for n in range(500)]), keys, flat, FakeClock())
    assert len(many.groups) == 100
    assert bearer(signed(RSA_KEY, "a", groups="one"), keys, flat, FakeClock()).groups == ("one",)
    assert bearer(signed(RSA_KEY, "a"), keys, flat, FakeClock()).groups == ()
    rights = Rights([Grant.parse("read group:analysts acme/*")])
    where = TopicPattern.parse("acme/eu/*")
    assert rights.allow([Identity(Kind.TOKEN, "bob"), Identity(Kind.GROUP, "analysts")], Role.READ, where)
    assert not rights.allow([Identity(Kind.TOKEN, "analysts")], Role.READ, where)


def test_a_grant_may_be_of_all_spiffe_ids_below_a_path() -> None:
    """By whole elements of the path, of that trust domain alone, and not by an id that climbs or has a star."""
    rights = Rights([Grant.parse("offload uri:spiffe://prod/brokers/* *")])

    def may(name: str, kind: Kind = Kind.URI) -> bool:
        return rights.allow([Identity(kind, name)], Role.OFFLOAD, None)

    assert may("spiffe://prod/brokers/1")
    assert may("spiffe://prod/brokers/eu/1")
    for name in (
        "spiffe://prod/brokers", "spiffe://prod/brokers-eu/1", "spiffe://dev/brokers/1", "spiffe://prod/brokers/../x",
        "spiffe://prod/brokers//x", "spiffe://prod/*", "prod/brokers/1",
    ):  # fmt: skip
        assert not may(name), name
    assert not may("spiffe://prod/brokers/1", Kind.DNS)


async def test_keys_rotate_at_a_steady_pace() -> None:
    """Every five minutes, and for an unknown key, but not for each of a thousand of those."""
    clock, asked, answer = FakeClock(), list[str](), [listed(jwk(RSA_KEY, "a"))]

    async def fetch(address: str) -> bytes:
        asked.append(address)
        return answer[0]

    keys = RemoteKeys(ISSUER, fetch, clock)
    assert not list(keys.value)
    assert await keys.refresh()
    assert not await keys.refresh()
    answer[0] = listed(jwk(RSA_KEY, "a"), jwk(OTHER_KEY, "b"))
    keys.missed()
    assert not await keys.refresh()
    await clock.advance(jwks.UNKNOWN_S)
    assert await keys.refresh()
    assert [key.key_id for key in keys.value] == ["a", "b"]
    await clock.advance(jwks.REFRESH_S - 1)
    assert not await keys.refresh()
    await clock.advance(1)
    assert not await keys.refresh()
    assert len(asked) == 3


async def test_keys_stay_in_use_while_the_provider_is_away() -> None:
    """Also when it answers with something else; it is asked again soon."""
    clock, answers = FakeClock(), [listed(jwk(RSA_KEY, "a")), b"<html>", listed(jwk(RSA_KEY, "c"))]

    async def fetch(_address: str) -> bytes:
        if len(answers) == 2 and answers[0] != b"<html>":
            raise Transient("away")
        return answers.pop(0)

    keys = RemoteKeys(ISSUER, fetch, clock)
    await keys.refresh()
    before = keys.value
    await clock.advance(jwks.REFRESH_S)
    assert not await keys.refresh()
    assert keys.failing
    assert keys.value == before
    await clock.advance(jwks.UNKNOWN_S)
    assert await keys.refresh()
    assert not keys.failing
    assert [key.key_id for key in keys.value] == ["c"]

"""An OpenID provider with real keys and tokens: discovery, JWKS, a token endpoint and introspection."""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlencode

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.live import live

AUDIENCE = "agent"
ISSUER = "https://id.example.com"


def now() -> int:
    return int(time.time())


class Keys:
    """The signing keys of an issuer."""

    def __init__(self) -> None:
        self.keys = [self._new()]

    @staticmethod
    def _new() -> ECKey:
        return ECKey.generate_key("P-256", {"use": "sig"}, auto_kid=True)

    def rotate(self) -> None:
        """Sign with a new key, and no longer publish the old one."""
        self.keys = [self._new()]

    def published(self) -> dict[str, Any]:
        return {**KeySet(list(self.keys)).as_dict(private=False)}

    def token(self, sub: str = "alice", **claims: Any) -> str:
        """A signed token; a claim that is None is left out."""
        values = {"iss": ISSUER, "aud": AUDIENCE, "sub": sub, "iat": now(), "exp": now() + 600, **claims}
        header = {"alg": "ES256", "kid": self.keys[-1].kid}
        return jwt.encode(header, {name: value for name, value in values.items() if value is not None}, self.keys[-1])


class Provider(Keys):
    """An OpenID provider behind a socket."""

    url = ""
    #: The client that may introspect tokens.
    client = ("errands", "s3cret/+ %")

    def __init__(self) -> None:
        super().__init__()
        self.reset()
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/introspect", self._introspect, methods=["POST"]),
            ]
        )

    def reset(self) -> None:
        """Forget everything that a test did."""
        self.rotate()
        self.asked: Counter[str] = Counter()
        self.revoked: set[str] = set()
        #: Answers of this status instead of the usual ones.
        self.status = 200
        #: What browsers were sent here with, by the code that they got.
        self.authorized: dict[str, dict[str, str]] = {}
        #: Fields that replace those of the discovery document.
        self.discovery: dict[str, Any] = {}

    def token(self, sub: str = "alice", **claims: Any) -> str:
        return super().token(sub, **{"iss": self.url, **claims})

    async def _discovery(self, request: Request) -> Response:
        document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", "token_endpoint": f"{self.url}/token"}
        document["authorization_endpoint"] = f"{self.url}/authorize"
        return self._answer(request, document | self.discovery)

    async def _keys(self, request: Request) -> Response:
        return self._answer(request, self.published())

    async def _authorize(self, request: Request) -> Response:
        """Send the browser back at once: the user has signed in before, or refuses as `status` says."""
        asked = dict(request.query_params)
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        code = f"code-{len(self.authorized)}"
        self.authorized[code] = asked
        answer = {"code": code} if self.status == 200 else {"error": "access_denied"}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({**answer, 'state': asked['state']})}")

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        if form["grant_type"] == "authorization_code":
            asked = self.authorized.pop(str(form["code"]))
            digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
            assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
            assert (asked["redirect_uri"], asked["client_id"]) == (form["redirect_uri"], form["client_id"])
            token = self.token(scope=asked["scope"])
            return self._answer(request, {"access_token": token, "token_type": "Bearer", "expires_in": 600})
        token = self.token(str(form["client_id"]), scope=str(form.get("scope", "")), aud=str(form["audience"]))
        return self._answer(request, {"access_token": token, "token_type": "Bearer", "expires_in": 600})

    async def _introspect(self, request: Request) -> Response:
        scheme, _, encoded = request.headers["authorization"].partition(" ")
        assert scheme == "Basic"
        user, _, password = base64.b64decode(encoded).decode().partition(":")
        assert (unquote(user), unquote(password)) == self.client
        token = str((await request.form())["token"])
        if token in self.revoked:
            return self._answer(request, {"active": False})
        try:
            claims = jwt.decode(token, self.keys[-1], algorithms=["ES256"]).claims
        except Exception:
            return self._answer(request, {"active": False})
        return self._answer(request, {"active": True, **claims})

    def _answer(self, request: Request, document: dict[str, Any]) -> Response:
        self.asked[request.url.path] += 1
        location = {"Location": f"{self.url}/keys"} if self.status == 302 else {}
        return JSONResponse(document, self.status, {**location, "Access-Control-Allow-Origin": "*"})


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that is served at its `url`."""
    served = Provider()
    with live(served.app) as url:
        served.url = url
        yield served

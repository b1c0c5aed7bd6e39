"""Where a store is, as its URL says."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from errands.engines.passwords import without_password
from errands.errors import ConfigurationError

DEFAULT_PREFIX = "errands"

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = ("prefix", *_TLS_OPTIONS)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Where the store is."""

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    #: Files: the authorities that are believed, and the certificate that this process shows, with its key.
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    prefix: str = DEFAULT_PREFIX

    @property
    def server(self) -> str:
        """The server's name for messages: never with the password."""
        return f"{self.host}:{self.port}/{self.db}"

    @classmethod
    def from_url(cls, url: str) -> Options:
        """Raises `ConfigurationError` for what is not understood: nothing is ever ignored."""
        parts = urlsplit(url)
        shown = without_password(url.partition("?")[0])
        try:
            port, db = parts.port or cls().port, int(parts.path.strip("/") or 0)
        except ValueError:
            raise ConfigurationError(
                f"storage {shown!r}: write redis://user:password@host:port/0, the last being a database's number"
            ) from None
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(set(given) - set(_OPTIONS)):
            raise ConfigurationError(
                f"storage {shown!r}: unknown option {', '.join(unknown)}; possible are {', '.join(_OPTIONS)}"
            )
        prefix = given.get("prefix", DEFAULT_PREFIX)
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                f"storage {shown!r}: a prefix has 1 to 64 letters, digits or any of _ . : -, not {prefix!r}"
            )
        tls = parts.scheme.lower().partition("+")[0] == "rediss"
        files = {name: given[name] for name in _TLS_OPTIONS if name in given}
        if files and not tls:
            raise ConfigurationError(f"storage {shown!r}: {', '.join(files)} goes with TLS: write rediss://")
        return cls(
            host=parts.hostname or "localhost",
            port=port,
            db=db,
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=tls,
            prefix=prefix,
            **files,
        )

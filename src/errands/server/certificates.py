"""Client certificates: reading one as a server or a proxy passes it on, and the names in it. Needs `errands[auth]`."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

_MAX_BYTES = 32_000


def read(text: str) -> x509.Certificate:
    """Return a certificate: base64 between colons (RFC 9440), or PEM, which may be percent-encoded.

    Raises `ValueError`, also if it is not valid at this time.
    """
    if len(text) > _MAX_BYTES:
        raise ValueError("is too large")
    try:
        if text.startswith(":") and text.endswith(":"):
            found = x509.load_der_x509_certificate(base64.b64decode(text[1:-1], validate=True))
        else:
            found = x509.load_pem_x509_certificate(unquote(text).encode())
    except (ValueError, binascii.Error):
        raise ValueError("cannot be read") from None
    now = datetime.datetime.now(datetime.UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise ValueError("has expired or is not valid yet")
    return found


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    # A certificate with several could be read differently elsewhere.
    return str(names[0].value) if len(names) == 1 else ""


def _alternative(kind: type[Any]) -> Callable[[x509.Certificate], str]:
    def first(certificate: x509.Certificate) -> str:
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return ""
        return str(next(iter(names.get_values_for_type(kind)), ""))

    return first


#: What may name the holder of a certificate. A certificate without it names "".
IDENTITIES: dict[str, Callable[[x509.Certificate], str]] = {
    "subject": lambda certificate: certificate.subject.rfc4514_string(),
    "common_name": _common_name,
    "uri": _alternative(x509.UniformResourceIdentifier),
    "dns": _alternative(x509.DNSName),
    "email": _alternative(x509.RFC822Name),
    "fingerprint": lambda certificate: certificate.fingerprint(SHA256()).hex(),
}

"""Certificates of a job's own authority: made once for a job, read by its coordinator and its agents."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from meshrt.errors import ConfigError
from meshrt.launch.hosts.security import Certificates, check_private

__all__ = ["CERTIFIED_NAME", "make", "read"]

CERTIFIED_NAME = "meshrt-coordinator"  # the job's authority says who it is, whatever its host is called
_EARLIER = datetime.timedelta(minutes=5)  # clocks of hosts differ a little


def make(folder: Path, job: str, days: float) -> list[Path]:
    """Writes an authority of one job and what it signs: ``ca.pem``, and for ``coordinator`` and ``agent`` a ``.pem``
    and a ``.key`` (mode 0600). The authority's own key is kept nowhere: nothing more can be signed.

    Raises:
      ConfigError: there are such files already, or the folder cannot be written.
    """
    start = datetime.datetime.now(datetime.UTC) - _EARLIER
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    signer = ec.generate_private_key(ec.SECP256R1())
    issuer = _name(f"meshrt job {job}")
    authority = _builder(issuer, issuer, signer, start, end, ca=True).sign(signer, hashes.SHA256())
    contents = {"ca.pem": authority.public_bytes(serialization.Encoding.PEM)}
    for role, name in (("coordinator", CERTIFIED_NAME), ("agent", "meshrt-agent")):
        key = ec.generate_private_key(ec.SECP256R1())
        uri = x509.UniformResourceIdentifier(f"meshrt://job/{job}/{role}")
        names = x509.SubjectAlternativeName([x509.DNSName(name), uri])
        builder = _builder(_name(name), issuer, key, start, end, ca=False).add_extension(names, critical=False)
        contents[f"{role}.pem"] = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        contents[f"{role}.key"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return [_write(folder / name, content) for name, content in contents.items()]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, start: datetime.datetime, end: datetime.datetime, ca: bool
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
    return builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)


def _write(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; choose another folder, or remove the old certificates") from None
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror}") from None
    with open(handle, "wb") as file:
        file.write(content)
    return path


def read(folder: Path, role: str) -> Certificates:
    """The certificates of a folder that `make` wrote. ConfigError says what is missing, open to others, expired or of
    another folder."""
    contents, found = list[bytes](), list[x509.Certificate]()
    for name in ("ca.pem", f"{role}.pem", f"{role}.key"):
        path = folder / name
        try:
            if name.endswith(".key"):
                check_private(path)
            contents.append(path.read_bytes())
        except OSError as e:
            raise ConfigError(
                f"{path}: cannot be read ({e.strerror}); make certificates with `meshrt launch certificates FOLDER`, "
                "and copy ca.pem, agent.pem and agent.key to every host"
            ) from None
        if name.endswith(".pem"):
            found.append(_loaded(path, contents[-1]))
    authority, own = found
    _check_match(folder, role, authority, own, contents[-1])
    return Certificates(*contents)


def _check_match(folder: Path, role: str, authority: x509.Certificate, own: x509.Certificate, key: bytes) -> None:
    """Whether what lies in the folder is of one job: else nobody lets this side in, and nobody says why."""
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(
            f"{folder / f'{role}.pem'}: it was not signed by the authority of {folder / 'ca.pem'}: the files are of "
            "different jobs; copy all of them from one folder of `meshrt launch certificates`"
        ) from None
    try:
        public = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"{folder / f'{role}.key'}: it is no private key without a password: {e}") from None
    if _bytes_of(public) != _bytes_of(own.public_key()):
        raise ConfigError(
            f"{folder / f'{role}.key'}: it is not the key of {folder / f'{role}.pem'}: the files are of different "
            "jobs; copy all of them from one folder of `meshrt launch certificates`"
        )


def _bytes_of(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    found: bytes = key.public_bytes(serialization.Encoding.DER, form)
    return found


def _loaded(path: Path, content: bytes) -> x509.Certificate:
    """A certificate that counts now."""
    try:
        found = x509.load_pem_x509_certificate(content)
    except ValueError as e:
        raise ConfigError(f"{path}: it is no certificate: {e}") from None
    now = datetime.datetime.now(datetime.UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise ConfigError(
            f"{path}: the certificate counts from {found.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} here: make new ones with "
            "`meshrt launch certificates`, or set the clock"
        )
    return found

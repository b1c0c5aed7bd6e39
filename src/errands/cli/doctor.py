"""`errands doctor`: find out why an agent does not run, or cannot be reached, and say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import platform
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Literal

import httpx
import msgspec
from rich.text import Text
from typer import Argument, Option

from errands.cli.card import check_served
from errands.cli.failures import CommandError, ExitCode, command
from errands.cli.http_server import bind
from errands.cli.options import AllowOrigins, ApiKeyOption, AsJson, Headers, RemoteAgent, Token
from errands.cli.printing import clean, counted, out, print_json
from errands.cli.target import ServeTarget, has_project, load_server, project_target
from errands.client import A2AClientError
from errands.clock import system_clock
from errands.engines.connection import TOLERATED, without_password
from errands.engines.sqlite import SQLiteEngine
from errands.engines.urls import engine_from_url
from errands.errors import A2AError, AuthenticationRequiredError, ConfigurationError, EngineError
from errands.model.base import encode
from errands.runtime.settings import ENV_PREFIX, Settings, misspelled
from errands.server.app import A2AServer
from errands.server.cards import build_card
from errands.server.http import READY_PATH
from errands.version import __version__
from errands.wire.card_check import CardReport, check_card

#: Bytes of free disk space below which a store is at risk, and below which it cannot work.
_LOW_SPACE, _NO_SPACE = 1024**3, 64 * 1024**2
#: Seconds that an agent has to answer.
_PATIENCE = 10.0
#: Milliseconds by which the `Date` of an answer may differ: it is rounded to seconds, and the network takes time.
_DATE_TOLERANCE = 3000

#: Settings that have an effect only together with another one.
_NEEDED = {
    "audit_reads": "audit",
    "auth_audience": "auth_issuer",
    "auth_console_client": "auth_issuer",
    "blob_bytes": "blobs",
    "caller_burst": "caller_rate",
    "card_signing_jku": "card_signing_keys",
    "forwarded_proxies": "trust_forwarded",
    "grpc_host": "grpc_port",
    "keep_audit_for": "audit",
    "max_upload_bytes": "blobs",
    "model_api_key": "model",
    "model_base_url": "model",
    "public_grpc": "grpc_port",
    "push_allow": "push_notifications",
    "push_jwt": "push_notifications",
    "push_secret": "push_notifications",
    "tls_client_ca": "tls_certificate",
    "tls_key": "tls_certificate",
}
#: Settings that need an extra, with a module that it installs.
_EXTRAS = {
    "grpc_port": ("grpc", "grpc"),
    "auth": ("auth", "joserfc"),
    "auth_issuer": ("auth", "joserfc"),
    "card_signing_keys": ("signing", "rfc8785"),
    "policy": ("agents", "yaml"),
}
#: Settings that name files with secrets.
_SECRET_FILES = ("tls_key", "auth", "card_signing_keys", "tool_settings")

Severity = Literal["ok", "warning", "error"]
_STYLES = {"ok": "green", "warning": "yellow", "error": "red"}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    severity: Severity
    #: What was checked.
    about: str
    text: str
    #: What to do about it; "" if nothing has to be done.
    remedy: str = ""


@command
async def doctor(
    place: Annotated[
        str | None,
        Argument(
            metavar="[TARGET|URL]",
            help="What would be served, as for `errands serve`, or the address of an agent.",
            show_default="agent.py or agent.yaml in this folder, if there is one",
        ),
    ] = None,
    storage: Annotated[
        str | None, Option("--storage", metavar="URL", help="The task store.", show_default="TARGET's")
    ] = None,
    host: Annotated[str, Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> ExitCode:
    """Check what an agent needs to run, or an agent that runs, and say what to do about each problem.

    For a TARGET: settings, extras, files, card, task store, clock, disk space and ports. For a URL: reachability, card,
    readiness, clock and access. Nothing is changed. The exit code is 1 if there is an error.

    Example:

        errands doctor http://localhost:8000
    """
    is_url = place is not None and "://" in place
    if is_url:
        checks = check_agent(RemoteAgent(place or "", header, token, api_key, allow_origin))
    else:
        checks = check_target(place, storage, host, port)
    found: list[Diagnosis] = []
    with _quiet():
        async for diagnosis in checks:
            found.append(diagnosis)
            if not as_json:
                head = (f"{diagnosis.severity:<8} ", _STYLES[diagnosis.severity]), (f"{diagnosis.about:<10} ", "dim")
                out().print(Text.assemble(*head, clean(diagnosis.text)))
                if diagnosis.remedy:
                    out().print(Text.assemble(" " * 9, (clean(f"fix: {diagnosis.remedy}"), "dim")))
    errors = sum(diagnosis.severity == "error" for diagnosis in found)
    warnings = sum(diagnosis.severity == "warning" for diagnosis in found)
    if as_json:
        print_json({"healthy": not errors, "checks": found})
    else:
        verdict = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}" if errors or warnings else "all is well"
        out().print(f"{counted(len(found), 'check')}: {verdict}", style="bold")
    return ExitCode.FAILED if errors else ExitCode.OK


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep log lines off the terminal: the findings say the same."""
    logger, handler = logging.getLogger("errands"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _ok(about: str, text: str) -> Diagnosis:
    return Diagnosis(severity="ok", about=about, text=text)


def _warning(about: str, text: str, remedy: str) -> Diagnosis:
    return Diagnosis(severity="warning", about=about, text=text, remedy=remedy)


def _error(about: str, text: str, remedy: str) -> Diagnosis:
    return Diagnosis(severity="error", about=about, text=text, remedy=remedy)


def _card_diagnoses(report: CardReport) -> Iterator[Diagnosis]:
    for finding in report.findings:
        text = f"{finding.path or 'the card'} {finding.problem}"
        yield Diagnosis(severity=finding.severity, about="card", text=text, remedy=finding.remedy)
    if report.valid:
        yield _ok("card", f"valid for A2A {' and '.join(report.versions)}")


# What would be served here


async def check_target(place: str | None, storage: str | None, host: str, port: int) -> AsyncIterator[Diagnosis]:
    """Check what `errands serve` with these arguments needs."""
    yield _ok("version", f"errands {__version__}, Python {platform.python_version()}")
    try:
        settings = Settings.from_env()
    except ConfigurationError as error:
        yield _error("settings", str(error), "correct the variable, or unset it")
        return
    for variable, meant in misspelled(os.environ).items():
        yield _warning("settings", f"{variable} is not a setting, so it has no effect", f"write {meant}")
    for diagnosis in _missing_extras(settings):
        yield diagnosis
    if place is None and has_project():
        place = project_target()
    server: A2AServer | None = None
    if place is not None:
        try:
            server = load_server(place, storage)
        except CommandError as error:
            first = error.details.strip().rpartition("\n")[2]
            yield _error("target", f"{error}{f' ({first})' if first else ''}", "correct it; see `errands serve --help`")
        else:
            yield _ok("target", f"{place} has the agent {server.agent_card.name} {server.agent_card.version}")
            settings = server.settings
            versions = [version.strip() for version in settings.protocol_versions.split(",")]
            card = build_card(server.agent_card, f"http://{host}:{port or 8000}", versions=versions)
            for diagnosis in _card_diagnoses(check_card(encode(card))):
                yield diagnosis
    is_manifest = place is not None and ServeTarget.parse(place).is_manifest
    for diagnosis in (*_without_effect(settings, is_manifest), *_files(settings)):
        yield diagnosis
    url = storage or settings.storage
    if server is not None and storage is None and server.storage != without_password(url):
        yield _ok("storage", f"made by the program ({server.storage}), so it is not checked")
    else:
        async for diagnosis in check_store(url):
            yield diagnosis
    for option, number, address in (("--port", port, host), ("--grpc-port", settings.grpc_port, settings.grpc_host)):
        if number is None:
            continue
        try:
            bind(address, number, option).close()
        except CommandError as error:
            problem, _, remedy = str(error).partition("; ")
            yield _error("port", problem, remedy)
        else:
            yield _ok("port", f"{number} of {address} is free")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _missing_extras(settings: Settings) -> Iterator[Diagnosis]:
    for name, (extra, module) in _EXTRAS.items():
        if getattr(settings, name) is not None and not _has(module):
            yield _error("extras", f"the setting {name} needs an extra", f"pip install 'errands[{extra}]'")
    if settings.model is not None and not settings.model.startswith("scripted") and not _has("any_llm"):
        yield _error("extras", f"the model {settings.model} needs an extra", "pip install 'errands[agents,models]'")
    for scheme, module, extra in (("s3://", "s3fs", "s3"), ("gs://", "gcsfs", "gcs")):
        if (settings.blobs or "").startswith(scheme) and not _has(module):
            yield _error("extras", f"blobs at {scheme} need an extra", f"pip install 'errands[{extra}]'")


def _without_effect(settings: Settings, is_manifest: bool) -> Iterator[Diagnosis]:
    defaults = Settings()
    is_set = {name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(defaults, name)}
    is_off = {
        name for name in settings.__struct_fields__ if (value := getattr(settings, name)) is None or value is False
    }
    found = {name: needed for name, needed in _NEEDED.items() if name in is_set and needed in is_off}
    for name, needed in found.items():
        text = f"{name} has no effect without {needed}"
        yield _warning("settings", text, f"set {ENV_PREFIX}{needed.upper()}, or unset {ENV_PREFIX}{name.upper()}")
    if not is_manifest and "tool_settings" in is_set:
        found["tool_settings"] = "a manifest"
        yield _warning("settings", "tool_settings has no effect: it is for manifests", "unset it")
    if not found:
        yield _ok("settings", f"{len(is_set)} changed, and each has an effect")


def _files(settings: Settings) -> Iterator[Diagnosis]:
    """Check the files and folders that settings name."""
    for name in (*_SECRET_FILES, "tls_certificate", "tls_client_ca", "policy"):
        for text in (getattr(settings, name) or "").split(","):
            if not (path := Path(text.strip())).name:
                continue
            if not path.is_file():
                yield _error("files", f"{path} ({name}) does not exist", "create the file, or change the setting")
            elif not os.access(path, os.R_OK):
                yield _error("files", f"{path} ({name}) cannot be read", "change its owner or its permissions")
            elif name in _SECRET_FILES and stat.S_IMODE(path.stat().st_mode) & 0o077:
                yield _warning("files", f"{path} ({name}) can be read by other users", f"chmod 600 {path}")
    if settings.blobs is not None and not settings.blobs.startswith(("s3://", "gs://")):
        yield from _folder(Path(settings.blobs.removeprefix("file://")), "blobs")


def _folder(folder: Path, name: str) -> Iterator[Diagnosis]:
    """Check that files can be created in a folder, which may not exist yet, and that there is room for them."""
    existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield _error(
            "files", f"{existing} ({name}) cannot be written", "change its permissions, or name another folder"
        )
        return
    free = shutil.disk_usage(existing).free
    if free < _LOW_SPACE:
        text, remedy = f"{free // 1024**2} MB are free in {existing} ({name})", "free some space, or use another disk"
        yield _error("disk", text, remedy) if free < _NO_SPACE else _warning("disk", text, remedy)
    else:
        yield _ok("disk", f"{free / 1024**3:.1f} GB are free in {existing} ({name})")


async def check_store(url: str) -> AsyncIterator[Diagnosis]:
    """Check that a store can be used. Its tables are not changed."""
    shown = without_password(url)
    try:
        engine = engine_from_url(url)
    except ConfigurationError as error:
        yield _error("storage", str(error), "correct the storage URL, or install the extra")
        return
    if not engine.durable:
        yield _warning("storage", "tasks in memory are lost when the server stops", "name a durable store: --storage")
        return
    if isinstance(engine, SQLiteEngine):
        found = list(_database_file(Path(engine.path)))
        for diagnosis in found:
            yield diagnosis
        if any(diagnosis.about == "storage" and diagnosis.severity != "warning" for diagnosis in found):
            return
    try:
        async with asyncio.timeout(_PATIENCE):
            if engine.schema is not None:
                version = await engine.schema.check()
                if await engine.schema.sql():
                    yield _warning(
                        "storage",
                        f"{shown} has schema version {version}, which is not the newest",
                        f"errands db upgrade --storage {shown}; or serve an agent, which upgrades the tables",
                    )
                    return
            async with engine:
                await engine.check()
                yield _ok("storage", f"{shown} can be read and written, and its tables are up to date")
                # The difference that the engine has measured. SQLite has no clock of its own.
                if not isinstance(engine, SQLiteEngine):
                    difference = engine.clock() - system_clock()
                    is_right = abs(difference) <= TOLERATED
                    yield (
                        _ok("clock", "this machine and the store agree")
                        if is_right
                        else _skewed(difference, "the store")
                    )
    except (EngineError, ConfigurationError) as error:
        problem, _, remedy = str(error).partition(". ")
        yield _error("storage", problem, remedy or "check the address, the network and the rights of the user")
    except TimeoutError:
        yield _error("storage", f"{shown} has not answered for {_PATIENCE:g} s", "check its load and the network")


def _database_file(path: Path) -> Iterator[Diagnosis]:
    """Check the file of an SQLite store and its folder. It cannot be opened if this yields `storage` as ok or error."""
    folder = list(_folder(path.parent, "storage"))
    yield from folder
    if any(diagnosis.severity == "error" for diagnosis in folder):
        yield _error("storage", f"{path} cannot be used", "see above")
    elif not path.exists():
        yield _ok("storage", f"{path} does not exist yet and is created when an agent is served")
    elif not os.access(path, os.R_OK | os.W_OK):
        yield _error("storage", f"{path} cannot be written", "change its owner or its permissions")
    elif stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield _warning("storage", f"{path} can be read by other users", f"chmod 600 {path}")


def _skewed(difference: int, other: str) -> Diagnosis:
    order = "behind" if difference > 0 else "ahead of"
    text = f"the clock of this machine is {abs(difference) / 1000:.0f} s {order} that of {other}"
    return _warning("clock", text, "synchronise the clocks of both machines (NTP)")


# An agent that runs


async def check_agent(remote: RemoteAgent) -> AsyncIterator[Diagnosis]:
    """Check an agent from outside, as its clients see it."""
    try:
        place, report = await check_served(remote)
    except A2AClientError as error:
        yield _error("reach", str(error), "check the address and the network, and that the agent runs")
        return
    yield _ok("reach", f"the card is at {place}")
    for diagnosis in _card_diagnoses(report):
        yield diagnosis
    async for diagnosis in _answers(remote.url):
        yield diagnosis
    try:
        async with asyncio.timeout(_PATIENCE), remote.client(max_retries=0) as client:
            await client.list_tasks(page_size=1)
            access = f"tasks can be listed over {client.protocol}, A2A {client.version}"
    except AuthenticationRequiredError as error:
        yield _warning("access", str(error), "give credentials with --token, --api-key or --header")
    except (A2AError, A2AClientError) as error:
        yield _error("access", str(error), "see the log of the agent")
    except TimeoutError:
        yield _error(
            "access", f"listing tasks took more than {_PATIENCE:g} s", "see the log of the agent and its store"
        )
    else:
        yield _ok("access", access)


async def _answers(url: str) -> AsyncIterator[Diagnosis]:
    """Check readiness, which servers of errands report, and compare the clocks."""
    async with httpx.AsyncClient(timeout=_PATIENCE) as http:
        try:
            async with http.stream("GET", url.rstrip("/") + READY_PATH) as answer:
                # The beginning is enough, however much another server sends.
                text = (await anext(answer.aiter_bytes(200), b"")).decode(errors="replace")
        except httpx.HTTPError as error:
            yield _error("ready", f"{READY_PATH} does not answer ({type(error).__name__})", "see the log of the agent")
            return
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        yield _error("ready", f"the server is not ready: {text}", "see its log, and check its task store")
    elif answer.status_code == httpx.codes.OK:
        yield _ok("ready", "the server takes requests")
    try:
        theirs = int(parsedate_to_datetime(answer.headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError):
        return
    difference = theirs - system_clock()
    if abs(difference) > _DATE_TOLERANCE:
        yield _skewed(difference, "the agent")
    else:
        yield _ok("clock", "this machine and the agent agree")

"""Buckets as mounts: S3 and Google Cloud Storage, through fsspec."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

from errands.agents.manifests.documents import S3, Gcs
from errands.agents.mounts.base import FileInfo, Files, MountError, decoded, guess_type, too_large
from errands.agents.mounts.paths import names
from errands.errors import ConfigurationError

logger = logging.getLogger(__name__)


class RemoteFiles(Files):
    """`filesystem` is one of fsspec's. Objects are written whole: a reader finds the old one or the new one."""

    def __init__(self, backend: str, bucket: str, prefix: tuple[str, ...], filesystem: Any, *, max_bytes: int) -> None:
        super().__init__(bucket, prefix, max_bytes=max_bytes)
        self.backend = backend
        self._filesystem = filesystem

    async def read(self, path: str) -> str:
        size = (await self.info(path)).size
        if size > self._max_bytes:
            raise too_large(path, self._max_bytes)
        if size == 0:
            # A range of nothing is an error to S3.
            return ""
        return decoded(await self._do(path, self._filesystem.cat_file, self._key(path), start=0, end=size), path)

    async def _put(self, path: str, content: bytes) -> None:
        await self._do(path, self._filesystem.pipe_file, self._key(path), content)

    async def info(self, path: str) -> FileInfo:
        found = await self._do(path, self._filesystem.info, self._key(path))
        if found["type"] != "file":
            raise MountError(f"{path}: it is a folder")
        return FileInfo(path, guess_type(path), int(found["size"]))

    def _key(self, path: str) -> str:
        return f"{self.bucket}{self.prefix}{'/'.join(names(path))}"

    async def _do(self, path: str, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await asyncio.to_thread(action, *args, **kwargs)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and action != self._filesystem.pipe_file:
                raise MountError(f"{path}: there is no such file") from None
            # The words of a client library may have addresses and identities in them.
            reference = secrets.token_hex(4)
            logger.error("the mount %s://%s: %s [%s]", self.backend, self.bucket, path, reference, exc_info=error)
            raise MountError(f"{path}: the bucket did not do it (reference {reference})") from None


def s3(config: S3) -> Any:
    """Credentials come from where the AWS tools look for them."""
    client = {"region_name": config.region} if config.region else {}
    return _filesystem("s3fs", "S3FileSystem", "s3", profile=config.profile, client_kwargs=client)


def gcs(config: Gcs) -> Any:
    """`sa` is the key file of a service account; without it the machine's own credentials are used."""
    if config.sa is not None and not os.path.isfile(config.sa):
        raise ConfigurationError(f"gcs.sa: there is no file {config.sa}; name the key file of a service account")
    return _filesystem("gcsfs", "GCSFileSystem", "gcs", token=config.sa)


def _filesystem(module: str, name: str, extra: str, **options: Any) -> Any:
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError:
        raise ConfigurationError(f"a mount on {extra} needs an extra: pip install 'errands[{extra}]'") from None
    try:
        # What other processes write must be seen, so nothing is remembered.
        return kind(use_listings_cache=False, skip_instance_cache=True, **options)
    except Exception as error:
        raise ConfigurationError(f"the mount on {extra} cannot be used: {error}") from error

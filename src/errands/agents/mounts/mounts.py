"""Which files an agent has: from a mount document, and without one in a folder of the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from errands.agents.manifests.documents import Agent, Mount, PathPrefixes
from errands.agents.mounts.base import Files, MountError
from errands.agents.mounts.local import LocalFiles
from errands.agents.mounts.paths import one_name, wrong
from errands.agents.mounts.remote import RemoteFiles, gcs, s3
from errands.errors import ConfigurationError

DEFAULT_FOLDER = Path(".errands/files")
#: Bytes of one file, read or written.
MAX_BYTES = 10 * 1000 * 1000

_EXAMPLES = {"namespace": "n", "agent": "a", "task": "t"}


class Mounts:
    """The files of all agents. Made once; a bucket is reached when it is first used."""

    def __init__(
        self, mount: Mount | None = None, default_folder: Path = DEFAULT_FOLDER, *, max_bytes: int = MAX_BYTES
    ) -> None:
        """Raises `ConfigurationError`."""
        self._max_bytes = max_bytes
        self._prefixes = mount.path_prefixes if mount else PathPrefixes()
        for scope in self._prefixes.__struct_fields__:
            try:
                _prefix(getattr(self._prefixes, scope), _EXAMPLES)
            except MountError as error:
                raise ConfigurationError(f"path_prefixes.{scope}: {error}") from None
        self._open = self._opener(mount, default_folder)

    def files(self, agent: Agent, task_id: str) -> Files | None:
        """None for an agent without a mount. Raises `MountError` for a task whose id cannot be part of a path."""
        if agent.mount == "none":
            return None
        values = {"namespace": agent.namespace, "agent": agent.name, "task": task_id}
        return self._open(_prefix(getattr(self._prefixes, agent.mount), values))

    def _opener(self, mount: Mount | None, default_folder: Path) -> Callable[[tuple[str, ...]], Files]:
        if mount is not None and mount.s3 is not None:
            return self._remote("s3", mount.s3.bucket, s3(mount.s3))
        if mount is not None and mount.gcs is not None:
            return self._remote("gcs", mount.gcs.bucket, gcs(mount.gcs))
        folder = Path(mount.local.path).expanduser() if mount and mount.local else default_folder
        # A later change of the working folder must not move the files.
        root = folder.absolute()
        return lambda prefix: LocalFiles(root, prefix, max_bytes=self._max_bytes)

    def _remote(self, backend: str, bucket: str, filesystem: object) -> Callable[[tuple[str, ...]], Files]:
        return lambda prefix: RemoteFiles(backend, bucket, prefix, filesystem, max_bytes=self._max_bytes)


def _prefix(template: str, values: dict[str, str]) -> tuple[str, ...]:
    """The names of a prefix. A value is one name or a part of one, whatever is in it."""
    found: list[str] = []
    for name in filter(None, template.split("/")):
        for token, value in values.items():
            # A name has no braces after `one_name`, so no value is taken for another token.
            name = name.replace(f"{{{token}}}", one_name(value))
        if problem := wrong(name):
            raise MountError(f"the prefix {template!r} {problem}")
        found.append(name)
    return tuple(found)

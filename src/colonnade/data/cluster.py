"""A party's own Dask cluster: where its local, mergeable statistics run if its table is larger than one machine.

The cluster is inside the party's walls, like its database. It sees the party's rows, and Dask's own protocol pickles,
so control of its scheduler or of a worker is control of the party. It never gets noise, shares, or the party's keys;
what it computes comes back to the party's process, which adds noise and decides what leaves. What is sent to a worker,
and what it answers, goes once, between it and this process. See `cluster.claim.md`.
"""

from __future__ import annotations

import importlib
import ipaddress
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import colonnade
from colonnade.data.sources import DerivedSource, Source
from colonnade.errors import ColonnadeError, SourceError, VersionMismatch

PATIENCE = 15
"""Seconds to wait for the scheduler."""
AHEAD = 2
"""Tasks in flight for each thread of the cluster: enough to keep it busy, and a bound on what waits."""


class _Connection:
    """What a party keeps of a cluster while a job runs: connecting takes some tenths of a second."""

    client: Any = None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The address of a Dask scheduler, and the files of a TLS connection to it, which is kept until `release`."""

    address: str
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    encryption: str = "tls"
    """ "none" must be written to let records travel to another host in the clear."""
    _connection: _Connection = field(default_factory=_Connection, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scheme, _, place = self.address.partition("://")
        files = (self.ca, self.certificate, self.key)
        if scheme not in ("tcp", "tls") or not place:
            raise SourceError(
                f'the address of a Dask scheduler is "tls://HOST:PORT" or "tcp://HOST:PORT", not {self.address!r}.'
            )
        if self.encryption not in ("tls", "none"):
            raise SourceError(f'dask_encryption is "tls" or "none", not {self.encryption!r}; correct it.')
        if scheme == "tls" and not all(files):
            raise SourceError(
                f"the Dask cluster at {self.address} needs dask_ca, dask_certificate and dask_key, the files of its "
                "TLS connection; add them to the source."
            )
        if scheme == "tcp" and any(files):
            raise SourceError(f"{self.address} has no TLS, but TLS files are given; write tls:// in dask.")
        if scheme == "tcp" and self.encryption != "none" and not _loopback(place):
            raise SourceError(
                f"the connection to {self.address} would carry records in the clear; use tls:// with dask_ca, "
                'dask_certificate and dask_key, or write dask_encryption = "none" if that network is yours alone.'
            )

    def _client(self) -> Any:
        """The connection, made unless there is one."""
        kept = self._connection.client
        if kept is None or kept.status != "running":
            self.release()
            self._connection.client = self._connected()
        return self._connection.client

    def _connected(self) -> Any:
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError:
            raise SourceError(
                f"the Dask cluster at {self.address} needs the package distributed; install it with "
                "`pip install colonnade[dask]`."
            ) from None
        security = None
        if self.ca is not None:
            security = distributed.Security(
                tls_ca_file=self.ca,
                tls_client_cert=self.certificate,
                tls_client_key=self.key,
                require_encryption=True,
            )
        try:
            # Arguments and results travel between this process and the workers, not through the scheduler.
            return distributed.Client(
                self.address, security=security, timeout=PATIENCE, set_as_default=False, direct_to_workers=True
            )
        except (OSError, TimeoutError, ValueError) as error:  # distributed raises these for a scheduler that is away
            raise SourceError(
                f"the Dask cluster at {self.address} cannot be reached ({type(error).__name__}); start its scheduler, "
                "check the certificates, or take dask out of the source."
            ) from None

    def release(self) -> None:
        """Close the connection, if there is one; the next task makes another."""
        client, self._connection.client = self._connection.client, None
        if client is not None:
            with suppress(OSError, TimeoutError):  # the scheduler is gone already
                client.close()

    def run(self, function: Callable[..., Any], tasks: Iterable[Sequence[Any]]) -> Iterator[Any]:
        """`function` of each task's arguments, on the workers, in order; few tasks are in flight at a time."""
        client = self._client()
        threads = sum(client.nthreads().values())
        if not threads:
            raise SourceError(f"the Dask cluster at {self.address} has no workers; start some.")
        self._check_versions(client)  # each time: workers come and go while a job runs
        waiting: deque[Any] = deque()
        for task in tasks:
            (arguments,) = client.scatter([tuple(task)], hash=False)
            waiting.append(client.submit(_applied, function, arguments, pure=False))
            if len(waiting) >= AHEAD * threads:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def _check_versions(self, client: Any) -> None:
        try:
            versions = set(client.run(_version).values())
        except Exception as error:  # a worker without this package cannot even read the request
            raise VersionMismatch(
                f"a worker of the Dask cluster at {self.address} cannot load Colonnade ({type(error).__name__}); "
                f"install version {colonnade.__version__} where the workers run."
            ) from None
        if versions != {colonnade.__version__}:
            raise VersionMismatch(
                f"the workers of the Dask cluster at {self.address} run Colonnade {', '.join(sorted(versions))}, this "
                f"party {colonnade.__version__}; install the same version."
            )

    def _result(self, future: Any) -> Any:
        try:
            return future.result()
        except ColonnadeError:
            raise
        except Exception as error:
            raise SourceError(
                f"a task on the Dask cluster at {self.address} failed ({type(error).__name__}); see its workers' logs."
            ) from error


def _applied(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def _version() -> str:
    return colonnade.__version__


def _loopback(place: str) -> bool:
    host = place.rpartition(":")[0].strip("[]") or place
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class OnCluster(DerivedSource):
    """A source whose statistics are computed on a cluster. Rows that are read here come from the source itself."""

    def __init__(self, source: Source, cluster: Cluster) -> None:
        super().__init__(source)
        self.cluster = cluster

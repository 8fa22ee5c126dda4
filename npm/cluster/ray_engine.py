"""Ray: connecting to a cluster of it, and the jobs of a build as its tasks.

The one border at which objects are pickled: inside a cluster Ray speaks cloudpickle, so whoever reaches its ports runs
code there. Its token authentication is therefore on unless the environment says otherwise.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from npm.cluster.settings import ClusterSettings
from npm.errors import SettingError

INSTALL = 'pip install "ray>=2.60"'


@contextmanager
def connect(settings: ClusterSettings) -> Iterator[None]:
    """Be connected to the Ray cluster at `settings.address`, or use the connection that this process has already.

    Raises SettingError if Ray is not installed, or there is no cluster that takes us.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    starts_one = settings.address == "local"
    if starts_one:  # a token of its own, which dies with it, rather than one that Ray would write into the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise SettingError(
            "Ray is not installed", expected="the extra cluster", got=f"no {error.name}", where="cluster", fix=INSTALL
        ) from error
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(
            settings.address,
            include_dashboard=False if starts_one else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(settings.address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, error: Exception) -> SettingError:
    """Why Ray does not let us in."""
    text = " ".join(str(error).split())
    return SettingError(
        f"no Ray cluster at cluster.address={address}",
        expected="a running cluster of this version of Ray and Python, whose token this machine has",
        got=text or type(error).__name__,
        where="cluster.address",
        fix="start one with `ray start --head`, or leave cluster.address= out to start one on this machine",
    )

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cluster.small_clusters import MEMORY


@pytest.fixture(autouse=True)
def sockets_of_ray() -> Iterator[None]:
    """Those that Ray leaves to be collected, collected here: in a later test each would be an error."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="package")
def machines() -> Iterator[Any]:
    """A Ray cluster of two machines of one core each, played by this one; this process is connected to it.

    No test imports Ray before: whether it asks for a token is settled then.
    """
    if find_spec("ray") is None:
        pytest.skip('needs Ray: pip install "ray>=2.60"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        patch.setenv("RAY_worker_niceness", "0")  # or they would wait for all else that runs here
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
        cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.shutdown()
            cluster.shutdown()
            gc.collect()

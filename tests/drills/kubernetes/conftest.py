"""The fixtures of the tests of the Kubernetes backend."""

from tests.integration.kubernetes.conftest import cluster, cluster_home

__all__ = ["cluster", "cluster_home"]

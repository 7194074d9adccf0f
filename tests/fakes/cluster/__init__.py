"""A fake Kubernetes cluster: a faithful API server, and nodes that run each pod as a local sandbox.

See ``README.md`` here for what is faithful and what is not.
"""

from tests.fakes.cluster.cluster import FakeCluster
from tests.fakes.cluster.faults import Fault, FaultKind
from tests.fakes.cluster.nodes.machines import NodeSpec
from tests.fakes.cluster.process import ClusterProcess

__all__ = ["ClusterProcess", "FakeCluster", "Fault", "FaultKind", "NodeSpec"]

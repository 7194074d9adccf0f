"""What happened: requests by verb, resource and code; pods created, live, at most live at once."""

from __future__ import annotations

from collections import Counter

from tests.fakes.cluster.api.store import Change

WRITES = frozenset(("create", "patch", "delete", "deletecollection"))


class Counters:
    """Counts since the start or the last ``reset``."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By verb and resource (``create``, ``pods``; ``create``, ``pods/exec``), whatever came of them."""
        self.codes: Counter[int] = Counter()
        """By HTTP code; 0 for no answer (hang, reset)."""
        self.pods_created = 0
        self.pods_peak = 0
        """The most pods that were live at once."""
        self._live: set[str] = set()

    @property
    def pods_live(self) -> int:
        """Pods that exist and have not ended, waiting ones included, those of DaemonSets not."""
        return len(self._live)

    def pod_changed(self, change: Change) -> None:
        """Take note of a pod's life."""
        pod = change.new.obj
        if any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ()):
            return
        if change.old is None:
            self.pods_created += 1
        if change.type == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._live.discard(change.new.uid)
        else:
            self._live.add(change.new.uid)
            self.pods_peak = max(self.pods_peak, len(self._live))

    @property
    def writes(self) -> int:
        """Requests that could change something; reviews and connections are none."""
        return sum(
            count
            for (verb, resource), count in self.requests.items()
            if verb in WRITES and not resource.endswith(("reviews", "/exec"))
        )

    @property
    def reads(self) -> int:
        """get, list and watch requests."""
        return sum(count for (verb, _), count in self.requests.items() if verb in ("get", "list", "watch"))

    def reset(self) -> None:
        """Forget the counts; what is live stays live."""
        self.requests.clear()
        self.codes.clear()
        self.pods_created = 0
        self.pods_peak = len(self._live)

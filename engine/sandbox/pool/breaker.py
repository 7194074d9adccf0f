"""Circuit breakers for sandbox creation: pure rules over times passed in by the caller.

``Breaker`` covers the whole backend, ``ImageHealth`` each image separately. Neither ever removes a sandbox.
After a pause one start is tried, and only its success permits others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OVERSHOOT = 1.5
"""Ratio of existing to wanted sandboxes above which creation pauses."""


@dataclass(slots=True, kw_only=True)
class Breaker:
    """Breaker that pauses creation after consecutive failed starts or when too many sandboxes exist."""

    failures: int = 8
    """Consecutive failed starts that pause the pool."""
    first_pause_s: float = 15.0
    longest_pause_s: float = 300.0
    """Upper limit of a pause; each pause doubles the one before."""
    slack: int = 8
    """Surplus sandboxes that are always tolerated."""
    patience_s: float = 15.0
    """Seconds for which a surplus is tolerated: sandboxes take a while to end after an iteration."""
    reason: str = ""
    """Reason for the current pause; empty while creation is not paused."""
    _in_a_row: int = field(init=False, default=0)
    _pause_s: float = field(init=False, default=0.0)
    _until: float = field(init=False, default=0.0)
    _too_many_since: float | None = field(init=False, default=None)

    def room(self, *, now: float, starting: int) -> int | None:
        """Return the number of sandboxes that may be created now; None for no limit.

        Args:
            now: monotonic seconds.
            starting: sandboxes that are being created.
        """
        if not self.reason:
            return None
        return 0 if now < self._until else max(0, 1 - starting)

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next attempt; 0 when creation is not paused."""
        return max(0.0, self._until - now) if self.reason else 0.0

    def started(self) -> None:
        """Record a successful start, which ends a pause."""
        self._in_a_row = 0
        self.reason, self._pause_s = "", 0.0

    def failed(self, why: str, *, now: float) -> bool:
        """Record a failed start that its image did not cause; return whether a pause begins."""
        self._in_a_row += 1
        if self.reason and now >= self._until:
            return self._pause(why, now)
        if self.reason or self._in_a_row < self.failures:
            return False
        return self._pause(f"{self._in_a_row} starts in a row failed; the last one: {why}", now)

    def counted(self, *, existing: int, wanted: int, now: float) -> bool:
        """Record the backend's own count; return whether a pause begins."""
        if existing <= max(OVERSHOOT * wanted, wanted + self.slack):
            self._too_many_since = None
            return False
        if self._too_many_since is None:
            self._too_many_since = now
        if self.reason or now - self._too_many_since < self.patience_s:
            return False
        return self._pause(f"{existing} sandboxes exist, but only {wanted} are wanted", now)

    @property
    def too_many(self) -> bool:
        """Return whether the last count found too many sandboxes."""
        return self._too_many_since is not None

    def _pause(self, why: str, now: float) -> bool:
        begins = not self.reason
        self._pause_s = min(self.longest_pause_s, 2 * self._pause_s or self.first_pause_s)
        self._until = now + self._pause_s
        self.reason = why
        return begins


@dataclass(slots=True)
class _Image:
    failures: int = 0
    reason: str = ""
    refused_until: float = 0.0


@dataclass(slots=True, kw_only=True)
class ImageHealth:
    """Record of images whose starts fail; a bad image is refused after a few starts."""

    failures: int = 3
    """Consecutive failures after which an image is refused."""
    refuse_s: float = 300.0
    """Seconds of a refusal; then one more start is tried."""
    _images: dict[str, _Image] = field(init=False, default_factory=dict)

    def refusal(self, image: str, *, now: float) -> str:
        """Return the reason for refusing an image; empty when it may start."""
        known = self._images.get(image)
        if known is None or now >= known.refused_until:
            return ""
        return f"image '{image}' failed {known.failures} times in a row; the last time: {known.reason}"

    def failed(self, image: str, reason: str, *, now: float) -> bool:
        """Record a failed start caused by the image; return whether it is refused from now on."""
        known = self._images.setdefault(image, _Image())
        known.failures += 1
        known.reason = reason
        if known.failures < self.failures:
            return False
        known.refused_until = now + self.refuse_s
        return True

    def started(self, image: str) -> None:
        """Record a successful start of the image."""
        self._images.pop(image, None)

    def troubled(self, *, now: float) -> list[dict[str, object]]:
        """Return the fields of ``ImageTrouble`` of every image whose last start failed, worst first."""
        failing = sorted(self._images.items(), key=lambda item: (-item[1].failures, item[0]))
        return [
            {
                "image": image,
                "failures": known.failures,
                "reason": known.reason,
                "refused": now < known.refused_until,
            }
            for image, known in failing
        ]

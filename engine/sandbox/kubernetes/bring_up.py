"""Start-up of a pod, from creation to two connected agents, with a separate timeout for each stage.

An autoscaler may need minutes and a registry more, while an agent that does not answer within seconds never
will.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import stamina

from engine.config.kubernetes import KubernetesConfig
from engine.errors import ImageError, SandboxStartError, SandboxStartTimeoutError
from engine.sandbox.client import AgentClient
from engine.sandbox.kubernetes import diagnosis
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.connect import Stream
from engine.sandbox.kubernetes.informer import PodInformer
from engine.sandbox.kubernetes.manifests.spec import BASE_FILES, SANDBOX
from engine.sandbox.kubernetes.pod import Pod
from engine.sandbox.responses import Greeting

Json = dict[str, Any]
Dial = Callable[[str], Awaitable[Stream]]
_STAGES = {"schedule": "for a node", "pull": "for its image", "start": "for its containers"}


async def wait_until_running(config: KubernetesConfig, informer: PodInformer, name: str) -> Json:
    """Return the pod once its sandbox container runs.

    Raises:
        ImageError: the image cannot be pulled.
        SandboxStartTimeoutError: a stage took too long; the message names it and the cluster's reason.
        SandboxError: the pod failed.
    """
    limits = {
        "schedule": config.schedule_timeout_s,
        "pull": config.pull_timeout_s,
        "start": config.start_timeout_s,
    }
    began: dict[str, float] = {}
    stage = "schedule"
    while True:
        deadline = began.setdefault(stage, time.monotonic()) + limits[stage]
        try:
            observed = await informer.wait(
                name, partial(_progress, stage), timeout_s=deadline - time.monotonic()
            )
        except TimeoutError:
            raise _too_long(informer.pods.get(name), name, stage, limits[stage]) from None
        if diagnosis.running(observed):
            return observed
        stage = diagnosis.waiting(observed).stage


def _progress(stage: str, observed: Json | None) -> Json | None:
    """Return the pod once it runs or has left ``stage``. Raises SandboxError when it failed."""
    if error := diagnosis.failure(observed):
        raise error
    assert observed is not None
    return observed if diagnosis.running(observed) or diagnosis.waiting(observed).stage != stage else None


def _too_long(observed: Json | None, name: str, stage: str, limit: float) -> SandboxStartError:
    reason = diagnosis.waiting(observed).reason if observed is not None else ""
    message = f"pod {name} waited {limit:g} s {_STAGES[stage]}" + (f": {reason}" if reason else "")
    return ImageError(message) if stage == "pull" and reason else SandboxStartTimeoutError(message)


async def connect(config: KubernetesConfig, pod: Pod, dial: Dial) -> None:
    """Connect to both agents of a running pod and receive their greetings.

    Args:
        dial: opens the stream to the agent of a container.

    Raises:
        SandboxStartTimeoutError: an agent did not answer in time.
        SandboxError: the pod failed meanwhile.
    """
    give_up = time.monotonic() + config.start_timeout_s
    (agent, greeting), (pristine, _) = await asyncio.gather(
        _reach(pod, SANDBOX, dial, give_up), _reach(pod, BASE_FILES, dial, give_up)
    )
    pod.agent, pod.pristine = agent, pristine
    pod.env, pod.api = greeting.env, greeting.api


async def _reach(pod: Pod, container: str, dial: Dial, give_up: float) -> tuple[AgentClient, Greeting]:
    """Dial until the agent answers: it may not listen yet, or the kubelet may not know its container yet."""
    try:
        async for attempt in stamina.retry_context(
            on=_not_yet,
            attempts=None,
            timeout=max(0.1, give_up - time.monotonic()),
            wait_initial=0.02,
            wait_max=1.0,
            wait_jitter=0.02,
        ):
            with attempt:
                pod.check()
                client = pod.connect(await dial(container))
                return client, await client.hello(max(0.1, give_up - time.monotonic()))
    except (OSError, ApiError) as error:
        if not _not_yet(error):
            await pod.wait_for_verdict()
            raise SandboxStartError(
                f"the agent in container {container} of pod {pod.name} cannot be started: {error}"
            ) from error
        raise SandboxStartTimeoutError(
            f"the agent in container {container} of pod {pod.name} does not answer: {error}. Is there a "
            "route to pods from here? Outside of the cluster set sandbox.kubernetes.connect=exec"
        ) from error
    raise AssertionError


def _not_yet(error: Exception) -> bool:
    if isinstance(error, ApiError):
        return error.passing or error.status == 404
    return isinstance(error, OSError)

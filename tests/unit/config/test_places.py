"""Places that configurations may reach: every text is classified, and only allowed values are accepted."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from engine.config.access.downloads import HubLimits
from engine.config.access.places import Allowed, Harmless, Place
from engine.config.recipes import RECIPES, resolve
from engine.config.run import (
    RUN_CLASSES,
    AnyRun,
    check_places,
    parse_run_config,
    with_overrides,
    with_registries,
)
from engine.errors import CheckpointError, ConfigError
from engine.models.loader import open_model
from engine.run import CONFIG_NAME, LAUNCH_NAME, Launch, run_attempt


def parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all its parts, including metadata."""
    yield annotation
    for part in (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ())):
        yield from parts(part)


def unclassified(
    model: type[BaseModel], prefix: str = "", seen: frozenset[type] = frozenset()
) -> Iterator[str]:
    """Yield the fields that accept text and are declared neither as a place nor as harmless."""
    for name, field in model.model_fields.items():
        components = [*parts(field.annotation), *field.metadata]
        if any(isinstance(part, Place | Harmless) for part in components):
            continue
        # Choices (Literal, enumerations) contain no free text.
        inner = [part for part in parts(field.annotation) if isinstance(part, type)]
        literal = typing.get_origin(field.annotation) is typing.Literal
        if not literal and any(part in (str, Path, bytes, dict, object) for part in inner):
            yield f"{prefix}{name}"
        for part in inner:
            if issubclass(part, BaseModel) and part not in seen:
                yield from unclassified(part, f"{prefix}{name}.", seen | {part})


def test_every_text_setting_declares_its_kind_of_place() -> None:
    fields = {f"{kind.__name__}.{name}" for kind in RUN_CLASSES for name in unclassified(kind)}
    problem = "annotate these (engine.config.access.places): Text reaches nothing, else LocalPath, …"
    assert fields == set(), problem


def test_unclassified_yields_nested_text_settings() -> None:
    class Inner(BaseModel):
        address: str = ""
        hosts: tuple[str, ...] = ()
        mirrors: Mapping[str, str] = {}
        path: Path | None = None
        number: int = 0
        mode: typing.Literal["a", "b"] = "a"

    class Outer(BaseModel):
        inner: Inner | None = None

    assert set(unclassified(Outer)) == {"inner.address", "inner.hosts", "inner.mirrors", "inner.path"}


@pytest.fixture
def allowed(tmp_path: Path) -> Allowed:
    for name in ("imports/tree", "policies/mine", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "imports/rows.jsonl").write_text("")
    (tmp_path / "imports/out").symlink_to(tmp_path / "elsewhere")
    return Allowed(
        imports=(tmp_path / "imports",),
        policies=(tmp_path / "policies",),
        hub_models=("Qwen/Qwen3-*", "openai/gpt-oss-20b+token"),
        hub_datasets=("acme/set", "R2E-Gym/*+token"),
        image_registries=("registry.example.org",),
        repository_hosts=("git.example.org", "git.example.net:8443"),
        granted={
            "sandbox.docker.host": ("tcp://docker.example.org:2376",),
            "sandbox.kubernetes.node_selector": ({"pool": "sandboxes"},),
            "sandbox.kubernetes.host_users": (False,),
        },
    )


def configuration(recipe: str, **changes: Any) -> AnyRun:
    data = resolve(recipe).model_dump(mode="json")
    return parse_run_config(
        with_overrides(data, {key.replace("__", "."): value for key, value in changes.items()})
    )


REPLAY = {"type": "replay"}
REFUSED = [
    ("quickstart-dataset", "curation.sources", ["/etc"]),
    ("quickstart-dataset", "curation.sources", ["pip:toolz==1.0.0", "../elsewhere"]),
    ("quickstart-dataset", "curation.sources", ["out"]),
    ("quickstart-dataset", "curation.sources", ["https://evil.example.org/a"]),
    ("quickstart-dataset", "curation.sources", ["https://git.example.org:8443/a"]),
    ("quickstart-dataset", "curation.sources", ["https://git.example.net/a"]),
    ("quickstart", "policy.checkpoint", "/etc"),
    ("quickstart", "policy.checkpoint", "mine/../../elsewhere"),
    ("quickstart", "policy.checkpoint", "run:../../etc"),
    ("quickstart", "policy.checkpoint", "builtin:../quickstart"),
    ("quickstart", "policy.checkpoint", "evil:name"),
    ("quickstart", "policy.checkpoint", "fresh:/etc"),
    ("quickstart", "policy.checkpoint", "fresh:mine/../../elsewhere"),
    ("quickstart", "policy.checkpoint", "openai/gpt-oss-120b"),
    ("quickstart", "policy.checkpoint", "evil/Qwen3-8B"),
    ("quickstart", "policy.checkpoint", "Qwen/Qwen3-8B/../../etc"),
    ("quickstart", "policy.checkpoint", "Qwen/Qwen3-8B@refs/pr/1"),
    ("quickstart", "policy.checkpoint", "Qwen/Qwen3-8B@main/../../etc"),
    ("quickstart", "trainer.reference", "/etc"),
    ("quickstart-sft", "sft.start", "/etc"),
    ("quickstart-oracle", "policy", {**REPLAY, "source": "/etc/passwd"}),
    ("import-dataset", "importing.source", "/etc/passwd"),
    ("import-dataset", "importing.decontamination.reference", "/etc/passwd"),
    ("import-dataset", "importing.image_prefix", "evil.example.org/"),
    ("import-dataset", "importing.source", "hf:evil/set"),
    ("import-dataset", "importing.source", "hf:acme/../evil/set"),
    ("import-dataset", "importing.revision", "refs/pr/1"),
    ("quickstart", "sandbox.registries", ["registry.example.org", "evil.example.org"]),
    ("quickstart", "sandbox.registries", ["*", "registry.example.org:5000"]),
    ("quickstart", "sandbox.docker.host", "tcp://evil.example.org:2375"),
    ("quickstart", "sandbox.docker.registry_config", "/root/.docker/config.json"),
    ("quickstart", "sandbox.docker.network", "host"),
    ("quickstart", "sandbox.docker.runtime", "runc"),
    ("quickstart", "sandbox.kubernetes.kubeconfig", "/root/.kube/config"),
    ("quickstart", "sandbox.kubernetes.context", "production"),
    ("quickstart", "sandbox.kubernetes.namespace", "kube-system"),
    ("quickstart", "sandbox.kubernetes.agent_image", "evil.example.org/agent"),
    ("quickstart", "sandbox.kubernetes.mirrors", {"docker.io/": "evil.example.org/"}),
    ("quickstart", "sandbox.kubernetes.seccomp", "Unconfined"),
    ("quickstart", "sandbox.kubernetes.added_capabilities", ["SYS_ADMIN"]),
    ("quickstart", "sandbox.kubernetes.require_network_policy", False),
    ("quickstart", "sandbox.kubernetes.host_users", True),
    ("quickstart", "sandbox.kubernetes.tolerations", [{"operator": "Exists"}]),
    ("quickstart", "sandbox.kubernetes.node_selector", {"pool": "system"}),
    ("quickstart", "sandbox.memory_mb", 10**12),
    ("quickstart", "sandbox.docker.max_pull_gb", 50.5),
    ("quickstart", "downloads.max_gb", 201),
    ("quickstart", "sandbox.processes", 10**6),
    ("quickstart", "sandbox.disk_mb", 10**9),
    ("quickstart", "sandbox.max_live", 10**6),
    ("quickstart", "sandbox.docker.build_disk_mb", 10**9),
]


def test_disallowed_values_are_refused_under_their_setting(allowed: Allowed) -> None:
    for recipe, setting, value in REFUSED:
        with pytest.raises(ConfigError) as raised:
            check_places(configuration(recipe, **{setting: value}), allowed)
        (problem,) = raised.value.problems
        assert problem.setting == ("policy.source" if setting == "policy" else setting), value
        assert "administrator" in problem.message or "expected" in problem.message


def test_recipes_need_no_permissions_except_for_published_models_sets_and_repositories() -> None:
    listed = Allowed(hub_models=("Qwen/*",), hub_datasets=("R2E-Gym/*",), repository_hosts=("github.com",))
    for recipe in RECIPES:
        config = resolve(recipe)
        assert check_places(config, listed) == config, recipe


def test_allowed_values_are_resolved_for_the_engine(allowed: Allowed, tmp_path: Path) -> None:
    sources = [
        "pip:toolz==1.0.0",
        "tree",
        "https://git.example.org/a/b.git",
        "https://git.example.net:8443/a",
    ]
    curated = check_places(configuration("quickstart-dataset", **{"curation.sources": sources}), allowed)
    assert curated.model_dump()["curation"]["sources"] == (
        sources[0],
        str(tmp_path / "imports/tree"),
        *sources[2:],
    )
    changes = {
        "policy.checkpoint": "mine",
        "trainer.reference": "run:12",
        "sandbox.docker.host": "tcp://docker.example.org:2376",
        "sandbox.kubernetes.node_selector": {"pool": "sandboxes"},
        "sandbox.kubernetes.host_users": False,
    }
    trained = check_places(configuration("quickstart", **changes), allowed).model_dump()
    assert trained["policy"]["checkpoint"] == str(tmp_path / "policies/mine")
    assert trained["sandbox"]["docker"]["host"] == "tcp://docker.example.org:2376"
    again = check_places(parse_run_config(trained), allowed)
    assert again.model_dump() == trained


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("openai/gpt-oss-20b@release/1.0", "openai/gpt-oss-20b@release/1.0"),
        ("fresh:tiny", "fresh:tiny"),
        ("fresh:./mine", "fresh:{policies}/mine"),
    ],
)
def test_hub_models_and_random_models_are_allowed(
    allowed: Allowed, tmp_path: Path, checkpoint: str, expected: str
) -> None:
    config = check_places(configuration("quickstart", **{"policy.checkpoint": checkpoint}), allowed)
    expected = expected.format(policies=tmp_path / "policies")
    assert config.model_dump()["policy"]["checkpoint"] == expected
    assert check_places(config, allowed) == config


def test_datasets_of_the_hub_and_registries_are_allowed(allowed: Allowed) -> None:
    for changes in (
        {"importing.source": "hf:R2E-Gym/R2E-Gym-Subset", "importing.revision": "refs/convert/parquet"},
        {"importing.source": "hf:acme/set", "importing.revision": "v1"},
    ):
        config = configuration("import-dataset", **changes)
        assert check_places(config, allowed) == config
    for written, expected in ((["*"], ("registry.example.org",)), ([], ())):
        config = check_places(configuration("quickstart", **{"sandbox.registries": written}), allowed)
        assert with_registries(config, allowed).model_dump()["sandbox"]["registries"] == expected
    anywhere = Allowed(image_registries=("*",))
    config = check_places(configuration("quickstart", **{"sandbox.registries": ["ghcr.io"]}), anywhere)
    assert with_registries(config, anywhere) == config
    assert "*" in with_registries(configuration("quickstart"), anywhere).model_dump()["sandbox"]["registries"]


def test_check_places_lists_every_problem(allowed: Allowed) -> None:
    changes = {"policy.checkpoint": "/etc", "sandbox.docker.host": "tcp://evil.example.org:2375"}
    with pytest.raises(ConfigError) as raised:
        check_places(configuration("quickstart", **changes), allowed)
    assert {problem.setting for problem in raised.value.problems} == set(changes)


def test_list_items_are_granted_individually_or_as_a_list() -> None:
    def vllm(**settings: Any) -> AnyRun:
        return configuration("quickstart", **{"policy.engine": "vllm", "policy.vllm": settings})

    first, second, third = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))
    granted = {
        "policy.vllm.addresses": (first, [second, third]),
        "policy.vllm.python": ("/opt/vllm/bin/python",),
    }
    allowed = Allowed.model_validate_json(Allowed(granted=granted).model_dump_json())
    for addresses in ([], [first], [second, third]):
        check_places(vllm(addresses=addresses), allowed)
    check_places(vllm(python="/opt/vllm/bin/python"), allowed)
    refused: dict[str, Any]
    for refused in ({"addresses": [first, second]}, {"addresses": [second]}, {"python": "/bin/sh"}):
        with pytest.raises(ConfigError, match="not granted"):
            check_places(vllm(**refused), allowed)


def test_amounts_are_limited_by_the_administrator() -> None:
    run = configuration("quickstart", sandbox__memory_mb=100_000)
    assert check_places(run, Allowed(limits={"sandbox.memory_mb": 100_000})) == run
    with pytest.raises(ConfigError, match=r"100000 is more than 4096, .* TRAINYARD_LIMITS"):
        check_places(run, Allowed(limits={"sandbox.memory_mb": 4_096}))
    lowered = check_places(
        configuration("quickstart"), Allowed(limits={"disk_gb": 20, "downloads.max_gb": 5})
    )
    assert (lowered.disk_gb, lowered.downloads.max_gb) == (20, 5)


def test_only_granted_or_attachable_servers_can_be_attached() -> None:
    def attached(*servers: str) -> AnyRun:
        vllm = {"addresses": servers}
        return configuration("quickstart", **{"policy.engine": "vllm", "policy.vllm": vllm})

    granted = {"policy.vllm.addresses": ("http://10.0.0.1:8000",)}
    allowed = Allowed(endpoints=("lab", "api"), attachable=("lab",), granted=granted)
    for servers in (["lab"], ["lab", "http://10.0.0.1:8000"]):
        config = attached(*servers)
        assert check_places(config, allowed) == config
    for servers in (["api"], ["lab", "http://10.0.0.2:8000"]):
        with pytest.raises(ConfigError, match=r"not granted.*an endpoint that runs may attach to \(lab\)"):
            check_places(attached(*servers), allowed)


@pytest.mark.parametrize("limited", [True, False])
def test_process_started_by_the_server_checks_places_again(tmp_path: Path, limited: bool) -> None:
    changes = {"policy": {**REPLAY, "source": str(tmp_path / "missing.jsonl")}}
    config = configuration("quickstart-oracle", **changes)
    (tmp_path / CONFIG_NAME).write_text(config.model_dump_json())
    launch = Launch(
        run_id="1", epoch=1, ingest_url=None, token="", home=tmp_path, allowed=Allowed() if limited else None
    )
    (tmp_path / LAUNCH_NAME).write_text(launch.model_dump_json())
    assert run_attempt(tmp_path, Launch.load(tmp_path)) == 1
    reason = json.loads((tmp_path / "failure.json").read_text())["reason"]
    assert ("policy.source" in reason and "is not below an import folder" in reason) is limited


@pytest.mark.parametrize("limited", [True, False])
def test_process_started_by_the_server_limits_its_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    monkeypatch.setenv("TRAINYARD_HUB_LIMITS", "{}")
    changes = {
        "downloads.max_gb": 3, "dataset.name": "missing", "environment": {"type": "swe"},
        "policy": {**REPLAY, "source": ""},
    }  # fmt: skip
    config = configuration("quickstart-oracle", **changes)
    (tmp_path / CONFIG_NAME).write_text(config.model_dump_json())
    listed = Allowed(imports=(tmp_path,), hub_models=("a/*", "b/c+token"), hub_datasets=("d/*+token",))
    launch = Launch(
        run_id="1", epoch=1, ingest_url=None, token="", home=tmp_path, allowed=listed if limited else None
    )
    (tmp_path / LAUNCH_NAME).write_text(launch.model_dump_json())
    assert run_attempt(tmp_path, Launch.load(tmp_path)) == 1
    tokens = {"token_models": ("b/c",), "token_datasets": ("d/*",)} if limited else {}
    assert HubLimits.current() == HubLimits(max_gb=3, **tokens)


def test_checkpoint_schemes_refuse_folders(tmp_path: Path) -> None:
    for reference in ("builtin:../builtin/quickstart", "run:../1", "run:..", "builtin:/etc"):
        with pytest.raises(CheckpointError, match="expected .*:NAME without folders"):
            open_model(reference, home=tmp_path)

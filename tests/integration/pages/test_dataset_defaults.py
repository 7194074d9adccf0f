"""Defaults of sandboxes and gradings that follow the dataset, in new runs and in the form."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.builders.web.web_builders import make_user
from webapp.core.permissions import Role
from webapp.models import Dataset, Run, Task
from webapp.runs.services import runs
from webapp.runs.services.drafts import Origin, draft

pytestmark = pytest.mark.django_db


def make_dataset(name: str, image: str) -> None:
    dataset = Dataset.objects.create(name=name)
    Task.objects.create(dataset=dataset, key=name, instance_id=name, split="train", image=image)


@pytest.fixture
def published() -> None:
    make_dataset("published", "namanjain12/aiohttp_final:1")
    make_dataset("toys", "local:toys")


@pytest.mark.usefixtures("published")
def test_published_datasets_get_larger_sandboxes_and_more_parallel_gradings() -> None:
    run = runs.create(recipe="quickstart", overrides={"dataset.name": "published"})
    sandbox = run.config["sandbox"]
    assert (sandbox["backend"], sandbox["memory_mb"], sandbox["processes"]) == ("docker", 4096, 256)
    assert run.config["grading"]["max_parallel"] == sandbox["max_live"] == 64
    toys = runs.create(recipe="quickstart", overrides={"dataset.name": "toys"})
    assert (toys.config["sandbox"]["memory_mb"], toys.config["grading"]["max_parallel"]) == (256, 2)


@pytest.mark.usefixtures("published")
def test_explicit_settings_override_dataset_defaults() -> None:
    chosen = {"dataset.name": "published", "sandbox.memory_mb": 1024, "grading.max_parallel": 2}
    config = draft(recipe="quickstart", overrides=chosen).resolved().model_dump()
    assert (config["sandbox"]["memory_mb"], config["grading"]["max_parallel"]) == (1024, 2)
    assert config["sandbox"]["disk_mb"] == 4096


@pytest.mark.usefixtures("published")
def test_form_shows_dataset_defaults_and_keeps_values_changed_back() -> None:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    page = client.get("/runs/new/?recipe=quickstart&dataset.name=published").context
    fields = {field.key: field for section in page["sections"] for field in section.fields}
    memory = fields["sandbox.memory_mb"]
    assert (memory.value, memory.original, memory.origin) == ("4096", "256", Origin.FOLLOWS)
    assert fields["grading.max_parallel"].changed
    posted = {field.key: field.value for field in fields.values()}
    posted |= {
        "recipe": "quickstart",
        "rendered": page["rendered"],
        "sandbox.memory_mb": "256",
        "then": "draft",
    }
    assert client.post("/runs/new/", posted).status_code == 302
    config = Run.objects.get().config
    assert (config["sandbox"]["memory_mb"], config["sandbox"]["processes"]) == (256, 256)

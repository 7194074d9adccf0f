"""Launch of an experiment's arms and seeds by page, API and command."""

from __future__ import annotations

import json
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.config.base import parse_settings
from engine.errors import ConfigError
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.web_builders import make_user, signed_in
from webapp.core.permissions import Role
from webapp.experiments.designs import make_design, parse_seeds, seeds_text, setting_line
from webapp.models import AuditEntry, Experiment, Run
from webapp.runs.services import edits, runs

pytestmark = pytest.mark.django_db
ARMS = [
    {"name": "loo", "settings": {}},
    {"name": "std", "settings": {"algorithm.preset": "grpo", "trainer.iterations": 3}},
]
DESIGN: dict[str, Any] = {"recipe": "frozenlake", "arms": ARMS, "seeds": [0, 1]}


@pytest.fixture
def operator() -> Client:
    return signed_in(Role.OPERATOR)


def launch(client: Client, experiment: Experiment, design: dict[str, Any] | None) -> Any:
    body = {"design": design}
    return client.post(f"/api/v1/experiments/{experiment.pk}/launch", body, "application/json")


def test_launch_queues_a_run_for_each_arm_and_seed_and_is_idempotent(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation")
    answer = launch(operator, experiment, DESIGN).json()
    assert [(run["arm"], run["state"]) for run in answer["created"]] == [
        ("loo", "queued"), ("loo", "queued"), ("std", "queued"), ("std", "queued"),
    ]  # fmt: skip
    made = list(Run.objects.order_by("pk"))
    assert [run.config["seed"] for run in made] == [0, 1, 0, 1]
    assert made[3].name == "std · seed 1 · ablation"
    assert made[3].config["trainer"]["iterations"] == 3
    assert made[0].config["algorithm"]["preset"] != made[3].config["algorithm"]["preset"]
    assert {run.created_by and run.created_by.username for run in made} == {"user-operator"}
    assert launch(operator, experiment, DESIGN).json() == {"created": [], "continued": []}
    runs.stop(run=made[0])
    edits.archive(run=made[0])
    runs.stop(run=made[1])
    answer = launch(operator, experiment, None).json()
    assert [(run["arm"], run["name"]) for run in answer["created"]] == [("loo", "loo · seed 0 · ablation")]
    assert [run["id"] for run in answer["continued"]] == [made[1].pk]
    cells = operator.get(f"/api/v1/experiments/{experiment.pk}").json()["cells"]
    assert [cell["state"] for cell in cells] == ["queued"] * 4
    entry = AuditEntry.objects.filter(action="experiment.launch").latest("id")
    assert entry.changes["continued"] == [made[1].pk]


def test_another_design_adds_arms_and_seeds(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation")
    launch(operator, experiment, DESIGN)
    more = {**DESIGN, "arms": [{"name": "slow", "settings": {"seed_": 1}}], "seeds": [2]}
    assert "arms.slow.seed_: unknown setting" in launch(operator, experiment, more).json()["detail"]
    more["arms"] = [{"name": "slow", "settings": {"trainer.iterations": 9}}]
    created = launch(operator, experiment, more).json()["created"]
    assert [run["name"].rpartition(" · ")[0] for run in created] == [
        "loo · seed 2", "std · seed 2", "slow · seed 0", "slow · seed 1", "slow · seed 2",
    ]  # fmt: skip
    changed = {**DESIGN, "arms": [{"name": "loo", "settings": {"trainer.iterations": 4}}]}
    assert "runs with other settings" in launch(operator, experiment, changed).json()["detail"]
    assert (
        "start from frozenlake"
        in launch(operator, experiment, {**DESIGN, "recipe": "quickstart"}).json()["detail"]
    )


def test_invalid_settings_of_an_arm_create_nothing(operator: Client) -> None:
    form = {
        "name": "x", "recipe": "frozenlake", "seeds": "2", "then": "launch",
        "arm-0-name": "good", "arm-0-settings": "",
        "arm-1-name": "bad", "arm-1-settings": "trainer.iterations=-1\nno.such=1",
        "arm-2-name": "odd <b>", "arm-2-settings": "lr",
    }  # fmt: skip
    page = operator.post("/experiments/new/", form)
    assert page.status_code == 422
    assert "arms.odd <b>: 'lr' is no KEY=VALUE" in unescape(page.content.decode())
    assert "odd <b>" not in page.content.decode()
    page = operator.post("/experiments/new/", form | {"arm-2-settings": ""})
    assert [problem.setting for problem in page.context["refused"]] == [
        "arms.bad.trainer.iterations", "arms.bad.no",
    ]  # fmt: skip
    assert page.context["arms"][1] == ("bad", "trainer.iterations=-1\nno.such=1")
    assert not Run.objects.exists()
    assert not Experiment.objects.exists()


def test_page_checks_then_launches_then_continues(operator: Client) -> None:
    form = {
        "name": "x", "goal": "find out", "recipe": "frozenlake", "seeds": "2", "then": "check",
        "arm-0-name": "loo", "arm-1-name": "std", "arm-1-settings": "algorithm.preset=grpo",
    }  # fmt: skip
    page = operator.post("/experiments/new/", form).content.decode()
    assert "4 created, 0 continued. Nothing was created yet" in page
    assert not Experiment.objects.exists()
    added = operator.post("/experiments/new/", form | {"then": "add"})
    assert added.context["arms"][-1] == ("", "")
    done = operator.post("/experiments/new/", form | {"then": "launch"})
    experiment = Experiment.objects.get()
    address = f"/experiments/{experiment.pk}/"
    assert (done["Location"], experiment.goal) == (address, "find out")
    shown = operator.get(address)
    assert "algorithm.preset=grpo" in shown.content.decode()
    assert [control.action for control in shown.context["controls"]] == ["stop"]
    assert "Stop 4 runs of this experiment? Drafts stay." in shown.content.decode()
    again = operator.get(f"{address}launch/").context
    assert (again["values"]["seeds"], again["arms"][1]) == ("2", ("std", "algorithm.preset=grpo"))
    operator.post(f"{address}stop/")
    assert set(Run.objects.values_list("state", flat=True)) == {"stopped"}
    assert "Queue 4 runs: 4 continued that failed or were stopped?" in operator.get(address).content.decode()
    operator.post(f"{address}launch/", {"then": "continue"})
    assert set(Run.objects.values_list("state", flat=True)) == {"queued"}
    operator.post(f"{address}archive/")
    assert not Run.objects.exclude(archived_at=None).exists(), "queued runs are not archived"
    operator.post(f"{address}stop/")
    operator.post(f"{address}archive/")
    assert not Run.objects.filter(archived_at=None).exists()


def test_operators_change_their_own_runs_of_an_experiment_only(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation")
    launch(operator, experiment, DESIGN)
    other = Client()
    other.force_login(make_user("eve", Role.OPERATOR))
    for address in (f"/experiments/{experiment.pk}/stop/", f"/api/v1/experiments/{experiment.pk}/stop"):
        assert other.post(address).status_code == 403
    page = other.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "Stop all: Run" in page
    assert 'disabled aria-describedby="refusal-stop"' in page
    runs.stop(run=Run.objects.earliest("pk"))
    assert launch(other, experiment, None).status_code == 403
    dropped = Run.objects.earliest("pk")
    Run.objects.filter(pk=dropped.pk).update(arm="dropped")
    assert launch(other, experiment, None).status_code == 200, "no launch touches the run of no arm"
    Run.objects.filter(pk=dropped.pk).update(arm="loo")
    assert launch(signed_in(Role.ADMIN), experiment, None).status_code == 200


def test_texts_are_edited_and_audited(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation", goal="old")
    operator.post(f"/experiments/{experiment.pk}/edit/", {"goal": "new", "conclusion": "<i>none</i>\x00"})
    assert "&lt;i&gt;none&lt;/i&gt;" in operator.get(f"/experiments/{experiment.pk}/").content.decode()
    entry = AuditEntry.objects.get(action="experiment.edit")
    assert entry.changes["goal"] == {"old": "old", "new": "new"}
    address = f"/api/v1/experiments/{experiment.pk}/edit"
    assert operator.post(address, {"goal": "x" * 20_001}, "application/json").status_code == 422
    shown = run_command("experiment", "edit", "ablation", "--hypothesis", "no\x1b change")
    assert shown.splitlines() == ["goal: new", "hypothesis: no\\u001b change", "conclusion: <i>none</i>"]


def test_texts_edited_meanwhile_are_not_overwritten(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation", goal="old")
    address = f"/experiments/{experiment.pk}/"
    version = operator.get(address).context["edit"].version
    assert operator.get(f"/api/v1{address}".rstrip("/")).json()["edit_version"] == version
    operator.post(f"{address}edit/", {"goal": "theirs", "version": version})
    refused = operator.post(f"{address}edit/", {"goal": "mine", "version": version})
    assert refused.status_code == 409
    assert "mine</textarea>" in refused.content.decode()
    body = {"goal": "mine", "version": version}
    assert operator.post(f"/api/v1{address}edit", body, "application/json").status_code == 409
    assert Experiment.objects.get().goal == "theirs"
    again = {"goal": "mine", "version": refused.context["edit"].version}
    assert operator.post(f"{address}edit/", again).status_code == 302
    assert Experiment.objects.get().goal == "mine"


def test_numbers_of_runs_are_those_of_the_list(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation")
    launch(operator, experiment, DESIGN)
    runs.stop(run=Run.objects.earliest("pk"))
    address = f"/api/v1/experiments/{experiment.pk}"
    (listed,) = operator.get("/api/v1/experiments").json()
    assert (listed["num_runs"], listed["num_active"]) == (4, 3)
    assert operator.get(address).json().items() >= listed.items()
    assert operator.post(f"{address}/edit", {}, "application/json").json() == listed
    assert json.loads(run_command("experiment", "show", "ablation", "--json"))["num_runs"] == 4


def test_archived_runs_of_an_arm_with_other_settings_do_not_return_to_it(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation")
    launch(operator, experiment, {**DESIGN, "seeds": [0]})
    loo, std = Run.objects.order_by("pk")
    for run in (loo, std):
        runs.stop(run=run)
        edits.archive(run=run)
    changed = {**DESIGN, "arms": [ARMS[0], {"name": "std", "settings": {"trainer.iterations": 7}}]}
    assert launch(operator, experiment, changed | {"seeds": [1]}).status_code == 200
    for run in (loo, std):
        edits.restore(run=run)
    assert [Run.objects.get(pk=run.pk).arm for run in (loo, std)] == ["loo", ""]
    answer = launch(operator, experiment, changed).json()
    assert [run["id"] for run in answer["continued"]] == [loo.pk]
    assert [run["arm"] for run in answer["created"]] == ["std"]


def test_the_form_refuses_arms_of_one_name_and_two_starts(operator: Client) -> None:
    form = {
        "name": "x", "recipe": "frozenlake", "seeds": "1", "then": "check",
        "arm-0-name": "a", "arm-1-name": " a ", "arm-1-settings": "trainer.iterations=3",
    }  # fmt: skip
    page = operator.post("/experiments/new/", form)
    assert [problem.setting for problem in page.context["refused"]] == ["arms.a"]
    page = operator.post("/experiments/new/", form | {"arm-1-name": "b", "base_run": "1"})
    assert "either a recipe or a run" in page.content.decode()


def test_command_launches_arms(operator: Client) -> None:
    printed = run_command(
        "experiment", "launch", "ablation", "--recipe", "frozenlake", "--seeds", "7,8",
        "--arm", "loo=", "--arm", "std=algorithm.preset=grpo", "--arm", "std=trainer.iterations=3",
    )  # fmt: skip
    assert printed.endswith("4 runs created, 0 continued\n")
    assert Experiment.objects.get().design["arms"][1]["settings"] == ARMS[1]["settings"]
    base = Run.objects.earliest("pk")
    assert run_command("experiment", "launch", "ablation").endswith("0 runs created, 0 continued\n")
    run_command("experiment", "launch", "clones", "--run", base.pk, "--arm", "a=", "--seeds", "1")
    clone = Run.objects.latest("pk")
    assert (clone.parent, clone.arm, clone.experiment and clone.experiment.name) == (base, "a", "clones")
    assert clone.config["seed"] == 0
    more = ("--recipe", "frozenlake", "--arm", "new=")
    assert run_command("experiment", "launch", "ablation", *more).endswith("2 runs created, 0 continued\n")
    assert Experiment.objects.get(name="ablation").design["seeds"] == [7, 8]
    assert "seed 7: run" in run_command("experiment", "show", "ablation")
    assert len(run_command("experiment", "stop", "ablation").splitlines()) == 6
    for wrong, message in (
        (("--arm", "loo"), "NAME= or NAME=KEY=VALUE"),
        (("--arm", "a=", "--seeds", "x"), "number of seeds from 1 to 50"),
        (("--arm", "a="), "either a recipe or a run"),
        (("--run", "999", "--arm", "a="), "there is no run 999"),
        ((), "no arms yet"),
        (("--seeds", "5"), "need --arm"),
    ):
        with pytest.raises(CommandFailedError, match=message):
            run_command("experiment", "launch", "other", *wrong)
    assert not Experiment.objects.filter(name="other").exists()


def test_filing_a_run_elsewhere_removes_it_from_its_arm(operator: Client) -> None:
    experiment = Experiment.objects.create(name="ablation")
    launch(operator, experiment, DESIGN)
    run = Run.objects.earliest("pk")
    edits.edit(run=run, changes=edits.Edit(notes="kept"))
    assert Run.objects.get(pk=run.pk).arm == "loo"
    edits.edit(run=run, changes=edits.Edit(experiment="elsewhere"))
    assert Run.objects.get(pk=run.pk).arm == ""
    assert len(launch(operator, experiment, None).json()["created"]) == 1


def test_seeds_and_settings_survive_their_text() -> None:
    for seeds in ([0, 1, 2], [5], [7, 3], [0]):
        assert parse_seeds(seeds_text(seeds)) == seeds
    assert setting_line("a.b", "3") == 'a.b="3"'
    assert setting_line("a.b", "grpo") == "a.b=grpo"
    assert setting_line("a.b", [1, "x"]) == 'a.b=[1, "x"]'
    for value in ("two\nlines", "two\u2028lines", " edge ", "end\n", "", " ", "a=b c", "NaN"):
        (line,) = setting_line("a.b", value).splitlines()
        assert parse_settings([line.strip()]) == {"a.b": value}


@pytest.mark.parametrize(
    ("arms", "seeds", "message"),
    [
        ([("a", ["seed=1"])], "1", "an arm cannot set 'seed'"),
        ([(f"a{i}", []) for i in range(20)], "50", "1000 runs are more than 100"),
        ([(f"a{i}", []) for i in range(21)], "1", "at most 20"),
        ([("a=b", [])], "1", "arms.0.name"),
        ([("x" * 61, [])], "1", "at most 60"),
        ([("", ["lr=1"])], "1", "at least 1"),
        ([("a", [])], "1,1", "two seeds are equal"),
        ([("a", [])], "-1,", "greater than or equal to 0"),
        ([("a", [])], "9" * 5000, "number of seeds"),
        ([], "1", "at least 1"),
    ],
)  # fmt: skip
def test_invalid_designs_are_refused(arms: list[tuple[str, list[str]]], seeds: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_design(recipe="frozenlake", base_run=None, arms=arms, seeds=seeds)

"""Every format: converted rows, answers hidden from agents, errors of malformed rows."""
# ruff: noqa: E501  (tables of malformed rows)

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.agent.prompts import load_prompt
from engine.build_contexts import context_path, image_of
from engine.config.kubernetes import KubernetesConfig
from engine.datasets.answer_files import contents_of
from engine.datasets.importers.base import Imported
from engine.datasets.importers.registry import FORMATS
from engine.datasets.importers.run import import_dataset
from engine.datasets.store import load_dataset, with_content_id
from engine.errors import DatasetError, ImageError
from engine.orchestrator.importing import obstacle
from engine.patches.apply import apply_patch
from engine.patches.trees import FileState
from engine.sandbox.base import SandboxSpec
from engine.sandbox.kubernetes.manifests.images import resolve_image
from engine.sandbox.local.images import image_folder
from engine.types import GradeRule, TaskRow
from tests.unit.datasets.importers import folders, rows
from tests.unit.datasets.importers.builders import config, records, write_lines


def convert(name: str, row: Any) -> Imported:
    return FORMATS[name].convert(row)


def every_import(tmp_path: Path) -> dict[str, Imported]:
    imports = {name: convert(name, make()) for name, make in rows.ROWS.items()}
    imports["swe-bench-v5 row"] = convert("swe-bench", rows.swe_bench_v5())
    imports["r2e verified"] = convert("r2e-gym", rows.r2e_verified())
    for name, make in (("swe-bench-v5", folders.task_repo), ("harbor", folders.harbor_task)):
        form = FORMATS[name]
        assert form.read_folder is not None
        imports[name] = form.convert(form.read_folder(make(tmp_path / name)))
    exported = imports["swe-bench"]
    imports["trainyard"] = convert(
        "trainyard", {"task": asdict(exported.task), "answer": asdict(exported.answer), "split": "dev"}
    )
    return imports


def test_answers_are_not_visible_to_agents(tmp_path: Path) -> None:
    imports = every_import(tmp_path)
    assert set(FORMATS) <= set(imports)
    for name, imported in imports.items():
        task = imported.task
        prompts = [load_prompt(prompt, "xml").user(task) for prompt in ("deepswe_v1", "compact_v1")]
        visible = json.dumps(
            [asdict(task), asdict(SandboxSpec(image=task.image, workdir=task.workdir)), prompts]
        )
        assert rows.STATEMENT in visible.replace("\\n", "\n"), name
        for secret in rows.SECRETS:
            assert secret not in visible, (name, secret)
        answer = json.dumps(asdict(imported.answer))
        assert "high_secret_gold_line" in answer, name


def test_content_ids_are_stable_and_distinguish_rows(tmp_path: Path) -> None:
    def ids() -> list[str]:
        made = every_import(tmp_path).values()
        return [with_content_id(TaskRow(task=row.task, answer=row.answer, split="s")).task.id for row in made]

    assert ids() == ids()
    # An exported row equals the original.
    assert len(set(ids())) == len(ids()) - 1


def test_a_classic_row_gets_image_script_and_parser_of_its_version() -> None:
    imported = convert("swe-bench", rows.swe_bench())
    task, answer = imported.task, imported.answer
    assert task.image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-1:latest"
    assert (task.workdir, task.metadata["language"], imported.ungradable) == ("/testbed", "python", "")
    assert task.difficulty["minutes"] == 60
    assert (answer.log_parser, answer.grade_rule) == ("parse_log_pytest_v2", GradeRule.F2P_P2P)
    assert (answer.fail_to_pass, answer.pass_to_pass) == (tuple(rows.F2P), tuple(rows.P2P))
    script = answer.test_command
    assert script.startswith("#!/bin/bash\n")
    start, end = script.index(">>>>> Start Test Output"), script.index(">>>>> End Test Output")
    assert "pytest -rA" in script[start:end]
    assert "tests/test_core.py tests/test_new.py" in script[start:end]
    placed = script[:start]
    assert placed.index("rm -f -- tests/test_new.py") < placed.index(
        f"git checkout {rows.SHA} -- tests/test_core.py"
    )
    assert placed.index("git checkout") < placed.index("git apply -v -")


def test_django_tests_are_modules_and_other_languages_have_their_own_commands() -> None:
    row = rows.swe_bench(repo="django/django", version="4.0", instance_id="django__django-1")
    script = convert("swe-bench", row).answer.test_command
    assert (
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_core test_new" in script
    )
    row = rows.swe_bench(repo="gin-gonic/gin", version="4003", instance_id="gin-gonic__gin-4003")
    imported = convert("swe-bench", row)
    assert 'go test . -v -run "TestMethodNotAllowedNoRoute"' in imported.answer.test_command
    assert (imported.answer.log_parser, imported.task.metadata["language"]) == ("parse_log_gotest", "go")


def test_row_of_an_unknown_version_is_imported_as_ungradable() -> None:
    imported = convert("swe-bench", rows.swe_bench(version="99.9"))
    assert "version '99.9'" in imported.ungradable
    assert imported.answer.test_command == ""


def test_a_row_of_version_5_keeps_its_own_script(tmp_path: Path) -> None:
    imported = convert("swe-bench", rows.swe_bench_v5())
    assert imported.answer.test_command == rows.swe_bench_v5()["eval_script"]
    assert imported.answer.log_parser == "parse_log_pytest"
    assert imported.task.image.startswith("docker.io/swebench/")
    read = FORMATS["swe-bench-v5"].read_folder
    assert read is not None
    folder = convert("swe-bench-v5", read(folders.task_repo(tmp_path)))
    assert (folder.split, folder.task.metadata["version"]) == ("test", "1.10")
    assert "return low\r\n" in folder.answer.gold_patch
    assert folder.answer.metadata["hints_text"] == "secret hint"


def test_swe_gym_uses_images_and_commands_of_its_fork() -> None:
    imported = convert("swe-gym", rows.swe_gym(test_patch=rows.TEST_PATCH + "+[case testOne]\n"))
    assert imported.task.image == "xingyaoww/sweb.eval.x86_64.python_s_mypy-10:latest"
    assert "pytest -rA -k testOne" in imported.answer.test_command
    other = convert(
        "swe-gym", rows.swe_gym(repo="getmoto/moto", instance_id="getmoto__moto-1", version="4.1")
    )
    assert "pytest -n0 -rA tests/test_core.py tests/test_new.py" in other.answer.test_command
    unknown = convert("swe-gym", rows.swe_gym(repo="acme/pkg"))
    assert "acme/pkg" in unknown.ungradable


def test_swe_rebench_takes_command_parser_and_scores_from_the_row() -> None:
    imported = convert("swe-rebench", rows.swe_rebench())
    assert "pytest --no-header -rA tests/test_core.py tests/test_new.py" in imported.answer.test_command
    assert "export A='b c'" in imported.answer.test_command
    assert imported.task.difficulty["issue_text_score"] == 0
    assert imported.task.difficulty["lite"] == 1
    v2 = convert("swe-rebench-v2", rows.swe_rebench_v2())
    assert v2.task.workdir == "/pkg"
    assert v2.answer.fail_to_pass == ("Test_secret_upper", "test_secret_new")
    assert "go build ./...\ngo test -v ./...\n" in v2.answer.test_command
    assert (v2.answer.log_parser, v2.task.metadata["language"]) == ("parse_log_gotest", "go")


def test_r2e_rebuilds_the_gold_patch_and_compares_the_whole_map() -> None:
    imported = convert("r2e-gym", rows.r2e_gym())
    task, answer = imported.task, imported.answer
    assert (task.instance_id, task.repo, task.base_commit) == (
        "aiohttp__ffffffffffff",
        "aio-libs/aiohttp",
        rows.SHA,
    )
    assert task.problem_statement == rows.STATEMENT
    before = {"pkg/core.py": FileState(0o100644, rows.OLD_CODE.encode())}
    changed, _ = apply_patch(before, answer.gold_patch)
    assert changed["pkg/core.py"].data.decode() == rows.NEW_CODE
    assert "test_core" not in answer.gold_patch
    assert "+def test_secret_new():" in answer.test_patch
    assert answer.metadata["left_out_of_gold"] == ["doc/x.png"]
    assert answer.grade_rule is GradeRule.MAP_EQUAL
    assert answer.expected == {
        "TestCore.test_secret_upper": "PASSED", "TestCore.test_secret_lower": "PASSED", "TestCore.test_odd": "FAILED",
    }  # fmt: skip
    assert (answer.fail_to_pass, answer.pass_to_pass) == (
        ("TestCore.test_secret_upper",),
        ("TestCore.test_secret_lower",),
    )
    assert {"/r2e_tests", "/root/run_tests.sh", "/root/r2e_tests", "/testbed/r2e_tests"} <= set(
        answer.hidden_paths
    )
    assert answer.test_files == {"r2e_tests/test_1.py": "def test_secret_upper(): ..."}
    assert task.difficulty["num_non_test_lines"] == 2


def test_r2e_hunks_that_do_not_apply_are_rebuilt_from_file_contents() -> None:
    commit = rows.parsed_commit()
    commit["file_diffs"][0]["hunks"][0]["line_group"]["all_lines"][1]["content"] = "something else"
    imported = convert("r2e-gym", rows.r2e_gym(parsed_commit_content=json.dumps(commit)))
    changed, _ = apply_patch(
        {"pkg/core.py": FileState(0o100644, rows.OLD_CODE.encode())}, imported.answer.gold_patch
    )
    assert changed["pkg/core.py"].data.decode() == rows.NEW_CODE


def test_r2e_without_an_old_log_has_no_fail_to_pass_tests() -> None:
    answer = convert("r2e-gym", rows.r2e_gym(execution_result_content=None)).answer
    assert answer.fail_to_pass == ()
    assert set(answer.pass_to_pass) == {"TestCore.test_secret_upper", "TestCore.test_secret_lower"}
    assert answer.test_files == {}


def test_number_out_of_range_is_left_out_of_the_difficulty() -> None:
    difficulty = convert("r2e-gym", rows.r2e_gym(num_non_test_lines=10**400)).task.difficulty
    assert "num_non_test_lines" not in difficulty


def test_r2e_verified_rows_are_swe_bench_rows_with_another_image() -> None:
    imported = convert("r2e-gym", rows.r2e_verified())
    assert imported.task.image == "namanjain12/swebench_astropy:1"
    assert imported.answer.grade_rule is GradeRule.F2P_P2P
    assert "/run_tests.sh" in imported.answer.hidden_paths
    odd = convert("r2e-gym", rows.r2e_verified(version="99"))
    assert "bash /run_tests.sh" in odd.answer.test_command


def test_swe_smith_reverses_the_patch_of_the_bug() -> None:
    imported = convert("swe-smith", rows.swe_smith())
    task, answer = imported.task, imported.answer
    assert task.image == "swebench/swesmith.x86_64.acme_1776_pkg.01234567"
    assert (task.repo, task.base_commit) == ("acme/pkg", "01234567")
    intact = {"pkg/core.py": FileState(0o100644, b"def clamp(value, low, high):\n    if value < low:\n        return low\n"
                                                 b"    if value > high_secret_gold_line:\n        return high\n")}  # fmt: skip
    broken, _ = apply_patch(intact, answer.setup_patch)
    assert b"if value < high:" in broken["pkg/core.py"].data
    mended, _ = apply_patch(broken, answer.gold_patch)
    assert mended["pkg/core.py"].data == intact["pkg/core.py"].data
    assert answer.hidden_paths == ("tests/test_core.py", "tests/test_new.py")
    assert answer.log_parser == "swesmith_pytest"
    go = convert("swe-smith", rows.swe_smith(FAIL_TO_PASS=["TestClamp"], PASS_TO_PASS=[]))
    assert "profiles" in go.ungradable


def test_multi_swe_keeps_transitions_and_hides_the_patches_of_the_image() -> None:
    imported = convert("multi-swe-rl", rows.multi_swe())
    task, answer = imported.task, imported.answer
    assert (task.instance_id, task.image, task.workdir) == (
        "cli__cli-42",
        "mswebench/cli_m_cli:pr-42",
        "/home/cli",
    )
    assert task.problem_statement == f"clamp is broken\n{rows.STATEMENT}"
    assert (answer.fail_to_pass, answer.pass_to_pass) == (
        ("test_secret_upper", "test_secret_new"),
        ("test_secret_lower",),
    )
    assert answer.metadata["n2p_tests"] == ["test_secret_new"]
    assert answer.metadata["test_patch_result"] == {"test_secret_lower": "PASS", "test_secret_upper": "FAIL"}
    assert "/home/fix.patch" in answer.hidden_paths
    columnar = rows.multi_swe(
        resolved_issues={"number": [7], "title": ["clamp is broken"], "body": [rows.STATEMENT]},
        f2p_tests={"name": ["test_secret_upper"]}, n2p_tests=json.dumps([{"name": "test_secret_new"}]),
    )  # fmt: skip
    assert convert("multi-swe-rl", columnar).answer.fail_to_pass == answer.fail_to_pass


def test_swe_bench_pro_needs_its_scripts() -> None:
    imported = convert("swe-bench-pro", rows.swe_bench_pro())
    assert imported.task.image == f"jefzda/sweap-images:nodebb.nodebb-NodeBB__NodeBB-{rows.SHA}"
    assert "It must clamp." in imported.task.problem_statement
    assert imported.answer.fail_to_pass == tuple(rows.F2P)
    assert "run_script.sh" in imported.ungradable
    full = convert(
        "swe-bench-pro", {**rows.swe_bench_pro(), "run_script.sh": "pytest $1", "parser.py": "print()"}
    )
    assert full.ungradable == ""
    assert set(full.answer.test_files) == {"/workspace/run_script.sh", "/workspace/parser.py"}
    script = full.answer.test_command
    assert script.index("git checkout abc -- tests/test_core.py") < script.index(
        "run_script.sh tests/test_core.py"
    )
    assert "git reset" not in script
    assert "parser.py" not in script
    assert full.answer.metadata["parser"]["result"] == "/workspace/output.json"


def test_harbor_tasks_are_graded_by_their_own_verifier(tmp_path: Path) -> None:
    read = FORMATS["harbor"].read_folder
    assert read is not None
    imported = convert("harbor", read(folders.harbor_task(tmp_path)))
    task, answer = imported.task, imported.answer
    assert (task.instance_id, task.image, task.workdir) == ("acme__clamp", "acme/clamp:1", "/work")
    assert (answer.grade_rule, answer.timeout_s) == (GradeRule.REWARD_FILE, 120.0)
    assert "export MODE='it'\"'\"'s strict'" in answer.test_command
    assert set(answer.test_files) == {"/tests/test.sh", "/tests/test_secret_upper.py"}
    assert answer.metadata["solution"].startswith("sed")
    assert task.difficulty["memory_mb"] == 2048
    assert not answer.own_box
    shared = folders.HARBOR_TOML.replace("[verifier]\n", '[verifier]\nenvironment_mode = "shared"\n')
    assert convert("harbor", read(folders.harbor_task(tmp_path, **{"task.toml": shared}))).answer.own_box
    obstacles: dict[str, dict[str, Any]] = {
        "no docker_image": {"task.toml": '[environment]\nworkdir = "/w"\n', "environment/Dockerfile": None},
        "several containers": {"environment/docker-compose.yaml": "services: {}\n"},
        "takes API_KEY from the machine": {
            "task.toml": folders.HARBOR_TOML.replace("MODE =", 'API_KEY = "${API_KEY}", MODE =')
        },
        "several steps": {"task.toml": '[[steps]]\nname = "a"\n'},
        "needs a separate environment": {
            "task.toml": folders.HARBOR_TOML.replace(
                "[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n'
            )
        },
        "environment takes TOKEN from the machine": {
            "task.toml": folders.HARBOR_TOML + 'env = { TOKEN = "${TOKEN}" }\n'
        },
        "as user 'dev'; sandboxes use the image's user ('root')": {
            "task.toml": folders.HARBOR_TOML.replace("[agent]\n", '[agent]\nuser = "dev"\n')
        },
        "needs the network, which grading does not have (tests/test.sh, line 3: apt-get install -y curl)": {
            "tests/test.sh": "#!/bin/bash\n# apt-get update\napt-get install -y curl\n"
        },
    }
    for number, (reason, changes) in enumerate(obstacles.items()):
        ungraded = convert("harbor", read(folders.harbor_task(tmp_path / str(number), **changes)))
        assert reason in ungraded.ungradable, ungraded.ungradable


@pytest.mark.parametrize(
    ("dockerfile", "workdir"),
    [
        ("FROM a\nENV A=1\nWORKDIR /testbed\nRUN true\n", "/testbed"),
        ("FROM a\nworkdir /srv\nWORKDIR 'app'\n", "/srv/app"),
        ("FROM a AS base\nWORKDIR /one\nFROM --platform=linux/amd64 base\n", "/one"),
        ("FROM a AS base\nWORKDIR /one\nFROM b\n", "/app"),
        ("FROM a\nWORKDIR /one\nWORKDIR $HOME/x\n", "/app"),
        ("FROM a\nWORKDIR app\n", "/app"),
        (None, "/app"),
    ],
)
def test_harbor_working_directory_defaults_to_that_of_the_image(
    tmp_path: Path, dockerfile: str | None, workdir: str
) -> None:
    read = FORMATS["harbor"].read_folder
    assert read is not None
    toml = folders.HARBOR_TOML.replace('workdir = "/work"\n', "")
    files: dict[str, Any] = {"task.toml": toml, "environment/Dockerfile": dockerfile}
    imported = convert("harbor", read(folders.harbor_task(tmp_path, **files)))
    assert imported.task.workdir == workdir
    assert f"\ncd {workdir}\n" in imported.answer.test_command


def test_harbor_task_keeps_its_environment_and_the_user_of_its_image(tmp_path: Path) -> None:
    read = FORMATS["harbor"].read_folder
    assert read is not None
    toml = folders.HARBOR_TOML.replace("[agent]\n", '[agent]\nuser = "dev"\n')
    toml += 'env = { MODE = "fast", TIMES = "${TIMES:-2}" }\n'
    files = {"task.toml": toml, "environment/Dockerfile": "FROM a\nUSER dev:dev\n"}
    imported = convert("harbor", read(folders.harbor_task(tmp_path, **files)))
    assert imported.ungradable == ""
    assert imported.task.env == {"MODE": "fast", "TIMES": "2"}
    row = with_content_id(TaskRow(task=imported.task, answer=imported.answer, split="train"))
    bare = with_content_id(replace(row, task=replace(row.task, env={})))
    assert row.task.id != bare.task.id


@pytest.mark.parametrize(
    ("line", "downloads"),
    [
        ("curl -LsSf https://astral.sh/uv/install.sh | sh", True),
        ("uvx -p 3.13 -w pytest==8.4.1 pytest /tests -rA", True),
        ("python -m pip install pytest", True),
        ("uv run pytest", True),
        ("git clone --depth 1 https://example.org/a", True),
        ("sudo apt-get -qq update", True),
        ("npm ci", True),
        ("pip install --no-index --find-links /wheels pytest", False),
        ("curl -s http://localhost:8080/health", False),
        ("pytest /tests/test_install.py", False),
        ("# pip install pytest", False),
        ("echo installed", False),
    ],
)
def test_verifiers_that_download_are_ungradable(tmp_path: Path, line: str, downloads: bool) -> None:
    folders.harbor_task(tmp_path / "set", **{"tests/test.sh": f"#!/bin/bash\n{line}\n"})
    result = import_dataset(config(tmp_path / "set", format="harbor"), home=tmp_path, gradable=obstacle)
    assert (result.imported, result.ungradable) == (1, int(downloads))
    assert [line in reason for reason in result.ungradable_by] == [True] * downloads


@pytest.mark.parametrize("as_text", [True, False])
def test_rows_in_verls_form_are_read_from_their_extra_info(tmp_path: Path, as_text: bool) -> None:
    inner = rows.r2e_gym()
    wrapped = {
        "data_source": "swe", "prompt": [{"role": "user", "content": "placeholder"}], "ability": "swe",
        "reward_model": {"style": "rule", "ground_truth": None},
        "extra_info": json.dumps(inner) if as_text else inner,
    }  # fmt: skip
    source = write_lines(tmp_path / "train.jsonl", [wrapped])
    import_dataset(config(source, format="r2e-gym"), home=tmp_path)
    (row,) = load_dataset(tmp_path, "d").rows
    alone = convert("r2e-gym", inner)
    assert (row.task.problem_statement, row.answer.expected) == (
        alone.task.problem_statement, alone.answer.expected,
    )  # fmt: skip


def test_harbor_task_without_an_image_stores_its_build_context(tmp_path: Path) -> None:
    toml = folders.HARBOR_TOML.replace('docker_image = "acme/clamp:1"\n', "")
    folders.harbor_task(tmp_path / "set", **{"task.toml": toml, "environment/data/x.txt": "x"})
    import_dataset(
        config(tmp_path / "set", format="harbor", image_prefix="mirror.example"),
        home=tmp_path,
        gradable=obstacle,
    )
    (row,) = load_dataset(tmp_path, "d").rows
    assert "ungradable" not in row.answer.metadata
    packed = context_path(tmp_path, row.task.image)
    assert row.task.image == image_of(packed.read_bytes())
    with tarfile.open(packed) as tar:
        assert tar.getnames() == ["Dockerfile", "data/x.txt"]
    for backend in (
        lambda: image_folder(tmp_path, row.task.image),
        lambda: resolve_image(KubernetesConfig(), row.task.image),
    ):
        with pytest.raises(ImageError, match="only the Docker backend"):
            backend()


def test_harbor_supports_binary_tests_and_variables_with_defaults(tmp_path: Path) -> None:
    read = FORMATS["harbor"].read_folder
    assert read is not None
    toml = folders.HARBOR_TOML.replace("MODE =", 'KEY = "${KEY:-}", TIMES = "${TIMES:-1}", MODE =')
    content = bytes(range(256))
    files: dict[str, Any] = {"tests/data.bin": content, "tests/nul.txt": "a\0b", "task.toml": toml}
    imported = convert("harbor", read(folders.harbor_task(tmp_path, **files)))
    answer = imported.answer
    assert imported.ungradable == ""
    assert set(answer.binary_files) == {"/tests/data.bin", "/tests/nul.txt"}
    assert contents_of(answer)["/tests/data.bin"] == content
    assert contents_of(answer)["/tests/nul.txt"] == b"a\0b"
    assert "/tests/test.sh" in contents_of(answer)
    assert "export KEY=''\n" in answer.test_command
    assert "export TIMES=1\n" in answer.test_command


def test_binary_files_survive_an_export_and_must_be_base64(tmp_path: Path) -> None:
    row = asdict(convert("swe-rebench", rows.swe_rebench()).answer)
    task = asdict(convert("swe-rebench", rows.swe_rebench()).task)
    lines = [
        {
            "task": {**task, "instance_id": name},
            "answer": {**row, "binary_files": {"t/x.bin": encoded}},
            "split": "train",
        }
        for name, encoded in (("good", "AP8="), ("bad", "no base64!"))
    ]
    source = write_lines(tmp_path / "export.jsonl", lines)
    result = import_dataset(config(source, format="trainyard"), home=tmp_path)
    assert (result.imported, result.rejected) == (1, 1)
    assert records(tmp_path, "rejects.jsonl")[0]["field"] == "binary_files.t/x.bin"
    (stored,) = load_dataset(tmp_path, "d").rows
    assert contents_of(stored.answer)["t/x.bin"] == b"\x00\xff"


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


MALFORMED: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    ("swe-bench", lambda: rows.swe_bench(patch=None), "patch"),
    ("swe-bench", lambda: rows.swe_bench(problem_statement="  "), "problem_statement"),
    ("swe-bench", lambda: rows.swe_bench(FAIL_TO_PASS="[not a list"), "FAIL_TO_PASS"),
    ("swe-bench", lambda: rows.swe_bench(eval_type="odd"), "eval_type"),
    ("swe-gym", lambda: without(rows.swe_gym(), "repo"), "repo"),
    ("swe-rebench", lambda: rows.swe_rebench(install_config={"test_cmd": 3}), "install_config.test_cmd"),
    ("swe-rebench-v2", lambda: without(rows.swe_rebench_v2(), "image_name"), "image_name"),
    ("swe-rebench-v2", lambda: rows.swe_rebench_v2(install_config={"test_cmd": "x"}), "install_config.log_parser"),
    ("r2e-gym", lambda: rows.r2e_gym(parsed_commit_content="{}"), "parsed_commit_content.file_diffs"),
    ("r2e-gym", lambda: rows.r2e_gym(expected_output_json={"a": {}}), "expected_output_json"),
    ("swe-rebench", lambda: rows.swe_rebench(install_config="[" * 100_000), "install_config"),
    ("r2e-gym", lambda: rows.r2e_gym(parsed_commit_content=json.dumps({"file_diffs": [{}]})), "parsed_commit_content.file_diffs.0"),
    ("r2e-gym", lambda: rows.r2e_gym(expected_output_json='{"a": "MAYBE"}'), "expected_output_json"),
    ("r2e-gym", lambda: rows.r2e_gym(expected_output_json='{"a": "FAILED"}'), "expected_output_json"),
    ("r2e-gym", lambda: rows.r2e_gym(problem_statement="[ISSUE] [/ISSUE]"), "problem_statement"),
    ("r2e-gym", lambda: rows.r2e_gym(execution_result_content=json.dumps({"test_file_names": ["../x"], "test_file_codes": ["x"]})), "execution_result_content.test_file_names"),
    ("swe-smith", lambda: rows.swe_smith(patch="no patch"), "patch"),
    ("multi-swe-rl", lambda: rows.multi_swe(number="x"), "number"),
    ("multi-swe-rl", lambda: rows.multi_swe(f2p_tests={}, n2p_tests={}), "fixed_tests"),
    ("multi-swe-rl", lambda: rows.multi_swe(run_result=None), "run_result"),
    ("multi-swe-rl", lambda: rows.multi_swe(resolved_issues=[], title="", body=""), "resolved_issues"),
    ("swe-bench-pro", lambda: rows.swe_bench_pro(fail_to_pass="os.system('x')"), "FAIL_TO_PASS"),
    ("trainyard", lambda: {"task": {"id": "1"}, "answer": {}}, "task.instance_id"),
    ("trainyard", lambda: {"answer": {}}, "task"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make", "field"), MALFORMED, ids=[f"{name}-{field}" for name, _, field in MALFORMED]
)
def test_malformed_rows_name_the_field(name: str, make: Callable[[], dict[str, Any]], field: str) -> None:
    with pytest.raises(DatasetError) as raised:
        convert(name, make())
    assert (raised.value.field or "").lower().startswith(field.lower())


@given(name=st.sampled_from(sorted(rows.ROWS)), data=st.data())
def test_rows_with_a_random_field_raise_at_most_dataset_errors(name: str, data: st.DataObject) -> None:
    row = rows.ROWS[name]()
    field = data.draw(st.sampled_from(sorted(row)))
    row[field] = data.draw(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
    )
    with suppress(DatasetError):
        assert convert(name, row).task.instance_id


BROKEN_FOLDERS: list[tuple[str, Any, dict[str, Any], str]] = [
    ("swe-bench-v5", folders.task_repo, {"gold.patch": None}, "gold.patch"),
    ("swe-bench-v5", folders.task_repo, {"task.yaml": "- 1"}, "task.yaml"),
    ("swe-bench-v5", folders.task_repo, {"tests.json": "[" * 100_000}, "tests.json"),
    ("swe-bench-v5", folders.task_repo, {"task.yaml": "a: &a [1]\nb: [*a, *a]"}, "task.yaml"),
    ("harbor", folders.harbor_task, {"instruction.md": None}, "instruction.md"),
    ("harbor", folders.harbor_task, {"solution/solve.sh": b"\xff"}, "solution/solve.sh"),
    ("harbor", folders.harbor_task, {"task.toml": "x ="}, "task.toml"),
    ("harbor", folders.harbor_task, {"tests/data.bin": b"\xff" * ((4 << 20) + 1)}, "tests/data.bin"),
    ("harbor", folders.harbor_task, {"tests/test.sh": None}, "tests/test.sh"),
]


@pytest.mark.parametrize(("form", "make", "changes", "field"), BROKEN_FOLDERS)
def test_malformed_folders_name_the_file(
    tmp_path: Path, form: str, make: Any, changes: Any, field: str
) -> None:
    read = FORMATS[form].read_folder
    assert read is not None
    with pytest.raises(DatasetError) as raised:
        convert(form, read(make(tmp_path, **changes)))
    assert raised.value.field == field

"""Hostile source trees: their code is not run and their paths cannot escape."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.datasets.curation.toolchain import ensure_toolchain
from engine.datasets.sources.downloads import unpack
from engine.datasets.sources.fetch import fetch_source
from engine.errors import DatasetError, HostileInputError, PreflightError
from engine.sandbox.local.contained import check_tree, run_contained
from tests.builders.dataset_builders import write_toy
from tests.fakes.git_server import git_server

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that is pip's only package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def file(name: str, data: bytes = b"", **attributes: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, data


def write_tar(path: Path, *members: Member) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def toy(top: str, **more: bytes) -> list[Member]:
    files = {"toy/__init__.py": b"", "tests/test_toy.py": b"def test():\n    pass\n", **more}
    return [file(f"{top}/{name}", data) for name, data in files.items()]


def builder(seen: Path) -> dict[str, bytes]:
    """Return the files of a package whose build backend writes the file ``seen``."""
    return {
        "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n',
        "evil.py": f"open({str(seen)!r}, 'w')\n".encode(),
    }


def test_a_source_distribution_is_fetched_without_running_it(index: Path, tmp_path: Path) -> None:
    files = builder(tmp_path / "seen")
    write_tar(index / "evil-1.0.tar.gz", *toy("evil-1.0", **files))
    source = fetch_source("pip:evil==1.0", tmp_path / "home")
    assert source.packages == ("toy",)
    assert (source.tree / "evil.py").read_bytes() == files["evil.py"]
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    "requirement", ["-r/etc/passwd", "evil @ file:///tmp/evil", "--index-url=https://x.example"]
)
def test_source_requirements_outside_the_index_are_refused(
    index: Path, tmp_path: Path, requirement: str
) -> None:
    metadata = f"Metadata-Version: 2.1\nName: evil\nRequires-Dist: {requirement}\n".encode()
    write_tar(index / "evil-1.0.tar.gz", *toy("evil-1.0", **{"PKG-INFO": metadata}))
    with pytest.raises(DatasetError, match="expected a package of the index") as raised:
        fetch_source("pip:evil==1.0", tmp_path / "home")
    assert "root:" not in str(raised.value)


def write_wheel(
    folder: Path, name: str, files: dict[str, bytes], requires: str = "", version: str = "1.0"
) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def test_wheel_with_a_url_dependency_is_refused_and_nothing_is_built(index: Path, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.mkdir()
    for name, data in builder(tmp_path / "seen").items():
        (bait / name).write_bytes(data)
    write_wheel(index, "evil", {"evil.py": b""}, f"Requires-Dist: bait @ file://{bait}\n")
    write_wheel(index, "pytest", {"pytest.py": b""}, version="9.1.0")
    with pytest.raises(PreflightError, match="is a URL, not a package of the index"):
        ensure_toolchain(tmp_path / "home", ["evil"])
    assert not (tmp_path / "seen").exists()


def test_wheels_are_unpacked_as_pip_installs_them(tmp_path: Path) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    target.mkdir()
    write_wheel(
        wheels,
        "plain",
        {"plain/__init__.py": b"", "plain-1.0.data/purelib/also.py": b"", "plain-1.0.data/scripts/run": b""},
    )
    tree = unpack("wheels", wheels, target, home=tmp_path / "home", what="wheels")
    names = {path.name for path in tree.rglob("*") if path.is_file()}
    assert {"__init__.py", "also.py", "METADATA"} <= names
    assert "run" not in names
    assert (tree / "also.py").exists()
    assert list((tree / "plain/__pycache__").glob("*.pyc"))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([file("top/../../../escaped")], "leads out of the archive"),
        ([file("top//etc/escaped")], "leads out of the archive"),
        ([file("top/bomb", bytes(160 << 20))], "larger than"),
        ([file("top/link", type=tarfile.SYMTYPE, linkname="/etc/passwd")], "it is empty"),
        ([file("top/hard", type=tarfile.LNKTYPE, linkname="/etc/passwd")], "it is empty"),
        ([file("top/device", type=tarfile.CHRTYPE, devmajor=1, devminor=5)], "it is empty"),
        ([file("top/pipe", type=tarfile.FIFOTYPE)], "it is empty"),
        (
            [
                file("top/link", type=tarfile.SYMTYPE, linkname="/tmp"),
                file("top/link/escaped", b"through a link"),
            ],
            "",
        ),
    ],
)
def test_archives_cannot_escape_create_links_or_fill_the_disk(
    tmp_path: Path, members: list[Member], reason: str
) -> None:
    archive = write_tar(tmp_path / "sdist.tar.gz", *members)
    target = tmp_path / "target"
    target.mkdir()
    if reason:
        with pytest.raises(DatasetError, match=reason):
            unpack("sdist", archive, target, home=tmp_path / "home", what="evil 1.0")
    else:
        tree = unpack("sdist", archive, target, home=tmp_path / "home", what="evil 1.0")
        assert (tree / "link/escaped").read_bytes() == b"through a link"
        assert not (tree / "link").is_symlink()
    assert not (tmp_path / "escaped").exists()
    assert not Path("/etc/escaped").exists()


def test_damaged_archive_is_reported_as_unusable(tmp_path: Path) -> None:
    (tmp_path / "sdist.tar.gz").write_bytes(b"\x1f\x8b no archive")
    (tmp_path / "target").mkdir()
    with pytest.raises(DatasetError, match="evil 1.0 is not usable: it cannot be unpacked"):
        unpack(
            "sdist", tmp_path / "sdist.tar.gz", tmp_path / "target", home=tmp_path / "home", what="evil 1.0"
        )


def test_contained_program_sees_no_host_files_processes_or_network(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    hidden = [str(secret), __file__, str(Path.home() / ".config")]
    (tmp_path / "out").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "import os, socket\n"
        f"found = [path for path in {hidden!r} if os.path.exists(path)]\n"
        "found += [name for name in os.listdir('/proc') if name.isdigit() and int(name) > 9]\n"
        "found += [name for _, name in socket.if_nameindex() if name != 'lo']\n"
        "found += sorted(set(os.environ) - {'PATH', 'HOME', 'LC_ALL', 'LC_CTYPE', 'PWD'})\n"
        "open('/out/found', 'w').write(repr(found))\n"
    )
    run_contained(program, [], home=tmp_path / "home", reads={}, writes=tmp_path / "out")
    assert (tmp_path / "out/found").read_text() == "[]"


def _link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")


def _hard_link(folder: Path) -> None:
    (folder / "a").write_text("")
    os.link(folder / "a", folder / "b")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _many(folder: Path) -> None:
    for number in range(4):
        (folder / str(number)).write_text("")


def _large(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(2000))


@pytest.mark.parametrize("make", [_link, _hard_link, _pipe, _many, _large])
def test_output_trees_with_links_pipes_or_excess_size_are_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "inner").mkdir()
    check_tree(tmp_path, max_entries=3, max_bytes=1000)
    make(tmp_path / "inner")
    with pytest.raises(HostileInputError):
        check_tree(tmp_path, max_entries=3, max_bytes=1000)


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    """Folder with ``toy.git``: a filter, a symlink, a submodule and export-ignored files."""
    tree = write_toy(tmp_path / "tree")
    (tree / ".gitattributes").write_text("*.py filter=evil\n/tests export-ignore\n")
    (tree / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ext::sh -c touch% evil\n')
    (tree / "passwd").symlink_to("/etc/passwd")
    (tree / "run.sh").write_text("")
    (tree / "run.sh").chmod(0o755)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*GIT, *command], cwd=tree, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tree, check=True, stdout=subprocess.PIPE, text=True
    )
    link = ["update-index", "--add", "--cacheinfo", f"160000,{head.stdout.strip()},sub"]
    for command in (link, ["commit", "-qm", "second"]):
        subprocess.run([*GIT, *command], cwd=tree, check=True)
    served = tmp_path / "served"
    served.mkdir()
    subprocess.run([*GIT, "clone", "-q", "--bare", str(tree), str(served / "toy.git")], check=True)
    return served


def test_repository_is_cloned_over_https_without_running_its_code(
    repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_config = tmp_path / "gitconfig"
    git_config.write_text(f'[filter "evil"]\n\tsmudge = touch {tmp_path}/seen\n\trequired = true\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(git_config))
    with git_server(repositories) as (address, certificate):
        monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
        source = fetch_source(f"{address}/toy.git", tmp_path / "home")
    assert (source.name, source.packages, source.tests) == ("toy", ("toy",), ("tests",))
    assert os.access(source.tree / "run.sh", os.X_OK)
    assert not os.path.lexists(source.tree / "passwd")
    assert not os.path.lexists(source.tree / "sub")
    assert not (tmp_path / "seen").exists()
    assert (source.tree / "toy/words.py").read_text() == (tmp_path / "tree/toy/words.py").read_text()


def test_git_refuses_redirects_to_another_host(
    repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        git_server(repositories) as (other, _),
        git_server(repositories, {"moved": other}) as (address, trusted),
    ):
        monkeypatch.setenv("GIT_SSL_CAINFO", str(trusted))
        with pytest.raises(PreflightError, match="cannot fetch"):
            fetch_source(f"{address}/moved/toy.git", tmp_path / "home")


def test_contained_program_owns_no_host_files_and_has_no_capabilities(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "packed").mkdir(mode=0o700)
    (tmp_path / "packed" / "file").write_text("content")
    (tmp_path / "packed" / "file").chmod(0o600)
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "found = [open('/in/file').read(), os.getresuid() == os.getresgid() and len(os.getgroups())]\n"
        "for path in ('/dev/null', '/dev/urandom', '/usr', '/in/file', '/program.py'):\n"
        "    try: os.chmod(path, os.stat(path).st_mode); found.append(path)\n"
        "    except OSError: pass\n"
        "rows = [line.split() for line in open('/proc/self/status')]\n"
        "found += [row[1].strip('0') for row in rows if row[0] in ('CapPrm:', 'CapEff:')]\n"
        "open('/out/found', 'w').write(repr(found))\n"
    )
    program.chmod(0o600)
    run_contained(
        program, [], home=tmp_path / "home", reads={"/in": tmp_path / "packed"}, writes=tmp_path / "out"
    )
    assert (tmp_path / "out/found").read_text() in ("['content', 0, '', '']", "['content', 1, '', '']")
    for path in (tmp_path / "out", tmp_path / "out/found"):
        assert path.stat().st_uid == os.geteuid()

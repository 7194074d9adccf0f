"""The base system of local sandboxes: the host's programs, a small ``/etc``, Python and the agent.

The host's own root is never shared: only the folders named here, read-only, and files made here. To give
sandboxes another system folder, add it to ``_FOLDERS``; to give them another ``/etc`` file, add it to
``_ETC``.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import py_compile
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import engine.sandbox.agent
from engine.sandbox.seccomp.bpf import native_program

_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_COPIED = ("alternatives", "ld.so.cache", "localtime")
HOME = "/home/agent"
AGENT = "/run/trainyard"
_SECCOMP = "seccomp.bpf"
WRITABLE = ("/tmp", HOME)
_ETC = {
    "passwd": "root:x:0:0::/root:/bin/sh\n"
    f"agent:x:1000:1000::{HOME}:/bin/sh\n"
    "nobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "gitconfig": "[user]\n\tname = agent\n\temail = agent@sandbox\n[safe]\n\tdirectory = *\n",
}


@dataclass(frozen=True, slots=True)
class BaseSystem:
    """Mounts and links of the base system, in the spawner's format."""

    binds: tuple[tuple[str, str], ...]
    """Source on this machine, target in the sandbox."""
    links: tuple[tuple[str, str], ...]
    """Path in the sandbox, link target."""
    python: str
    path: str
    """Value of PATH for commands."""
    seccomp: str
    """File on this machine with the filter of system calls."""

    @property
    def agent_argv(self) -> list[str]:
        """Return the command line that starts the agent inside the sandbox."""
        code = f"import sys; sys.path[:0] = ['{AGENT}']; from agent.main import main; main()"
        return [self.python, "-I", "-S", "-B", "-c", code]


def prepare(folder: Path) -> BaseSystem:
    """Create the files below ``folder`` once and return the base system. Raises PreflightError."""
    prefix = os.path.realpath(sys.base_prefix)
    shared = _shared(folder)
    binds = [("/usr", "/usr"), (str(shared / "etc"), "/etc"), (str(shared / "run"), AGENT)]
    links = []
    for name in _FOLDERS:
        path = f"/{name}"
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            binds.append((path, path))
    if not f"{prefix}/".startswith("/usr/"):
        binds.append((prefix, prefix))
    python = os.path.join(prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    folders = dict.fromkeys((f"{prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
    return BaseSystem(
        binds=tuple(binds),
        links=tuple(links),
        python=python,
        path=":".join(folders),
        seccomp=str(shared / _SECCOMP),
    )


def _shared(folder: Path) -> Path:
    """Return the folder with ``etc`` and the agent, named by content so that old sandboxes keep theirs."""
    source = Path(engine.sandbox.agent.__file__).parent
    digest = hashlib.sha256(repr((sys.version, sorted(_ETC.items()))).encode() + native_program())
    for path in sorted(source.glob("*.py")):
        digest.update(path.read_bytes())
    final = folder / f"base-{digest.hexdigest()[:16]}"
    if final.is_dir():
        return final
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".base-", dir=folder))
    try:
        _fill(staging, source)
        staging.rename(final)
    except OSError:
        if not final.is_dir():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def _fill(staging: Path, source: Path) -> None:
    staging.chmod(0o755)
    etc, agent = staging / "etc", staging / "run" / "agent"
    etc.mkdir()
    agent.mkdir(parents=True)
    (staging / _SECCOMP).write_bytes(native_program())
    for name, text in _ETC.items():
        (etc / name).write_text(text)
    for name in _COPIED:
        path = Path("/etc") / name
        if path.is_dir():
            shutil.copytree(path, etc / name, symlinks=True)
        elif path.exists():
            shutil.copyfile(path, etc / name)
    for path in source.glob("*.py"):
        shutil.copyfile(path, agent / path.name)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(agent, quiet=2, invalidation_mode=mode)
    for parent, folders, names in os.walk(staging):
        for name in folders + names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)

"""Build two example images and their dataset rows, in the layouts of R2E-Gym and SWE-bench.

    python deploy/images/build_examples.py OUT [--base ROOTFS.tar] [--docker unix:///…/docker.sock]

All parts are real: a Debian root file system (by mmdebstrap unless one is given), the package
``parse`` from its source distributions 1.20.1 and 1.20.2, the fix between them (hyphens in field names), and
test outcomes that were observed by running the tests in the images. OUT receives ``r2e_gym.jsonl`` and
``swe_bench.jsonl`` (one row each) and ``images.json``; the images stay in the Docker daemon. A second call
builds only what is missing. For another package edit ``layout``; README.md describes the two layouts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import docker
import docker.errors
import layout
import rows

BASE = "trainyard/debian-python:bookworm"
_PACKAGES = "python3,git,ca-certificates"
_LEAN = ("force-unsafe-io", *(f"path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")))
_SYSTEM = Path(__file__).parents[1] / "setup" / "system.sh"


def base_rootfs(folder: Path) -> Path:
    """Build a minimal Debian with Python and git as a tar, once. Requires root and the package mmdebstrap."""
    target = folder / "debian.tar"
    if not target.exists():
        partial = target.with_suffix(".partial.tar")
        subprocess.run([_SYSTEM, "mmdebstrap:mmdebstrap"], check=True)
        lean = [f"--dpkgopt={option}" for option in _LEAN]
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", *lean]
        print("making a Debian root file system (a minute or two) …", flush=True)
        subprocess.run([*command, "bookworm", str(partial)], check=True)
        partial.rename(target)
    return target


def import_base(client: docker.DockerClient, tar: Path) -> None:
    """Import the root file system as an image with one layer."""
    repository, tag = BASE.split(":")
    changes = ["ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "CMD /bin/bash"]
    client.api.import_image_from_file(str(tar), repository=repository, tag=tag, changes=changes)


def exists(client: docker.DockerClient, image: str) -> bool:
    """Return whether the daemon has the image."""
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        return False
    return True


def build(client: docker.DockerClient, image: str, tree: Path) -> None:
    """Build an image of the base and the files below ``tree``, owned by root."""
    context = io.BytesIO()

    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        return info

    with tarfile.open(fileobj=context, mode="w") as tar:
        text = f"FROM {BASE}\nCOPY rootfs/ /\nWORKDIR /testbed\n".encode()
        header = tarfile.TarInfo("Dockerfile")
        header.size = len(text)
        tar.addfile(header, io.BytesIO(text))
        tar.add(tree, "rootfs", filter=owned)
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=image, rm=True, network_mode="none")


def observed(client: docker.DockerClient, image: str, script: str) -> str:
    """Return the output of ``script`` in a container without network; its exit status is ignored."""
    container = client.containers.run(image, ["bash", "-c", script], network_mode="none", detach=True)
    try:
        container.wait(timeout=600)
        output: bytes = container.logs()
        return output.decode()
    finally:
        container.remove(force=True)


def main() -> int:
    """Build images and rows; return 1 with a line on stderr if this machine cannot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the rows; also keeps what was downloaded")
    parser.add_argument("--base", type=Path, help="tar of a root file system with Python 3 and git")
    parser.add_argument("--docker", help="address of the daemon (default: DOCKER_HOST, else the system's)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    host = options.docker or os.environ.get("DOCKER_HOST")
    try:
        client = docker.DockerClient(base_url=host, version="auto", timeout=600)
        images = known(client, options.out) or make(client, options.out, options.base)
    except (docker.errors.DockerException, subprocess.CalledProcessError) as error:
        print(f"the example images cannot be built here: {error}", file=sys.stderr)
        return 1
    print(json.dumps(images))
    return 0


def known(client: docker.DockerClient, out: Path) -> dict[str, str]:
    """Return the images of an earlier call, if daemon and folder are complete."""
    try:
        images: dict[str, str] = json.loads((out / "images.json").read_text())
    except FileNotFoundError:
        return {}
    return images if all(exists(client, image) for image in images.values()) else {}


def make(client: docker.DockerClient, out: Path, base: Path | None) -> dict[str, str]:
    """Build what is missing, observe the tests in the images, write the rows."""
    if not exists(client, BASE):
        import_base(client, base or base_rootfs(out))
    source = layout.fetch(out / "source")
    images = {
        "r2e": f"trainyard/parse_final:{source.new_commit}",
        "swe": f"sweb.eval.x86_64.{source.instance_id}:latest",
    }
    makers = {"r2e": layout.r2e_tree, "swe": layout.swe_tree}
    for kind, image in images.items():
        if not exists(client, image):
            print(f"building {image} …", flush=True)
            build(client, image, makers[kind](source, out / f"tree-{kind}"))

    def run(kind: str, script: str) -> str:
        return observed(client, images[kind], script)

    for name, row in (
        ("r2e_gym", rows.r2e_row(source, images["r2e"], run)),
        ("swe_bench", rows.swe_row(source, images["swe"], run)),
    ):
        (out / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (out / "images.json").write_text(json.dumps(images, indent=2) + "\n")  # last: marks completeness
    return images


if __name__ == "__main__":
    sys.exit(main())

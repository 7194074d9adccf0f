"""Checks of the build steps that the Docker daemon reports: images must be of listed registries."""

from __future__ import annotations

import pytest

from engine.errors import ImageError
from engine.sandbox.docker.builds import _Steps


def steps(*instructions: str, registries: tuple[str, ...] = ("ghcr.io",)) -> _Steps:
    checked = _Steps("dockerfile:0", registries)
    for number, instruction in enumerate(instructions, start=1):
        checked.check(f"Step {number}/{len(instructions)} : {instruction}\n")
        checked.check(" ---> 0123456789ab\n")
    return checked


@pytest.mark.parametrize(
    ("instructions", "reason"),
    [
        (["FROM evil.example/a:1"], "'evil.example/a:1' is from 'evil.example'"),
        (["FROM --platform=linux/amd64 python:3 As x"], "is from 'docker.io'"),
        (["FROM 3"], "is from 'docker.io'"),
        (["FROM ghcr.io/a", "COPY --chown=1 --from=evil.example/a /x /x"], "is from 'evil.example'"),
        (["ARG IMAGE=evil.example/a", "FROM ${IMAGE}"], "has a variable"),
        (["FROM ghcr.io/a AS", "RUN true"], "could not be read"),
        (["FROM ghcr.io/a AS evil.example/x"], "could not be read"),
        (["FROM ghcr.io/a", "ONBUILD COPY --from=evil.example/a /x /x"], "is from 'evil.example'"),
        (["FROM ghcr.io/a", "COPY --fr\\om=evil.example/a /x /x"], "quotes in a flag"),
        (["FROM ghcr.io/a", "COPY --chown=1 --fr'om'=evil.example/a /x /x"], "quotes in a flag"),
        (["FROM ghcr.io/a AS python", "COPY --from=python / /"], "is from 'docker.io'"),
        (["FROM ghcr.io/a", "ONBUILD\tcopy --from=evil.example/a / /"], "is from 'evil.example'"),
    ],
)
def test_build_stops_at_images_of_unlisted_registries(instructions: list[str], reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        steps(*instructions)


@pytest.mark.parametrize("printed", ["Step 1/1 : FROM a AS b", "Step 3/3 : FROM a", "Step 2/2 : RUN true"])
def test_build_stops_at_output_that_imitates_steps(printed: str) -> None:
    build = _Steps("dockerfile:0", ("docker.io",))

    def follow() -> None:
        for output in ("Step 1/3 : FROM a", "Step 2/3 : RUN echo", printed, "Step 3/3 : COPY --from=b / /"):
            build.check(output)

    with pytest.raises(ImageError, match="imitates steps"):
        follow()


def test_build_accepts_listed_images_stages_and_scratch() -> None:
    build = [
        "FROM GHCR.io/a:1 AS First",
        "FROM scratch",
        "FROM first",
        "COPY --from=FIRST /a /b",
        "COPY --from=0 / /",
        'COPY ["lib/foo--bar.js", "/x"]',
        'ONBUILD RUN tool --from=x --config-settings="a=b"',
    ]
    assert steps(*build).has_begun


def test_build_stops_at_triggers_of_a_base_image() -> None:
    build = steps("FROM ghcr.io/a")
    with pytest.raises(ImageError, match="ONBUILD triggers"):
        build.check("# Executing 2 build triggers\n")
    steps("FROM evil.example/a", registries=("*",)).check("# Executing 1 build trigger\n")


def test_build_begins_with_its_first_from_step() -> None:
    assert not steps("RUN echo FROM ghcr.io/a").has_begun
    assert steps("FROM evil.example/a", registries=("*",)).has_begun

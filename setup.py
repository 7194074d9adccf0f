"""Packages of the wheel; `pyproject.toml` has everything else."""

from setuptools import find_namespace_packages, setup

# At the repository's root, and below webapp/ in a wheel: webapp/settings.py finds both.
ASSETS = {"webapp.templates": "templates", "webapp.static": "static"}

setup(
    packages=[
        *find_namespace_packages(
            include=["engine", "engine.*", "webapp", "webapp.*", "workers", "workers.*"],
            exclude=["*.__pycache__", "*.__pycache__.*"],
        ),
        *ASSETS,
    ],
    package_dir=ASSETS,
    package_data={"": ["*"], **{package: ["**/*"] for package in ASSETS}},
)

"""Maps the three rooms into the import package ``resispec``; everything else is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

ROOMS = ("server", "engine", "models")


def packages() -> list[str]:
    """Every folder of the rooms, so that a new sub-package cannot be left out of the wheel."""
    exclude = ["*.__pycache__", "*.__pycache__.*"]
    return [
        f"resispec.{name}"
        for room in ROOMS
        for name in find_namespace_packages(".", include=[room, f"{room}.*"], exclude=exclude)
    ]


setup(
    packages=packages(),
    package_dir={f"resispec.{room}": room for room in ROOMS},
    package_data={
        "": ["py.typed"],
        "resispec.models": ["assets/**"],
        "resispec.server": ["page/**", "templates/**"],
    },
)

"""Maps the three rooms into the import package ``resispec``; everything else is in pyproject.toml.

Kernels for CPUs are built too where there is a C++ compiler; without one the package works all the same.
"""

import platform
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup

KERNELS = {"models.native": "models/native/kernels.cpp", "engine.native": "engine/native/verify.cpp"}
ROOMS = ("server", "engine", "models")
# What is built for each kind of machine: models/native/library.py chooses when it runs.
VARIANTS = {
    "x86_64": {
        "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"],
        "avx2": ["-mavx2", "-mfma"],
    },
}


def packages() -> list[str]:
    """Every folder of the rooms, so that a new sub-package cannot be left out of the wheel."""
    exclude = ["*.__pycache__", "*.__pycache__.*"]
    return [
        f"resispec.{name}"
        for room in ROOMS
        for name in find_namespace_packages(".", include=[room, f"{room}.*"], exclude=exclude)
    ]


def kernels() -> list[Extension]:
    """Plain shared libraries, which need none of Python's headers. OpenMP is torch's, so it is not linked."""
    flags = ["-std=gnu++17", "-O3", "-fopenmp", "-Wno-psabi"]
    return [
        Extension(
            f"resispec.{package}._{variant}",
            [source],
            depends=sorted(str(path) for room in KERNELS for path in Path(*room.split(".")).glob("*.h")),
            language="c++",
            extra_compile_args=flags + own,
            optional=True,
        )
        for package, source in KERNELS.items()
        for variant, own in VARIANTS.get(platform.machine(), {"base": []}).items()
    ]


setup(
    packages=packages(),
    package_dir={f"resispec.{room}": room for room in ROOMS},
    ext_modules=kernels(),
    package_data={
        "": ["py.typed"],
        "resispec.models": ["assets/**"],
        "resispec.engine.native": ["*.cpp", "*.h"],
        "resispec.models.native": ["*.cpp", "*.h"],
        "resispec.server": ["page/**", "templates/**"],
    },
)

"""Drives CMake with ninja; the source list is CMakeLists.txt."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures and builds every CMake target: in place for an editable install, into build_lib for a wheel."""

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            output_dir, build_dir = ROOT / "python" / "cudaprefill", ROOT / "build" / "cmake"
        else:
            output_dir, build_dir = Path(self.build_lib).resolve() / "cudaprefill", Path(self.build_temp).resolve()
        configure = [
            *(cmake_command(), "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja"),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCUDAPREFILL_OUTPUT_DIR={output_dir}",
            "-DCUDAPREFILL_BUILD_TESTS=OFF",
        ]
        subprocess.run(configure, check=True)
        jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
        subprocess.run([cmake_command(), "--build", str(build_dir), "-j", jobs], check=True)

    def get_outputs(self) -> list[str]:
        return [str(path) for path in (Path(self.build_lib) / "cudaprefill").glob("*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


def cmake_command() -> str:
    """The cmake of this Python environment first, so that a bare machine needs none of its own."""
    beside_python = Path(sys.executable).parent / "cmake"
    found = str(beside_python) if beside_python.exists() else shutil.which("cmake")
    if not found:
        sys.exit("cudaprefill: cmake was found neither beside this Python nor on PATH: pip install cmake ninja")
    return found


setup(
    packages=find_packages("python") + find_packages("tui"),
    package_dir={"cudaprefill": "python/cudaprefill", "cudaprefill_tui": "tui/cudaprefill_tui"},
    package_data={"cudaprefill": ["py.typed", "*.pyi"], "cudaprefill_tui": ["py.typed", "*.tcss"]},
    ext_modules=[Extension("cudaprefill._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)

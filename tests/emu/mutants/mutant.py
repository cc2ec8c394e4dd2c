"""A kernel with one fault, as data, and how its source is written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """`original` stands once in the file, under csrc/cuda and `folder`; `caught_by` is a case of test_mutants.py."""

    name: str
    file: str
    original: str
    replacement: str
    caught_by: str
    report: str  # a regular expression that the failure matches
    folder: str
    instance: str  # the source that is compiled anew, generated or in `folder`; all others are of the real kernels

    def write(self, source_root: Path, directory: Path, generated: Path) -> None:
        """Writes a copy of csrc/cuda with the fault in it under `directory`, and beside it the source to compile."""
        original_tree, tree = source_root / "csrc/cuda", directory / "csrc/cuda"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(original_tree, tree)
        path = tree / self.folder / self.file
        text = path.read_text()
        places = text.count(self.original)
        if places != 1:
            raise SystemExit(
                f"mutant {self.name}: {self.folder}/{self.file} has {places} places, not 1, that read\n{self.original}"
            )
        path.write_text(text.replace(self.original, self.replacement))
        instance = generated / f"{self.instance}.cu"
        shutil.copy(instance if instance.exists() else tree / self.folder / instance.name, directory)
        shutil.rmtree(tree / "ptx")  # the machine has its own

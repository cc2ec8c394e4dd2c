"""What CMake asks of the mutants, in the root of the sources; it builds each from a copy of csrc/cuda with its fault.

python -m tests.emu.mutants list               family/name/instance of each
python -m tests.emu.mutants write NAME DIRECTORY GENERATED
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import FAMILIES, MUTANTS

match sys.argv[1:]:
    case ["list"]:
        sys.stdout.write(";".join(f"{f}/{m.name}/{m.instance}" for f, mutants in FAMILIES.items() for m in mutants))
    case ["write", name, directory, generated]:
        MUTANTS[name].write(Path(), Path(directory), Path(generated))
    case _:
        sys.exit(__doc__)

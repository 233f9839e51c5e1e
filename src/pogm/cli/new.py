"""``pogm new``: files of a new algorithm."""

import keyword
import os
import re
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar

from pogm._system.errors import UsageError
from pogm._system.terminal import print_line
from pogm.cli.parser import Command, argument, option


@dataclass(frozen=True, kw_only=True)
class Algorithm(Command):
    """Write an algorithm that works, and its test, to start from."""

    examples: ClassVar[str] = "pogm new algorithm WorstGap\npogm new algorithm WorstGap --out methods"

    name: str = argument("Name of the class, such as WorstGap. The files are worst_gap.py and test_worst_gap.py.")
    out: Path = option("Folder of the two files (default: the current folder).", Path(), metavar="FOLDER")

    def run(self) -> int:
        """Write the two files; existing files are not replaced."""
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", self.name):
            raise UsageError(
                f"Expected the name of a class, letters and digits with a capital first; found {self.name!r}. "
                "For example: WorstGap"
            )
        module = module_name(self.name)
        if module in sys.stdlib_module_names or module == "pogm" or keyword.iskeyword(module):
            raise UsageError(
                f"Expected a name that is not taken by Python or pogm; found {self.name!r}, whose file would be "
                f"{module}.py. Choose another name."
            )
        paths = {self.out / f"{module}.py": "algorithm.txt", self.out / f"test_{module}.py": "algorithm_test.txt"}
        if found := [str(path) for path in paths if os.path.lexists(path)]:
            raise UsageError(f"Expected to write new files; found {', '.join(found)}. Choose another name or --out.")
        self.out.mkdir(parents=True, exist_ok=True)
        for path, template in paths.items():
            text = (resources.files("pogm.cli") / "templates" / template).read_text(encoding="utf-8")
            with open(path, "x", encoding="utf-8") as file:  # never follows a link
                file.write(text.replace("CLASS_NAME", self.name).replace("module_name", module))
            print_line(f"Wrote {path}")
        first = "" if self.out == Path() else f"cd {self.out} && "
        run = f"pogm run --algorithm {module}:{self.name} --dataset RotatedDigits --test-domain 75 --out runs/{module}"
        print_line(f"Test it:   {first}python -m pytest test_{module}.py")
        print_line(f"Train it:  {first}{run}")
        print_line("Any command that takes --algorithm or --algorithms takes this name, in the folder of the file.")
        return 0


@dataclass(frozen=True, kw_only=True)
class New(Command):
    """Create the files of a new algorithm."""

    examples: ClassVar[str] = "pogm new algorithm WorstGap"
    commands: ClassVar[tuple[type[Command], ...]] = (Algorithm,)


def module_name(name: str) -> str:
    """Return the name of a class as the name of a file: GroupDRO becomes group_dro."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


COMMAND = New

"""Check of a dataset's folder: decode every image and list everything that is wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pogm._system.files import digest, readable_json
from pogm.data.images.cache import BadFile
from pogm.data.images.class_folders import ImageFile, ImageTree, list_tree
from pogm.data.images.decode import BadImage, decode
from pogm.data.images.listing import printable
from pogm.data.images.parallel import Progress, map_in_order, no_progress

LISTED = 20  # findings of a kind that the text names; the JSON names all


@dataclass(frozen=True)
class Findings:
    """Result of a check. A group is a list of files with the same pixels, in whatever format they are saved."""

    tree: ImageTree
    size: int  # bytes of all files
    bad: list[BadFile]
    across_domains: list[list[str]]  # groups with files of several domains: a test domain would not be unseen
    across_classes: list[list[str]]  # groups with files of several classes: all but one are mislabelled
    repeated: int  # files with the same pixels as another file of the same domain and class

    @property
    def clean(self) -> bool:
        """True if nothing was found that harms an experiment. Repetitions within a class do not."""
        problems = (self.bad, self.across_domains, self.across_classes, self.tree.problems, self.tree.bad_links)
        return not any(problems)

    def text(self) -> str:
        """Return the findings as text."""
        tree = self.tree
        kinds = Counter(bad.kind for bad in self.bad)
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        bad = (f"{printable(bad.path)}: {bad.kind}: {printable(bad.reason)}" for bad in self.bad)
        parts = [
            f"{printable(str(tree.root))}: {len(tree.files)} files of {self.size} bytes, "
            f"{len(tree.domains)} domains, {len(tree.classes)} classes\n\n{tree.table()}",
            _format_section(f"bad images ({counted})", bad),
            _format_section("images in several domains", map(_format_group, self.across_domains)),
            _format_section("images in several classes", map(_format_group, self.across_classes)),
            _format_section(
                "classes that differ", (f"{printable(name)}: {problem}" for name, problem in tree.problems.items())
            ),
            _format_section("links not followed", (f"{printable(link.path)} {link.reason}" for link in tree.bad_links)),
            f"{self.repeated} files repeat another one of their class and domain." if self.repeated else "",
            "Nothing is wrong." if self.clean else "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def json(self) -> str:
        """Return the findings as JSON."""
        tree = self.tree
        content = {
            "clean": self.clean,
            "files": len(tree.files),
            "bytes": self.size,
            "domains": tree.domains,
            "classes": tree.classes,
            "counts": tree.counts,
            "bad": [bad._asdict() for bad in self.bad],
            "across_domains": self.across_domains,
            "across_classes": self.across_classes,
            "repeated": self.repeated,
            "class_problems": tree.problems,
            "links": [link._asdict() for link in tree.bad_links],
        }
        return readable_json(content).decode()


def check(root: Path, *, follow_outside: bool = False, progress: Progress = no_progress) -> Findings:
    """Decode every image of a dataset's folder, on all cores, and compare their pixels.

    Args:
        root: Folder of the domains.
        follow_outside: Follow links that lead out of the root.
        progress: Shows how many files were decoded.
    """
    tree = list_tree(root, follow_outside=follow_outside)
    size, bad = 0, []
    same_pixels: dict[str, list[ImageFile]] = defaultdict(list)
    results = map_in_order(lambda file: (file, _check_file(root, file.path)), tree.files)
    for file, result in progress(results, len(tree.files)):
        size += result.size
        if result.error is not None:
            bad.append(BadFile(file.path, result.error.kind, result.error.reason))
        else:
            same_pixels[result.pixel_hash].append(file)
    groups = [files for files in same_pixels.values() if len(files) > 1]
    within = Counter((number, file.domain, file.label) for number, files in enumerate(groups) for file in files)
    return Findings(
        tree=tree,
        size=size,
        bad=bad,
        across_domains=[_paths(files) for files in groups if len({file.domain for file in files}) > 1],
        across_classes=[_paths(files) for files in groups if len({file.label for file in files}) > 1],
        repeated=sum(count - 1 for count in within.values()),
    )


class _CheckedFile(NamedTuple):
    """Result for one file: its size in bytes, and the hash of its pixels or an error."""

    size: int
    pixel_hash: str = ""
    error: BadImage | None = None


def _check_file(root: Path, path: str) -> _CheckedFile:
    try:
        content = (root / path).read_bytes()
    except OSError as error:
        return _CheckedFile(0, error=BadImage(path, "unreadable", error.strerror or str(error)))
    try:
        pixels = decode(content, path)
    except BadImage as error:
        return _CheckedFile(len(content), error=error)
    return _CheckedFile(len(content), digest(repr(pixels.shape).encode() + pixels.tobytes()))


def _paths(files: Sequence[ImageFile]) -> list[str]:
    return [file.path for file in files]


def _format_group(paths: Sequence[str]) -> str:
    return " = ".join(map(printable, paths))


def _format_section(title: str, lines: Iterable[str]) -> str:
    listed = list(lines)
    if not listed:
        return ""
    more = [f"and {len(listed) - LISTED} more; the JSON lists all"] if len(listed) > LISTED else []
    return "\n".join([f"{len(listed)} {title}:", *(f"  {line}" for line in [*listed[:LISTED], *more])])

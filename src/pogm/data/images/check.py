"""A dataset's folder, examined: every image decoded, every doubt listed."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pogm._system.files import digest, readable_json
from pogm.data.images.cache import Bad
from pogm.data.images.class_folders import File, Tree, list_tree
from pogm.data.images.decode import BadImage, decode
from pogm.data.images.names import shown
from pogm.data.images.parallel import Progress, in_order, unseen

LISTED = 20  # findings of a kind that the text names; the JSON names all


@dataclass(frozen=True)
class Findings:
    """What was found in a dataset's folder. Groups are paths of files with the same pixels, however they are saved."""

    tree: Tree
    size: int  # bytes of all files
    bad: list[Bad]
    across_domains: list[list[str]]  # groups with files of several domains: a test domain would not be unseen
    across_classes: list[list[str]]  # groups with files of several classes: all but one are mislabelled
    repeated: int  # files with the pixels of another one of the same domain and class

    @property
    def clean(self) -> bool:
        """Whether nothing was found that harms an experiment; repetitions within a class do not."""
        problems = (self.bad, self.across_domains, self.across_classes, self.tree.problems, self.tree.bad_links)
        return not any(problems)

    def text(self) -> str:
        """For people."""
        tree = self.tree
        kinds = Counter(bad.kind for bad in self.bad)
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        parts = [
            f"{shown(str(tree.root))}: {len(tree.files)} files of {self.size} bytes, "
            f"{len(tree.domains)} domains, {len(tree.classes)} classes\n\n{tree.table()}",
            _section(f"bad images ({counted})", (f"{shown(b.path)}: {b.kind}: {shown(b.reason)}" for b in self.bad)),
            _section("images in several domains", map(_group, self.across_domains)),
            _section("images in several classes", map(_group, self.across_classes)),
            _section("classes that differ", (f"{shown(name)}: {said}" for name, said in tree.problems.items())),
            _section("links not followed", (f"{shown(link.path)} {link.reason}" for link in tree.bad_links)),
            f"{self.repeated} files repeat another one of their class and domain." if self.repeated else "",
            "Nothing is wrong." if self.clean else "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def json(self) -> str:
        """For machines."""
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


def check(root: Path, *, follow_outside: bool = False, progress: Progress = unseen) -> Findings:
    """Decode every image of a dataset's folder, by all cores, and compare their pixels."""
    tree = list_tree(root, follow_outside=follow_outside)
    size, bad = 0, []
    alike: dict[str, list[File]] = defaultdict(list)
    seen = in_order(lambda file: (file, _look(root, file.path)), tree.files)
    for file, look in progress(seen, len(tree.files)):
        size += look.size
        if look.error is not None:
            bad.append(Bad(file.path, look.error.kind, look.error.reason))
        else:
            alike[look.pixels].append(file)
    groups = [files for files in alike.values() if len(files) > 1]
    within = Counter((number, file.domain, file.label) for number, files in enumerate(groups) for file in files)
    return Findings(
        tree=tree,
        size=size,
        bad=bad,
        across_domains=[_paths(files) for files in groups if len({file.domain for file in files}) > 1],
        across_classes=[_paths(files) for files in groups if len({file.label for file in files}) > 1],
        repeated=sum(count - 1 for count in within.values()),
    )


class _Look(NamedTuple):
    """What a file gave: its bytes, and the hash of its pixels or an error."""

    size: int
    pixels: str = ""
    error: BadImage | None = None


def _look(root: Path, path: str) -> _Look:
    try:
        content = (root / path).read_bytes()
    except OSError as error:
        return _Look(0, error=BadImage(path, "unreadable", error.strerror or str(error)))
    try:
        pixels = decode(content, path)
    except BadImage as error:
        return _Look(len(content), error=error)
    return _Look(len(content), digest(repr(pixels.shape).encode() + pixels.tobytes()))


def _paths(files: Sequence[File]) -> list[str]:
    return [file.path for file in files]


def _group(paths: Sequence[str]) -> str:
    return " = ".join(map(shown, paths))


def _section(title: str, lines: Iterable[str]) -> str:
    listed = list(lines)
    if not listed:
        return ""
    more = [f"and {len(listed) - LISTED} more; the JSON lists all"] if len(listed) > LISTED else []
    return "\n".join([f"{len(listed)} {title}:", *(f"  {line}" for line in [*listed[:LISTED], *more])])

"""Check of a dataset's folder: decode every image and list everything that is wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pogm._system.files import digest
from pogm._system.terminal import printable
from pogm.data.images.cache import BadFile
from pogm.data.images.class_folders import ImageFile, ImageTree
from pogm.data.images.decode import BadImage, decode, is_dicom, read_header, read_values
from pogm.data.images.dicom import read_dicom
from pogm.data.images.duplicates import Thumbnail, find_near_duplicates, reduce_image
from pogm.data.images.image_listing import Listing
from pogm.data.images.intensity import Intensity, Levels, measure_levels, resolve
from pogm.data.images.metadata import SPLITS
from pogm.data.images.parallel import Progress, map_in_order, no_progress

LISTED = 20  # findings of a kind that the text names; the JSON names all
LEAST_IMAGES = 5  # of a domain: a fifth of them is held out for validation


class WideImages(NamedTuple):
    """Images with more than 8 bits per channel."""

    images: int  # number of them
    low: int  # smallest intensity
    high: int  # largest intensity
    intensity: str  # scaling to 8 bits that ``intensity=auto`` gives
    windowed: int  # DICOM files with a display window, which ``intensity=auto`` uses
    windows: int  # different display windows

    def text(self) -> str:
        """Return a sentence about them."""
        bits = "signed" if self.low < 0 else f"{max(self.high.bit_length(), 1)} bits"
        _, low, high = self.intensity.split(":")
        return (
            f"{self.images} images have more than 8 bits per channel; their values {self.low} to {self.high} ({bits}) "
            f"are scaled to 8 bits by intensity=auto: {low} becomes 0, {high} becomes 255. To choose the range: --set "
            f"intensity=window:LOW:HIGH{self._describe_windows()}"
        )

    def _describe_windows(self) -> str:
        if not self.windowed:
            return ""
        return (
            f"\n{self.windowed} of them are DICOM files with {self.windows} different display windows. intensity=auto "
            "uses these windows instead, so the same tissue may have different grey levels if they differ."
        )


@dataclass(frozen=True)
class Findings:
    """Result of a check. A group is a list of files with the same pixels, in whatever format they are saved.

    Near-duplicates are found by a hash of reduced images and may be wrong. They do not make a dataset unclean.
    """

    tree: ImageTree
    size: int  # bytes of all files
    bad: list[BadFile]
    across_domains: list[list[str]]  # groups with files of several domains: a test domain would not be unseen
    across_classes: list[list[str]]  # groups with files of several classes: all but one are mislabelled
    repeats: list[list[str]]  # groups of files of the same domain and class
    near_across_domains: list[list[str]]  # groups of similar images of several domains
    near_within_domains: list[list[str]]  # similar images of one domain that may be, or are, in several splits
    wide: WideImages | None  # images with more than 8 bits per channel

    @property
    def clean(self) -> bool:
        """True if nothing was found that harms an experiment. Repetitions within a class do not."""
        problems = (self.bad, self.across_domains, self.across_classes, self.tree.problems, self.tree.bad_links)
        return not any(problems)

    @property
    def repeated(self) -> int:
        """Number of files with the same pixels as another file of the same domain and class."""
        return sum(len(paths) - 1 for paths in self.repeats)

    @property
    def small(self) -> list[str]:
        """Domains with too few images to be split into a training and a validation part."""
        counts = zip(*self.tree.counts, strict=True)
        return [name for name, count in zip(self.tree.domains, counts, strict=True) if sum(count) < LEAST_IMAGES]

    def text(self) -> str:
        """Return the findings as text."""
        tree = self.tree
        kinds = Counter(bad.kind for bad in self.bad)
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        bad = (f"{printable(bad.path)}: {bad.kind}: {printable(bad.reason)}" for bad in self.bad)
        parts = [
            f"{printable(str(tree.root))}: {len(tree.files)} files, {self.size / 1e6:.1f} MB, "
            f"{len(tree.domains)} domains, {len(tree.classes)} classes\n\n{tree.table()}",
            _format_section(f"bad images ({counted})", bad),
            _format_section("images in several domains", map(_format_group, self.across_domains)),
            _format_section("images in several classes", map(_format_group, self.across_classes)),
            _format_section(
                "classes that differ", (f"{printable(name)}: {problem}" for name, problem in tree.problems.items())
            ),
            _format_section("links not followed", (f"{printable(link.path)} {link.reason}" for link in tree.bad_links)),
            _format_section(
                f"groups of equal files in one class and domain ({self.repeated} files repeat another one)",
                map(_format_group, self.repeats),
            ),
            _format_section("near-duplicates in several domains", map(_format_near, self.near_across_domains)),
            _format_section(self._within_title(), map(_format_near, self.near_within_domains)),
            _describe_groups(tree),
            self.wide.text() if self.wide else "",
            self._describe_size(),
            self._conclusion(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _within_title(self) -> str:
        if self.tree.splits:
            return "near-duplicates in several splits of a domain"
        return "near-duplicates in one domain, which a random split may put into both parts"

    def _describe_size(self) -> str:
        """Return a sentence about a folder that is too small for training; empty if it is large enough."""
        missing = [f"{LEAST_IMAGES} images in {printable(name)}" for name in self.small]
        missing += ["two classes"] if len(self.tree.classes) < 2 else []
        return f"Too small for training, which needs at least {', '.join(missing)}." if missing else ""

    def _conclusion(self) -> str:
        if not self.clean:
            return "\n".join(["To do:", *(f"  {text}" for found, text in self._advice() if found)])
        if self._describe_size():
            return ""
        similar = ["the equal files"] if self.repeats else []
        similar += ["the near-duplicates"] if self.near_across_domains or self.near_within_domains else []
        return f"No errors; look at {' and '.join(similar)}." if similar else "Nothing is wrong."

    def _advice(self) -> list[tuple[Any, str]]:
        """Return each kind of finding, and what to do about it."""
        return [
            (self.bad, "Replace or remove the bad images, or leave them out of training: --on-bad-image skip."),
            (self.across_domains, "Keep an image in one domain only; otherwise a held-out domain is not unseen."),
            (self.across_classes, "Decide which class is right for an image that is in several classes."),
            (
                self.tree.problems,
                "Rename class folders that are misspelt, or write classes.csv (columns from, to). A class that a "
                "domain really does not have may stay.",
            ),
            (self.tree.bad_links, "Replace the links by files."),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the findings as a JSON object."""
        tree = self.tree
        return {
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
            "repeats": self.repeats,
            "near_across_domains": self.near_across_domains,
            "near_within_domains": self.near_within_domains,
            "wide": self.wide._asdict() if self.wide else None,
            "class_problems": tree.problems,
            "small_domains": self.small,
            "links": [link._asdict() for link in tree.bad_links],
        }


def check(source: Path | Listing, *, progress: Progress = no_progress) -> Findings:
    """Decode every image of a dataset's folder, on all cores, and compare their pixels and their reduced images.

    Args:
        source: Folder of the domains, or the listing of a folder or of a metadata file.
        progress: Shows how many folders were listed, and how many files were decoded.
    """
    tree = (Listing(source) if isinstance(source, Path) else source).read(strict=False, progress=progress)
    root = tree.root
    size, bad = 0, []
    same_pixels: dict[str, list[ImageFile]] = defaultdict(list)
    thumbnails: dict[str, Thumbnail] = {}  # by hash of the pixels
    wide: list[_Range] = []
    results = map_in_order(lambda file: (file, _check_file(root, file.path)), tree.files)
    for file, result in progress(results, len(tree.files)):
        size += result.size
        if isinstance(result.found, BadImage):
            bad.append(BadFile(file.path, result.found.kind, result.found.reason))
            continue
        same_pixels[result.found.pixel_hash].append(file)
        thumbnails[result.found.pixel_hash] = result.found.thumbnail
        if result.found.range is not None:
            wide.append(result.found.range)
    groups = [files for files in same_pixels.values() if len(files) > 1]
    within: dict[tuple[int, int, int], list[ImageFile]] = defaultdict(list)
    for number, files in enumerate(groups):
        for file in files:
            within[number, file.domain, file.label].append(file)
    first = [files[0] for files in same_pixels.values()]  # of equal images, one is enough
    near = [[first[number] for number in group] for group in find_near_duplicates(list(thumbnails.values()))]
    units = _find_units(tree)
    alike = near + groups if units else near  # without units, equal images of a domain are counted as repeated
    return Findings(
        tree=tree,
        size=size,
        bad=bad,
        across_domains=[_paths(files) for files in groups if len({file.domain for file in files}) > 1],
        across_classes=[_paths(files) for files in groups if len({file.label for file in files}) > 1],
        repeats=[_paths(files) for files in within.values() if len(files) > 1],
        near_across_domains=[_paths(files) for files in near if len({file.domain for file in files}) > 1],
        near_within_domains=[_paths(files) for files in alike if _can_be_divided(files, units)],
        wide=_summarize(wide),
    )


def _find_units(tree: ImageTree) -> dict[str, str]:
    """Return the given split or the group of each path; empty if there are none. A unit is never divided by a split."""
    values = tree.splits or tree.groups
    return {file.path: value for file, value in zip(tree.files, values, strict=True)} if values else {}


def _can_be_divided(files: Sequence[ImageFile], units: dict[str, str]) -> bool:
    """Return True if images of one domain can be in several splits of it."""
    return len({file.domain for file in files}) == 1 and len({units.get(file.path, file.path) for file in files}) > 1


def _describe_groups(tree: ImageTree) -> str:
    """Return lines about the groups and the given splits of a metadata file."""
    lines = []
    if tree.groups:
        domains = defaultdict(set)
        for file, group in zip(tree.files, tree.groups, strict=True):
            domains[group].add(file.domain)
        shared = sorted(group for group, found in domains.items() if len(found) > 1)
        named = ", ".join(map(printable, shared[:LISTED])) + (", ..." if len(shared) > LISTED else "")
        note = f"; {len(shared)} of them have images in several domains: {named}" if shared else ""
        lines.append(f"{len(domains)} groups{note}.")
    if tree.splits:
        counts = Counter(tree.splits)
        lines.append(
            "Given splits: " + ", ".join(f"{counts[split]} {split}" for split in SPLITS if counts[split]) + "."
        )
    return "\n".join(lines)


class _Range(NamedTuple):
    """Smallest and largest intensity of an image, its levels, and the display window of a DICOM file."""

    low: int
    high: int
    levels: Levels
    window: Any


class _Image(NamedTuple):
    """Facts about a decoded image."""

    pixel_hash: str
    thumbnail: Thumbnail
    range: _Range | None = None  # of an image with more than 8 bits per channel


class _CheckedFile(NamedTuple):
    """Result for one file: its size in bytes, and the facts about its image or an error."""

    size: int
    found: _Image | BadImage


def _check_file(root: Path, path: str) -> _CheckedFile:
    try:
        content = (root / path).read_bytes()
    except OSError as error:
        return _CheckedFile(0, BadImage(path, "unreadable", error.strerror or str(error)))
    try:
        return _CheckedFile(len(content), _check_image(content, path))
    except BadImage as error:
        return _CheckedFile(len(content), error)


def _check_image(content: bytes, path: str) -> _Image:
    if not read_header(content, path).is_wide:
        pixels = decode(content, path)
        return _Image(digest(repr(pixels.shape).encode() + pixels.tobytes()), reduce_image(pixels))
    values = read_values(content, path)  # images of 12 bits may be equal in their upper 8 of 16 bits
    pixels = decode(content, path, intensity=Intensity("image"))
    pixel_hash = digest(repr(values.shape).encode() + values.astype("<f8").tobytes())
    window = read_dicom(content, path).window if is_dicom(content) else None
    found = _Range(int(values.min()), int(values.max()), measure_levels(values), window)
    return _Image(pixel_hash, reduce_image(pixels), found)


def _summarize(ranges: Sequence[_Range]) -> WideImages | None:
    if not ranges:
        return None
    intensity = resolve(Intensity("auto"), [found.levels for found in ranges])
    low, high = min(found.low for found in ranges), max(found.high for found in ranges)
    windows = [found.window for found in ranges if found.window is not None]
    return WideImages(len(ranges), low, high, str(intensity), len(windows), len(set(windows)))


def _paths(files: Sequence[ImageFile]) -> list[str]:
    return [file.path for file in files]


def _format_group(paths: Sequence[str]) -> str:
    return " = ".join(map(printable, paths))


def _format_near(paths: Sequence[str]) -> str:
    more = f" ~ and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    return " ~ ".join(map(printable, paths[:LISTED])) + more


def _format_section(title: str, lines: Iterable[str]) -> str:
    listed = list(lines)
    if not listed:
        return ""
    more = [f"and {len(listed) - LISTED} more; the JSON lists all"] if len(listed) > LISTED else []
    return "\n".join([f"{len(listed)} {title}:", *(f"  {line}" for line in [*listed[:LISTED], *more])])

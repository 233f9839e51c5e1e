"""TerraIncognita (Beery et al., 2018): four locations and ten categories of the ECCV-18 camera traps.

The five annotation files of the release are merged: DomainBed's script once read a single file from elsewhere, and
copies of it that follow the release read these five. As in both, an image is put into the folder of every category that
it is annotated with: once per category, however many animals of it were marked, and into two folders where two kinds
were. An image that several files list takes the annotations of all of them.
"""

import json
from pathlib import Path
from typing import Any

from pogm._system.errors import DataError
from pogm.data.sources.layout import build, find, missing, unpack

DATASET = "TerraIncognita"
LOCATIONS = ("38", "43", "46", "100")
CATEGORIES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
IMAGES = "eccv_18_all_images_sm"
ANNOTATIONS = "eccv_18_annotation_files"
FILES = ("train", "cis_val", "cis_test", "trans_val", "trans_test")  # …_annotations.json


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/terra_incognita`` from the two archives of the release, or from their folders, in ``raw``."""
    roots = unpack(raw)
    place, annotated = find(roots, (IMAGES,)), find(roots, (ANNOTATIONS,))
    if place is None or annotated is None:
        raise missing(raw, (IMAGES, ANNOTATIONS))
    pictures = place / IMAGES
    there = {path.name: path for path in pictures.iterdir()}
    wanted = _wanted([annotated / ANNOTATIONS / f"{name}_annotations.json" for name in FILES])
    lost = sorted({name for _, _, name in wanted} - there.keys())
    if lost:
        raise DataError(
            f"Expected every annotated image in {pictures}; found {len(lost)} missing, such as {lost[0]!r}. "
            "Get the archive of images again."
        )
    seen = {location for location, _, _ in wanted} | {category for _, category, _ in wanted}
    absent = [name for name in (*LOCATIONS, *CATEGORIES) if name not in seen]
    if absent:
        raise DataError(
            f"Expected images of every category and location of the dataset; found none of {', '.join(absent)}. "
            "Get the archive of annotations again."
        )
    plan = {f"location_{location}/{category}/{name}": there[name] for location, category, name in sorted(wanted)}
    return build(out / "terra_incognita", plan)


def _wanted(files: list[Path]) -> set[tuple[str, str, str]]:
    """Location, category and file name of every image that belongs to the dataset."""
    names: dict[Any, str] = {}
    pictures: dict[Any, tuple[str, str]] = {}
    marks: set[tuple[Any, Any]] = set()
    for path in files:
        try:
            content = json.loads(path.read_bytes())
            names |= {item["id"]: item["name"] for item in content["categories"]}
            pictures |= {item["id"]: (str(item["location"]), str(item["file_name"])) for item in content["images"]}
            marks |= {(item["image_id"], item["category_id"]) for item in content["annotations"]}
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise DataError(
                f"Expected images, categories and annotations as JSON in {path}; "
                f"found {type(error).__name__}: {error}. Get the archive of annotations again."
            ) from error
    return {
        (pictures[image][0], names[category], pictures[image][1])
        for image, category in marks
        if image in pictures and pictures[image][0] in LOCATIONS and names.get(category) in CATEGORIES
    }

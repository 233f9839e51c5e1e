"""Preparation of TerraIncognita (Beery et al., 2018): four locations and ten categories of the ECCV-18 camera traps.

The five annotation files of the release are merged. (DomainBed's script read a single file from another source; copies
of it for this release read the five.) As in both, an image is put once into the folder of every category that it is
annotated with. If several files list an image, it has the annotations of all of them.
"""

import json
from pathlib import Path
from typing import Any

from pogm._system.errors import DataError
from pogm.data.sources.layout import find_parent, make_folder, missing_error, unpack

DATASET = "TerraIncognita"
LOCATIONS = ("38", "43", "46", "100")
CATEGORIES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
IMAGES = "eccv_18_all_images_sm"
ANNOTATIONS = "eccv_18_annotation_files"
FILES = ("train", "cis_val", "cis_test", "trans_val", "trans_test")  # …_annotations.json


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/terra_incognita`` from the two archives of the release, or from their folders, in ``raw``."""
    roots = unpack(raw)
    image_parent, annotation_parent = find_parent(roots, (IMAGES,)), find_parent(roots, (ANNOTATIONS,))
    if image_parent is None or annotation_parent is None:
        raise missing_error(raw, (IMAGES, ANNOTATIONS))
    pictures = image_parent / IMAGES
    paths = {path.name: path for path in pictures.iterdir()}
    wanted = _read_annotations([annotation_parent / ANNOTATIONS / f"{name}_annotations.json" for name in FILES])
    missing = sorted({name for _, _, name in wanted} - paths.keys())
    if missing:
        raise DataError(
            f"Expected every annotated image in {pictures}; found {len(missing)} missing, such as {missing[0]!r}. "
            "Get the archive of images again."
        )
    seen = {location for location, _, _ in wanted} | {category for _, category, _ in wanted}
    absent = [name for name in (*LOCATIONS, *CATEGORIES) if name not in seen]
    if absent:
        raise DataError(
            f"Expected images of every category and location of the dataset; found none of {', '.join(absent)}. "
            "Get the archive of annotations again."
        )
    plan = {f"location_{location}/{category}/{name}": paths[name] for location, category, name in sorted(wanted)}
    return make_folder(out / "terra_incognita", plan)


def _read_annotations(files: list[Path]) -> set[tuple[str, str, str]]:
    """Return location, category and file name of every image of the dataset."""
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

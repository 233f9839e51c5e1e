"""Catalogue of published datasets: files, addresses and hashes. Unknown hashes and sizes are left out, not guessed.

The addresses are from public code (mainly DomainBed's download script) and were not tested; DomainNet's are DomainBed's
with https instead of http. MNIST's hashes were computed from its unpacked files.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PublishedFile:
    """A published file: its name, its addresses and its hash."""

    name: str
    mirrors: tuple[str, ...]  # addresses of the same file, the best first
    page: str  # web page that describes and offers the file
    sha256: str | None = None  # None if it is not published
    unpacked: bool = False  # the hash is that of the unpacked content, which does not depend on the compression
    size: int | None = None  # bytes; None if it is not published


@dataclass(frozen=True)
class Publication:
    """A dataset as its authors publish it."""

    files: tuple[PublishedFile, ...]
    terms: str  # page that states the terms of use or, if there is none, the page of the dataset


def hash_file(path: Path, *, unpacked: bool = False) -> str:
    """Return the SHA-256 of a file, or of the content of a gzip file; an empty text if the gzip file is damaged."""
    if not unpacked:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    content_hash = hashlib.sha256()
    try:
        with gzip.open(path) as file:
            while chunk := file.read(1 << 20):
                content_hash.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""
    return content_hash.hexdigest()


def _drive_url(identifier: str) -> str:
    """Return the address of a file on Google Drive. If Drive refuses, the answer is a web page."""
    return f"https://drive.usercontent.google.com/download?id={identifier}&export=download&confirm=t"


MNIST_PAGE = "http://yann.lecun.com/exdb/mnist/"
MNIST_HASHES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
PACS_PAGE = "https://domaingeneralization.github.io/"
VLCS_PAGE = "http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017"
OFFICE_HOME_PAGE = "https://www.hemanthdv.org/officeHomeDataset.html"
TERRA_PAGE = "https://lila.science/datasets/caltech-camera-traps"
TERRA_MIRROR = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/"
DOMAIN_NET_PAGE = "http://ai.bu.edu/M3SDA/"
DOMAIN_NET_MIRROR = "https://csr.bu.edu/ftp/visda/2019/multi-source/"
DOMAIN_NET_FILES = (  # the "cleaned" files; the page has other files of the same names
    "groundtruth/clipart.zip",
    "infograph.zip",
    "groundtruth/painting.zip",
    "quickdraw.zip",
    "real.zip",
    "sketch.zip",
)
DUPLICATES = PublishedFile(
    "domain_net_duplicates.txt",
    ("https://github.com/facebookresearch/DomainBed/raw/main/domainbed/misc/domain_net_duplicates.txt",),
    "https://github.com/facebookresearch/DomainBed/tree/main/domainbed/misc",
)

CATALOGUE = {
    "MNIST": Publication(
        tuple(
            PublishedFile(
                f"{name}.gz", tuple(f"{mirror}{name}.gz" for mirror in MNIST_MIRRORS), MNIST_PAGE, sha256, unpacked=True
            )
            for name, sha256 in MNIST_HASHES.items()
        ),
        MNIST_PAGE,
    ),
    "VLCS": Publication(
        (PublishedFile("VLCS.tar.gz", (_drive_url("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8"),), VLCS_PAGE),),
        VLCS_PAGE,
    ),
    "PACS": Publication(
        (PublishedFile("PACS.zip", (_drive_url("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),), PACS_PAGE),),
        PACS_PAGE,
    ),
    "OfficeHome": Publication(
        (
            PublishedFile(
                "OfficeHomeDataset_10072016.zip",
                (
                    _drive_url("0B81rNlvomiwed0V1YUxQdC1uOTg&resourcekey=0-2SNWq0CDAuWOBRRBL7ZZsw"),
                    _drive_url("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"),
                ),
                OFFICE_HOME_PAGE,
            ),
        ),
        OFFICE_HOME_PAGE,
    ),
    "TerraIncognita": Publication(
        (
            PublishedFile(
                "eccv_18_all_images_sm.tar.gz",
                (f"{TERRA_MIRROR}eccv_18_all_images_sm.tar.gz",),
                TERRA_PAGE,
            ),
            PublishedFile("eccv_18_annotations.tar.gz", (f"{TERRA_MIRROR}eccv_18_annotations.tar.gz",), TERRA_PAGE),
        ),
        TERRA_PAGE,
    ),
    "DomainNet": Publication(
        (
            *(
                PublishedFile(name.rpartition("/")[2], (f"{DOMAIN_NET_MIRROR}{name}",), DOMAIN_NET_PAGE)
                for name in DOMAIN_NET_FILES
            ),
            DUPLICATES,
        ),
        DOMAIN_NET_PAGE,
    ),
}

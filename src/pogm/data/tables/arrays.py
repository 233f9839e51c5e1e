"""Files of arrays: ``.npz``, and sparse counts (CSR) inside of them."""

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pogm._system.errors import DataError

Array = npt.NDArray[Any]
CSR = ("data", "indices", "indptr", "shape")  # arrays of a sparse matrix in compressed rows
MOST_BYTES = 8 * 2**30  # of dense counts
MOST_FILE_BYTES = 32 * 2**30  # of all arrays of a file
KINDS = "biufcUSMm"  # of dtypes: numbers, texts and dates
HEADERS: dict[Any, Any] = {  # readers of the headers of arrays, by the version of the format
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Read arrays of an ``.npz`` file. Pickled objects are refused, because they can run code.

    Args:
        path: The file.
        names: Arrays to read, which must be there; None for all.

    Raises:
        DataError: The file is damaged or contains objects, or an array is missing.
    """
    try:
        with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            _check_sizes(archive, path)
            stream.seek(0)
            file = np.load(stream, allow_pickle=False)
            if missing := [name for name in names or () if name not in file.files]:
                raise DataError(
                    f"Expected the arrays {', '.join(names or ())} in {path}; found {', '.join(file.files) or 'none'}. "
                    f"Add {', '.join(missing)}."
                )
            return {name: _to_plain(file[name]) for name in (names or file.files)}
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"Expected a file of arrays at {path}; found none. Check the path.") from error
    except Exception as error:  # damaged files raise any exception
        why = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise DataError(
            f"Expected arrays of numbers or texts in {path}; found: {why}. Save it again with numpy.savez."
        ) from error


def _to_plain(array: Array) -> Array:
    """Return bytes and dates as texts, and other arrays as they are."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    return array.astype(str) if array.dtype.kind in "Mm" else array


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise a `DataError` before memory is allocated for more than a member holds, or for too much in all."""
    if sum(member.file_size for member in archive.infolist()) > MOST_FILE_BYTES:
        raise DataError(
            f"Expected arrays of at most {MOST_FILE_BYTES >> 30} GiB in {path}; found more. Divide the file."
        )
    for member in archive.infolist():
        with archive.open(member) as content:
            version = np.lib.format.read_magic(content)
            read = HEADERS.get(version)
            if read is None:
                raise ValueError(f"version {version} of the format of {member.filename}")
            shape, _, dtype = read(content)
        if dtype.kind not in KINDS:
            raise ValueError("objects, which are not read" if dtype.hasobject else f"{member.filename} of {dtype}")
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} of shape {list(shape)} in {member.file_size} bytes")


def densify(arrays: dict[str, Array], path: Path) -> Array:
    """Return the dense matrix [N, words] of a sparse one, in the smallest dtype that holds its values.

    Raises:
        DataError: The arrays are not those of a sparse matrix, or the dense matrix would be larger than 8 GiB.
    """
    check_sparse(arrays, path)
    data, indices, indptr, shape = (arrays[name] for name in CSR)
    is_byte = data.dtype.kind in "ui" and (not len(data) or (data.min() >= 0 and data.max() < 256))
    kind = np.uint8 if is_byte else np.float32
    if np.dtype(kind).itemsize * math.prod(shape.tolist()) > MOST_BYTES:
        raise DataError(
            f"Expected counts that take at most {MOST_BYTES >> 30} GiB as a dense matrix; found {shape[0]} × "
            f"{shape[1]} in {path}. Keep fewer words, or give token ids (see docs/tables.md)."
        )
    dense = np.zeros(shape, kind)
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
    np.add.at(dense, (rows, indices), data.astype(kind))
    return dense


def check_sparse(arrays: Mapping[str, Array], path: Path) -> None:
    """Raise a `DataError` if the arrays are not those of a sparse matrix."""
    data, indices, indptr, shape = (arrays[name] for name in CSR)
    fits = (
        all(array.ndim == 1 and array.dtype.kind in "iu" for array in (indices, indptr, shape))
        and data.ndim == 1
        and data.dtype.kind in "iufb"
        and len(shape) == 2
        and len(indptr) > 0
        and len(indptr) == shape[0] + 1
        and len(data) == len(indices) == int(indptr[-1])
        and indptr[0] == 0
        and (np.diff(indptr.astype(np.int64)) >= 0).all()
        and (len(indices) == 0 or (indices.min() >= 0 and indices.max() < shape[1]))
    )
    if not fits:
        raise DataError(
            f"Expected a sparse matrix (data, indices, indptr, shape) in {path}; found arrays that do not fit "
            "together. Save the parts of a scipy.sparse.csr_matrix."
        )

"""Files of arrays: ``.npz``, and sparse counts (CSR) inside of them."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pogm._system.errors import DataError

Array = npt.NDArray[Any]
CSR = ("data", "indices", "indptr", "shape")  # arrays of a sparse matrix in compressed rows
MOST_BYTES = 8 * 2**30  # of dense counts


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Read arrays of an ``.npz`` file. Pickled objects are refused, because they can run code.

    Args:
        path: The file.
        names: Arrays to read, which must be there; None for all.

    Raises:
        DataError: The file is damaged or contains objects, or an array is missing.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            if missing := [name for name in names or () if name not in file.files]:
                raise DataError(
                    f"Expected the arrays {', '.join(names or ())} in {path}; found {', '.join(file.files) or 'none'}. "
                    f"Add {', '.join(missing)}."
                )
            return {name: file[name] for name in (names or file.files)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        why = "objects, which are not read" if "allow_pickle" in str(error) else str(error).splitlines()[0]
        raise DataError(
            f"Expected arrays of numbers or texts in {path}; found: {why}. Save it again with numpy.savez."
        ) from error


def densify(arrays: dict[str, Array], path: Path) -> Array:
    """Return the dense matrix [N, words] of a sparse one, in the smallest dtype that holds its values.

    Raises:
        DataError: The arrays are not those of a sparse matrix, or the dense matrix would be larger than 8 GiB.
    """
    data, indices, indptr = (arrays[name] for name in CSR[:3])
    shape = tuple(int(size) for size in arrays["shape"].ravel())
    fits = (
        len(shape) == 2
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
    is_byte = data.dtype.kind in "ui" and (not len(data) or (data.min() >= 0 and data.max() < 256))
    kind = np.uint8 if is_byte else np.float32
    if np.dtype(kind).itemsize * shape[0] * shape[1] > MOST_BYTES:
        raise DataError(
            f"Expected counts that take at most {MOST_BYTES >> 30} GiB as a dense matrix; found {shape[0]} × "
            f"{shape[1]} in {path}. Keep fewer words, or give token ids (see docs/tables.md)."
        )
    dense = np.zeros(shape, kind)
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
    np.add.at(dense, (rows, indices), data.astype(kind))
    return dense

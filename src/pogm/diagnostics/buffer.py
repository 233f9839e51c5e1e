"""Where measurements wait for the next evaluation: on the device, in a fixed number of rows."""

import torch
from torch import Tensor

from pogm.core import trees

Buffer = dict[str, Tensor]  # "count", and of each measurement [rows, ...]


def start(values: dict[str, Tensor], room: int) -> Buffer:
    """No rows yet, of measurements shaped like these."""
    rows = {name: value.new_zeros((max(room, 1), *value.shape)) for name, value in values.items()}
    return {"count": torch.zeros_like(values["round"]), **rows}


def written(buffer: Buffer, values: dict[str, Tensor]) -> Buffer:
    """With one row more; where there is no room for it, as before."""
    rows = {name: leaf for name, leaf in buffer.items() if name != "count"}
    here = torch.arange(len(rows["round"]), device=buffer["count"].device) == buffer["count"]
    filled = trees.where(here, {name: values[name].expand_as(leaf) for name, leaf in rows.items()}, rows)
    return {"count": buffer["count"] + 1, **filled}


def emptied(buffer: Buffer) -> Buffer:
    """Ready for the next rounds."""
    return buffer | {"count": torch.zeros_like(buffer["count"])}


def rows_of(buffer: Buffer) -> dict[str, Tensor]:
    """The rows of one trial's buffer, once it is on the host."""
    return {name: leaf[: int(buffer["count"])] for name, leaf in buffer.items() if name != "count"}

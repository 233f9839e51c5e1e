"""Readers of the files of trackers: all logged numbers with name and step, including duplicates."""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

Logged = list[tuple[str, int, float]]


def tensorboard(folder: Path) -> Logged:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    events = (
        event for path in sorted(folder.glob("tensorboard/*")) for event in LegacyEventFileLoader(str(path)).Load()
    )
    return [(value.tag, event.step, value.simple_value) for event in events for value in event.summary.value]


def wandb(folder: Path) -> Logged:
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    logged: Logged = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for raw in _read_log(path.read_bytes()):
            record = Record.FromString(raw)
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            values = {name: json.loads(value) for name, value in items.items()}
            ours = values.keys() - {"step"}
            logged += [(name, values["step"], values[name]) for name in ours if not name.startswith("_")]
    return logged


def mlflow(folder: Path) -> Logged:
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient((folder.parent / "mlruns").as_uri())
    known = folder / "mlflow"
    run = known.read_text() if known.exists() else ""
    metrics = client.get_run(run).data.metrics if run else ()
    return [(_unescape(m.key), m.step, m.value) for key in metrics for m in client.get_metric_history(run, key)]


READERS: dict[str, Callable[[Path], Logged]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


def _unescape(escaped: str) -> str:
    """Undo `escape_name`: every second part between colons is the number of a character."""
    return "".join(chr(int(part, 16)) if index % 2 else part for index, part in enumerate(escaped.split(":")))


def _read_log(content: bytes) -> Iterator[bytes]:
    """Yield the entries of a .wandb file: a LevelDB log with blocks of 32 KiB after a header of 7 bytes."""
    position, entry = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        size, kind = struct.unpack_from("<HB", content, position + 4)
        entry += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a complete entry, or the last part of one
            yield entry
            entry = b""

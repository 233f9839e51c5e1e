"""What trackers have kept of a run, read from their files: every number by name and step, as often as it is there."""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

Kept = list[tuple[str, int, float]]


def tensorboard(folder: Path) -> Kept:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    events = (
        event for path in sorted(folder.glob("tensorboard/*")) for event in LegacyEventFileLoader(str(path)).Load()
    )
    return [(value.tag, event.step, value.simple_value) for event in events for value in event.summary.value]


def wandb(folder: Path) -> Kept:
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    kept: Kept = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for raw in _log(path.read_bytes()):
            record = Record.FromString(raw)
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            values = {name: json.loads(value) for name, value in items.items()}
            ours = values.keys() - {"step"}
            kept += [(name, values["step"], values[name]) for name in ours if not name.startswith("_")]
    return kept


def mlflow(folder: Path) -> Kept:
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient((folder.parent / "mlruns").as_uri())
    known = folder / "mlflow"
    run = known.read_text() if known.exists() else ""
    metrics = client.get_run(run).data.metrics if run else ()
    return [(_name(m.key), m.step, m.value) for key in metrics for m in client.get_metric_history(run, key)]


READERS: dict[str, Callable[[Path], Kept]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


def _name(allowed: str) -> str:
    """The name that MLflow could not take: every other piece between colons is a letter's number."""
    return "".join(chr(int(part, 16)) if place % 2 else part for place, part in enumerate(allowed.split(":")))


def _log(content: bytes) -> Iterator[bytes]:
    """The entries of a .wandb file: LevelDB's log, in blocks of 32 KiB, after a head of 7 bytes."""
    place, entry = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        entry += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield entry
            entry = b""

"""``pogm export``: a trained model for other programs, or finished runs in the format of another benchmark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pogm._system.errors import UsageError
from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a model as ONNX, torch.export or safetensors, or finished runs as a DomainBed sweep."""

    examples: ClassVar[str] = """
pogm export runs/first --to onnx --out first.onnx           and first.onnx.json: classes, preprocessing
pogm export runs/first --to torch-export                    first.pt2, for torch.export.load
pogm export runs/first --to safetensors                     the weights, with the names of torchvision or timm
pogm export runs --layout domainbed --out runs-for-domainbed"""
    notes: ClassVar[str] = (
        "A model is compared with the original before it is written. A model of images takes what model.transform "
        "returns.\nOne of a table, series, audio or text contains its preprocessing (onnx and torch-export): it takes "
        "rows of numbers;\nthe JSON file names the columns.\n"
        "ONNX needs: pip install 'pogm[onnx]'"
    )

    folders: tuple[Path, ...] = argument(
        "With --to: folder of a run or of a model. Otherwise: folders that contain runs, at any depth.",
        metavar="FOLDER",
    )
    to: Literal["onnx", "torch-export", "safetensors"] | None = option(
        "Format of the model (default: none; runs are written in the format of --layout).", None
    )
    layout: Literal["domainbed"] = option("Format of runs.", "domainbed")
    out: Path | None = option(
        "File to write; for runs a new folder, which is required (default: the name of the model's folder with the "
        "suffix of the format, in the current folder).",
        None,
        metavar="PATH",
    )
    tolerance: float | None = option(
        "Largest difference of the outputs from those of the original, relative to the largest output or to 1 "
        "(default: 0.0001).",
        None,
        least=0,
        most=10**6,
    )

    output: Output = group(Output)

    def run(self) -> int:
        """Write the model, or the job folders."""
        return self._export_runs() if self.to is None else self._export_model(self.to)

    def _export_model(self, to: Literal["onnx", "torch-export", "safetensors"]) -> int:
        from pogm.deployment.export import SUFFIXES, TOLERANCE, export
        from pogm.deployment.model import load

        if len(self.folders) != 1:
            raise UsageError(f"Expected one model for --to; found {len(self.folders)} folders. Export one at a time.")
        (folder,) = self.folders
        out = self.out or Path(folder.resolve().name + SUFFIXES[to])
        tolerance = TOLERANCE if self.tolerance is None else self.tolerance
        made = export(load(folder), to, out, tolerance=tolerance)

        def show_text() -> None:
            print_line(f"{made.path} ({made.bytes / 2**20:.1f} MiB) and {made.description}")
            print_line(
                f"Largest difference from the original in {made.comparison.batches} batches: "
                f"{made.comparison.difference:.2g} ({made.comparison.inputs}; tolerance {tolerance:g})"
            )

        compared = {"batches": made.comparison.batches, "inputs": made.comparison.inputs}
        document: dict[str, Any] = {
            "path": made.path,
            "description": made.description,
            "format": to,
            "bytes": made.bytes,
        }
        document |= {"difference": made.comparison.difference, "tolerance": tolerance, **compared}
        self.output.show("export", document, show_text)
        return 0

    def _export_runs(self) -> int:
        from pogm.benchmark.domainbed import export_domainbed
        from pogm.benchmark.results.records import read_runs
        from pogm.benchmark.runs.selected_model import DESCRIPTION
        from pogm.deployment.export import SUFFIXES

        if self.out is None:
            raise UsageError(
                "Expected --out FOLDER for runs, or --to FORMAT for a model; found neither. Write, for example: "
                "pogm export runs/first --to onnx"
            )
        formats = {suffix: to for to, suffix in SUFFIXES.items()}
        if self.out.suffix in formats or any((folder / DESCRIPTION).is_file() for folder in self.folders):
            raise UsageError(
                f"Expected --to FORMAT for a model; found none. Write, for example: pogm export {self.folders[0]} "
                f"--to {formats.get(self.out.suffix, 'onnx')}. For the runs of a model, name the folder runs in it."
            )
        if self.tolerance is not None:
            raise UsageError("Expected --tolerance with --to; found it without. Leave it out.")
        jobs = export_domainbed(read_runs(*self.folders), self.out)
        note(f"{len(jobs)} job folder{'s' * (len(jobs) > 1)} in {self.out}")
        self.output.show("export", {"folder": self.out, "layout": self.layout, "jobs": len(jobs)})
        return 0


COMMAND = Export

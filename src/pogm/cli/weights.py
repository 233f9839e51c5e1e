"""``pogm weights``: files of pretrained weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Convert(Command):
    """Write the tensors of a pickle, such as model.pth or a model.pkl of DomainBed, as safetensors."""

    examples: ClassVar[str] = "pogm weights convert model.pth\npogm weights convert model.pkl --out resnet.safetensors"
    notes: ClassVar[str] = (
        "The pickle is read without running code; a file that would run code is refused with exit code 6.\n"
        "Of a model.pkl of DomainBed, the tensors of the network are written, without the classifier."
    )

    file: Path = argument("File of torch.save that contains tensors by name.")
    out: Path | None = option(
        "File to write (default: the name of the file, with the suffix .safetensors).", None, metavar="FILE"
    )

    output: Output = group(Output)

    def run(self) -> int:
        """Write the file, and print its hash, which is the name of the weights in a trial."""
        from pogm.models.weights import convert, hash_weights

        out = self.out or self.file.with_suffix(".safetensors")
        tensors = convert(self.file, out)
        size, weights = out.stat().st_size, hash_weights(out)

        def show_text() -> None:
            print(f"Wrote {out}: {len(tensors)} tensors, {size / 2**20:.1f} MiB, {weights}")
            print(f"Use it: pogm train FOLDER --weights {out} --network NAME --out model")

        document = {"file": self.file, "out": out, "tensors": len(tensors), "bytes": size, "weights": weights}
        self.output.show("weights convert", document, show_text)
        return 0


@dataclass(frozen=True, kw_only=True)
class Weights(Command):
    """Convert files of pretrained weights to safetensors."""

    examples: ClassVar[str] = "pogm weights convert model.pth"
    commands: ClassVar[tuple[type[Command], ...]] = (Convert,)


COMMAND = Weights

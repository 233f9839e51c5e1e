"""The commands of docs/deploy.md work as written, on small images and with a small network."""

import re
from pathlib import Path

from processes import pogm

PAGE = Path(__file__).parents[2] / "docs/deploy.md"
SMALL = "--network small_cnn --set weights=random"


def commands() -> list[str]:
    """Return the commands of the page."""
    return re.findall(r"^    pogm (.*)$", PAGE.read_text(), re.MULTILINE)


def test_commands_of_the_page_work(photographs, tmp_path):
    root = photographs[0]
    names = [command.split()[0] for command in commands()]
    assert names == ["data", "verdict", "train", "evaluate", "predict", "export"]
    for command in commands():
        small = command.replace("OfficeCaltech/webcam/mug", f"{root}/c/red").replace(
            "OfficeCaltech/webcam", f"{root}/c"
        )
        small = small.replace("OfficeCaltech", str(root)).replace("--hold-out webcam", "--hold-out c")
        small = small.replace("--weights mobilenet_v2_imagenet.safetensors", SMALL).replace("--steps 40", "--steps 10")
        small = re.sub(r"image_size=\d+", "image_size=32", small)
        for name in ("webcam.json", "mugs.csv", "model.onnx"):
            small = small.replace(name, str(tmp_path / name))
        words = [str(tmp_path / "model") if word == "model" else word for word in small.split()]
        if words[0] == "train":
            words += ["--workers", "1"]
        end = pogm(*words)
        assert end.code == 0, (command, end.err)
    for name in ("webcam.json", "mugs.csv", "model.onnx", "model/card.html"):
        assert (tmp_path / name).stat().st_size > 100, name

"""Import what commands need. The fork server of the tests imports this module once, for all commands that it starts."""

import atexit
import gc
from importlib import import_module

for name in (
    "PIL.Image",
    "numpy.ctypeslib",
    "pogm.algorithms.erm",
    "pogm.algorithms.pogm",
    "pogm.cli.execution",
    "pogm.cli.single_run",
    "pogm.cli.planning",
    "pogm.cli.results",
    "pogm.cli.resume",
    "pogm.cli.run",
    "pogm.data.datasets.rotated_digits",
    "pogm.data.images.cache",
    "pogm.deployment.export",
    "pogm.deployment.training",
    "pogm.experiments.output",
    "pogm.models.cnn1d",
    "pogm.models.mlp",
    "pogm.models.mnist_cnn",
    "pogm.models.mobilenet_v2",
    "pogm.models.resnet",
    "pogm.models.small_cnn",
    "sklearn.linear_model",
    "torch._dynamo",
    "torch.onnx",
):
    import_module(name)

gc.collect()
gc.freeze()  # a collection in a command would write to the pages that it shares with the server, and copy them
atexit.register(gc.unfreeze)  # some packages report what is left when Python ends

"""Formats of exported models: ONNX, torch.export and safetensors."""

import copy
import io
import json
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Literal

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.deployment.ensemble import Ensemble
from pogm.deployment.export_comparison import Predict
from pogm.deployment.export_inputs import make_zeros, module_to_export
from pogm.deployment.model import TrainedModel
from pogm.deployment.preprocessing import ArrayTransform
from pogm.models.timm_models import PREFIX

Format = Literal["onnx", "torch-export", "safetensors"]
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT = "input"
METADATA = "pogm.json"  # name of the description inside of an exported file
TRACED_BATCH = 3

Made = tuple[bytes, Predict, dict[str, Any]]  # the file, its predictions, and further entries of the description


def name_output(model: TrainedModel) -> str:
    """Return the name of the output of an exported file."""
    return "prediction" if model.task == "regression" else "logits"


def _export_program(model: TrainedModel) -> torch.export.ExportedProgram:
    """Return the traced program, with any batch size and without the paths of source files."""
    module, inputs = module_to_export(model), make_zeros(model, TRACED_BATCH)
    module(inputs)  # fills caches, such as that of the mel filters: a trace would leave tensors without values in them
    try:
        program = torch.export.export(module, (inputs,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    except Exception as error:  # torch raises many kinds of errors here
        raise _unsupported("torch.export", model, error) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _make_torch_export(model: TrainedModel, description: Mapping[str, Any]) -> Made:
    file = io.BytesIO()
    torch.export.save(_export_program(model), file, extra_files={METADATA: json.dumps(description)})
    content = file.getvalue()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.10, about its own code
        module: Any = torch.export.load(io.BytesIO(content)).module()
    return content, module, {"load": f"torch.export.load(FILE).module(), with torch {torch.__version__} or later"}


def _make_onnx(model: TrainedModel, description: Mapping[str, Any]) -> Made:
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise UsageError(
            f"Expected the packages {', '.join(ONNX_PACKAGES)} for ONNX; found no {', '.join(missing)}. "
            "Install them: pip install 'pogm[onnx]'"
        )
    import onnxruntime

    program, output = _export_program(model), name_output(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about its own code
            made = torch.onnx.export(
                program, (), input_names=[INPUT], output_names=[output], dynamo=True, verbose=False
            )
        assert made is not None
        proto = made.model_proto
        for node in [*proto.graph.node, *(node for function in proto.functions for node in function.node)]:
            del node.metadata_props[:]  # names of Python classes and source files
        symbol = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # such as s77
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            for size in value.type.tensor_type.shape.dim:
                if size.dim_param == symbol:
                    size.dim_param = "batch"
        entry = proto.metadata_props.add()
        entry.key, entry.value = METADATA, json.dumps(description)
        content: bytes = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # the exporter and the runtime raise many kinds of errors
        raise _unsupported("ONNX", model, error) from error

    def predict(x: Tensor) -> Tensor:
        (found,) = session.run([output], {INPUT: x.numpy()})
        return torch.from_numpy(found)

    operators = {str(item.domain or "ai.onnx"): int(item.version) for item in proto.opset_import}
    return content, predict, {"load": "onnxruntime.InferenceSession(FILE)", "operator_sets": operators}


def _make_safetensors(model: TrainedModel, description: Mapping[str, Any]) -> Made:
    unique = {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}  # shared weights once
    saved = model.network.state_dict()  # without the buffers that only training needs
    tensors = {name: leaf.contiguous() for name, leaf in saved.items() if name in unique}
    for rebuild in (_rebuild_published, _rebuild_own):
        if (rebuilt := rebuild(model, tensors)) is not None:
            break
    assert rebuilt is not None
    names, module, load = rebuilt
    content = save_tensors({names[name]: leaf for name, leaf in tensors.items()}, {METADATA: json.dumps(description)})
    with torch.no_grad():
        for leaf in module.state_dict().values():
            leaf.zero_()  # what follows must come from the file
    module.load_state_dict(load_tensors(content), strict=False)
    return content, module.eval(), {"load": load}


Rebuilt = tuple[dict[str, str], nn.Module, str]  # new names of the weights, module for them, how to make the module


def _rebuild_published(model: TrainedModel, tensors: Mapping[str, Tensor]) -> Rebuilt | None:
    """Return the module of torchvision or timm for the weights; None if the network is not exactly one of theirs."""
    found = _published_module(str(model.description["network"]), model)
    if found is None or not isinstance(getattr(model.network, "head", None), nn.Linear):
        return None
    module, inside, classifier, load = found
    prefix = f"features.{inside}."
    names = {
        name: f"{classifier}.{name.removeprefix('head.')}"
        if name.startswith("head.")
        else name.removeprefix(prefix if inside else "features.")
        for name in tensors
    }
    expected = {name: leaf.shape for name, leaf in module.state_dict().items()}
    if expected != {names[name]: leaf.shape for name, leaf in tensors.items()}:
        return None  # other channels, or a modifier has changed the network
    return names, module, load


def _published_module(network: str, model: TrainedModel) -> tuple[nn.Module, str, str, str] | None:
    """Return the module, the name of its copy in the featurizer, the name of its classifier, and the code for it."""
    count = len(model.classes)
    if network in ("resnet18", "resnet50", "mobilenet_v2"):
        from torchvision import models

        module: nn.Module = getattr(models, network)(num_classes=count)
        classifier = "classifier.1" if network == "mobilenet_v2" else "fc"
        return module, "", classifier, f"torchvision.models.{network}(num_classes={count})"
    if network.startswith(PREFIX):
        import timm

        name, shape = network.removeprefix(PREFIX), model.transform.transform.shape
        config = timm.get_pretrained_cfg(name)
        if config is None or not isinstance(config.classifier, str):
            return None
        size: dict[str, Any] = {"img_size": shape[1:]} if config.fixed_input_size else {}
        module = timm.create_model(name, in_chans=shape[0], num_classes=count, **size)
        options = "".join(f", {key}={value}" for key, value in size.items())
        load = f"timm.create_model({name!r}, in_chans={shape[0]}, num_classes={count}{options})"
        return module, "model", config.classifier, load
    return None


def _rebuild_own(model: TrainedModel, tensors: Mapping[str, Tensor]) -> Rebuilt:
    """Return a copy of the network, whose weights keep their names."""
    is_ensemble = isinstance(model.network, Ensemble)
    load = f"the module {'' if is_ensemble else 'features, then the module head, of '}pogm.load(MODEL).network"
    return {name: name for name in tensors}, copy.deepcopy(model.network), load


def _unsupported(what: str, model: TrainedModel, error: Exception) -> UsageError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    other = "such as safetensors" if not isinstance(model.transform, ArrayTransform) else "or use pogm.load in Python"
    return UsageError(
        f"Expected a network that {what} supports; found that {model.description.get('network')} gives: {reason} "
        f"Choose another format, {other}."
    )


EXPORTERS: dict[Format, Callable[[TrainedModel, Mapping[str, Any]], Made]] = {
    "onnx": _make_onnx,
    "torch-export": _make_torch_export,
    "safetensors": _make_safetensors,
}

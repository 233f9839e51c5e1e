"""The network of a Learner: a copy of the user's module, divided into features and head, that shares its weights."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from pogm._system.errors import UsageError
from pogm.core.flat_params import flatten
from pogm.core.model import Network, evaluation_mode
from pogm.core.trees import Params, Tree
from pogm.modifiers.base import Modifier

Forward = Callable[[nn.Module, Any], Tensor]  # (module, inputs) -> outputs


class LearnerNetwork:
    """Network that computes with the weights of a module.

    Args:
        module: Module of the user.
        head: Name of its last layer; None for a network without a separate head.
        forward: Function of module and inputs that returns the outputs; None to call the module with the inputs.
        modifiers: Modifiers that change the network.
    """

    def __init__(self, module: nn.Module, head: str | None, forward: Forward | None, modifiers: Sequence[Modifier]):
        lazy = [name for name, leaf in self._named_tensors(module).items() if is_lazy(leaf)]
        if lazy:
            raise UsageError(
                f"Expected a module with initialised weights; found lazy layers with {', '.join(lazy[:4])}. Call the "
                "module once with a minibatch before you create the Learner."
            )
        self.original, self.head, self.forward = module, head, forward
        self.module = self._split(module, head, forward)
        prefix = "features.module." if forward is not None else "features."
        self._prefixes = {prefix: "", "head.": "" if head is None else f"{head}."}
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self._names = {name: self._original_name(name) for name in tensors}
        layers = dict(module.named_modules())
        self._layers = [
            (layer, layers.get(self._original_name(f"{name}.").rstrip("."), module))
            for name, layer in self.module.named_modules()
        ]
        for modifier in modifiers:
            self.module = modifier.network(self.module)
        known = {layer for layer, _ in self._layers}
        self._layers += [(layer, module) for layer in self.module.modules() if layer not in known]
        self._changed = True  # modes must be copied before the first step

    def first_tensor(self) -> Tensor:
        """Return a weight of the module (floats), for the device and the dtype of inputs."""
        found = next((leaf for leaf in self.original.parameters() if leaf.is_floating_point()), None)
        if found is None:
            raise UsageError(
                f"Expected a module with weights to train; found {type(self.original).__name__} without any."
            )
        return found

    def originals(self) -> dict[str, Tensor]:
        """Return the tensors of the module under the names of the network."""
        found = self._named_tensors(self.original)
        return {name: found[original] for name, original in self._names.items()}

    def tensors(self) -> tuple[Params, Params]:
        """Return the weights that are trained, as one flat tensor if they have one dtype, and all other tensors."""
        found = self.originals()
        params = {name: leaf.detach() for name, leaf in found.items() if leaf.requires_grad}
        if not params:
            raise UsageError(
                "Expected a module with weights to train; found that requires_grad is False for all of them. "
                "Unfreeze some."
            )
        buffers = {name: leaf.detach() for name, leaf in found.items() if name not in params}
        is_uniform = len({(leaf.dtype, leaf.device) for leaf in params.values()}) == 1
        return flatten(params) if is_uniform else params, buffers

    def write_to(self, module: nn.Module, tensors: Params) -> None:
        """Copy tensors into the module, or into a copy of it."""
        found = self._named_tensors(module)
        targets = [found[self._names[name]].detach() for name in tensors]
        torch._foreach_copy_(targets, list(tensors.values()))

    def copy_modes(self) -> bool:
        """Put every layer into the mode (training or evaluation) of the module's layer. Return True after a change."""
        changed, self._changed = self._changed, False
        for layer, original in self._layers:
            if layer.training != original.training:
                layer.training = original.training
                changed = True
        return changed

    def modes(self) -> tuple[bool, ...]:
        """Return the mode of every layer."""
        return tuple(layer.training for layer, _ in self._layers)

    def inspect(self, x: Tree) -> Tensor:
        """Return the outputs for some inputs [N, ...] in evaluation mode.

        Raises:
            UsageError: The module does not return a tensor of finite numbers, or the head is not its last layer.
        """
        called = self.original if self.forward is None else Called(self.original, self.forward)
        outputs = self._run(called, {}, x)
        if not isinstance(outputs, Tensor):
            raise UsageError(
                f"Expected a module that returns a tensor; found {type(outputs).__name__}. Pass a function that "
                "returns the outputs, for example forward=lambda module, x: module(**x).logits."
            )
        count = len(next(iter(x.values())) if isinstance(x, dict) else x if isinstance(x, Tensor) else x[0])
        if not outputs.ndim or len(outputs) != count or not outputs.is_floating_point():
            raise UsageError(
                f"Expected outputs of floats with one row for each of {count} samples; found {outputs.dtype} outputs "
                f"of shape {list(outputs.shape)}. Change the module, or pass forward=."
            )
        if not bool(outputs.isfinite().all()):
            raise UsageError(
                "Expected finite outputs of the module; found NaN or infinity for finite inputs. Check the weights."
            )
        params, buffers = self.tensors()
        divided = self._run(self.module, {**params, **buffers}, x)
        if divided.shape != outputs.shape or not torch.allclose(divided, outputs, rtol=1e-3, atol=1e-5):
            raise UsageError(
                f"Expected the head {self.head!r} to be the last layer of the module; found that its outputs are not "
                "those of the module. Name the layer that returns the logits, or leave head out."
            )
        return outputs

    @staticmethod
    def _run(module: nn.Module, tensors: Params, x: Tree) -> Any:
        """Return the outputs in evaluation mode, with copies of the buffers."""
        buffers = {name: leaf.clone() for name, leaf in module.named_buffers() if name not in tensors}
        with evaluation_mode(module):
            return functional_call(module, {**tensors, **buffers}, (x,))

    @staticmethod
    def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
        """Return parameters and buffers by name. Shared tensors have several names."""
        parameters = module.named_parameters(remove_duplicate=False)
        return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}

    @staticmethod
    def _split(module: nn.Module, head: str | None, forward: Forward | None) -> Network:
        """Return a copy of the module, divided into features and head."""
        features: nn.Module = copy.deepcopy(module)
        last: nn.Module = nn.Identity()
        if head is not None:
            try:
                last = features.get_submodule(head)
            except AttributeError as error:
                names = ", ".join(name for name, _ in module.named_children())
                raise UsageError(f"Expected the name of a layer ({names}, ...) as head; found {head!r}.") from error
            features.set_submodule(head, nn.Identity())
        return Network(features if forward is None else Called(features, forward), last)

    def _original_name(self, name: str) -> str:
        """Return the module's name of a tensor or layer of the network."""
        for prefix, replacement in self._prefixes.items():
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
        return name


class Called(nn.Module):
    """A module that is called by a function of the user."""

    def __init__(self, module: nn.Module, function: Forward):
        super().__init__()
        self.module, self.function = module, function

    def forward(self, x: Any) -> Tensor:
        """Return the outputs."""
        return self.function(self.module, x)

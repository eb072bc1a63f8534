"""Draws from torch's default CPU generator come from the task's generator instead.

Every random number on the CPU is drawn by one of about thirty operators that take a generator
(``uniform_``, ``bernoulli_``, ``randperm``, ...); dropout, ``torch.rand``, initialisers, LSTMs
and attention all end there. These operators get a kernel at the dispatch key ``BackendSelect``,
which lies below autograd and above the device's kernels and which no in-place operator uses: it
puts the generator of the thread's task in place of a missing one and goes on to the real kernel.
So the numbers are those of the real kernel, the names under which a function was imported do not
matter, and operations that draw nothing cost nothing.

``torch.manual_seed``, ``get_rng_state``, ``fork_rng`` and their like are no operators. They all
reach the generator through one name, ``torch.random.default_generator``, which is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fedbench.errors import UnsupportedPlatformError
from fedbench.reproducibility.active import active
from fedbench.reproducibility.ledger import ledger

__all__ = ["install_torch"]

_KEY = torch._C.DispatchKey.BackendSelect
_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_SOURCE = "torch's default generator"
_library: Any = None  # its kernels live as long as it does


class _DefaultGenerator(torch.Generator):
    """Stands for the default generator: the task's within a task, the process's elsewhere.

    It is a generator itself only to be accepted as one; nothing is ever drawn from it.
    """


def _delegating(name: str) -> Callable[..., Any]:
    def method(self: _DefaultGenerator, *args: Any, **kwargs: Any) -> Any:
        generators = active.generators
        if generators is None:
            return ledger.outside(_SOURCE, getattr(_process_generator, name), *args, **kwargs)
        return getattr(generators.torch, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in dir(torch.Generator):
    if not _name.startswith("_") and callable(getattr(torch.Generator, _name)):
        setattr(_DefaultGenerator, _name, _delegating(_name))

_stand_in: Any = _DefaultGenerator()
_process_generator: Any = torch.default_generator
# A generator comes to the kernels in a new Python object, so only the address can be compared.
_default_addresses = (_process_generator._cdata, _stand_in._cdata)


def install_torch() -> None:
    """Redirect the draws of this process; once is enough and for good.

    Raises
    ------
    UnsupportedPlatformError
        If this torch lacks what the redirection is made of.
    """
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    operators = list(_random_operators())
    names = {str(operator).removeprefix("aten.") for operator in operators}
    if not {"bernoulli_.float", "uniform_.default", "randperm.generator_out"} <= names:
        raise UnsupportedPlatformError(
            f"torch must draw its random numbers through uniform_, bernoulli_ and randperm, got "
            f"torch {torch.__version__}, which has {sorted(names)}. Use a torch release that "
            "fedbench's tests cover."
        )
    for operator in operators:
        library.impl(operator, _redirected(operator), _KEY.name, with_keyset=True)
    ledger.register(_SOURCE, _snapshot)
    setattr(torch.random, "default_generator", _stand_in)  # noqa: B010 - no public attribute
    _library = library


def _snapshot() -> bytes:
    state: torch.Tensor = _process_generator.get_state()
    return state.numpy().tobytes()


def _random_operators() -> Iterator[torch._ops.OpOverload]:
    """Yield the operators that have a kernel of the CPU and take a generator."""
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        if namespace != "aten":
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CPU"):
            continue
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if any(argument.name == "generator" for argument in operator._schema.arguments):
            yield operator


def _redirected(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return the kernel that puts the task's generator into a call of `operator`."""
    arguments = operator._schema.arguments
    generator_position = [argument.name for argument in arguments].index("generator")
    tensor_position = [str(argument.type) for argument in arguments].index("Tensor")
    tensor_is_keyword = arguments[tensor_position].kwarg_only  # out= of randperm
    redispatch = operator._handle.redispatch_boxed

    def kernel(
        keyset: torch._C.DispatchKeySet,
        *args: Any,
        generator: Any = None,
        **out: torch.Tensor,
    ) -> Any:
        if len(args) > generator_position:  # an operator whose generator is positional
            args, generator = args[:generator_position], args[generator_position]
        if generator is None or generator._cdata in _default_addresses:
            generator = None
            tensor = out["out"] if tensor_is_keyword else args[tensor_position]
            if tensor.is_cpu:  # neither a GPU's nor, while tracing, a meta tensor
                generators = active.generators
                if generators is None:
                    return ledger.outside(
                        _SOURCE, redispatch, keyset & _BELOW, *args, generator=None, **out
                    )
                generator = generators.torch
        return redispatch(keyset & _BELOW, *args, generator=generator, **out)

    return kernel

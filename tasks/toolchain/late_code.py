"""Graph modules whose Python code is generated when something calls it, and not after every pass.

Most passes generate and compile the code of the whole graph again, although nothing runs it before the next pass: this
takes a fifth of the time of a conversion. torch.fx has lazy modules too (`_LazyGraphModule`), but the passes of
ExecuTorch make others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen

Generate = Callable[[GraphModule], Any]


@contextmanager
def generated_late() -> Iterator[None]:
    """Within this context, `recompile` generates the code of a module as soon as its `forward` is read, and not before.

    A new module has code at once. Until the `forward` of a changed module is read, the module must not be pickled, and
    the text of its code, `GraphModule.code`, is that of the last generation.
    """
    generate = GraphModule.recompile

    def recompile(module: GraphModule) -> Any:
        if "_wrapped_call" not in vars(type(module)):  # the class, which has one instance, is not complete yet
            return generate(module)
        if isinstance(codegen := module.graph._codegen, _PyTreeCodeGen):  # what a pass reads beside `forward`
            module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
        module._recompile_submodules()
        type(module).forward = _Late(module, generate)  # pyright: ignore[reportAttributeAccessIssue]
        return None

    GraphModule.recompile = recompile  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        GraphModule.recompile = generate


class _Late:
    """The `forward` of a module whose code is not generated yet. What is generated takes its place."""

    def __init__(self, module: GraphModule, generate: Generate) -> None:
        self._module = module
        self._generate = generate

    def __get__(self, instance: GraphModule | None, owner: type[GraphModule]) -> Any:
        try:
            self._generate(self._module)
        except AttributeError as error:  # it would mean that there is no `forward`
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return owner.forward if instance is None else instance.forward

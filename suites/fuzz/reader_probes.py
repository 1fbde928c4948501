"""Probes of the smaller fuzzers: how upstream reads `adapter_path`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from harness.observe.exceptions import portable
from harness.observe.run import Run
from harness.probes import _wrap
from harness.probes.adapter_load import PRELOAD as PRELOAD
from harness.probes.adapter_load import peft_form
from harness.probes.config_values import converse
from harness.probes.registry import probe

_LOADERS = {
    "verl.utils.megatron_peft_utils": "load_adapter_checkpoint",
    "megatron.bridge.peft.utils": "load_peft_adapter_checkpoint",
}


@probe(enters=(_wrap.MAKE_MEGATRON_MODULE,), returns=("ended",))
def adapter_paths(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Which adapter `make_megatron_module` would load, for `{"given": form, "path": text, "fault": None}`.

    An answer has the path that the loader got as `loaded` and the exception `raised`, each or None. The loader, the
    provider and the PEFT object are replaced. With one of FAULTS in the place of None the section is misread.
    """
    run.lane.start_distributed(run)
    make = run.upstream(_wrap.MAKE_MEGATRON_MODULE)
    wrap_config = run.upstream("verl.utils.megatron_utils:McoreModuleWrapperConfig")(wrap_with_ddp=False)
    loaded: list[str] = []
    for module, name in _LOADERS.items():
        if hasattr(run.upstream(module), name):
            run.stand_in(f"{module}.{name}", "keeps the path", "the model is none")
            setattr(run.upstream(module), name, lambda _model, path, **_: loaded.append(str(path)))
    run.stand_in("verl.utils.megatron_peft_utils.print_adapter_info", "nothing", "the model is none")
    run.upstream("verl.utils.megatron_peft_utils").print_adapter_info = lambda _: None
    run.stand_in("provider", "calls its hooks", "only what is read from the PEFT section matters")

    def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        loaded.clear()
        misread = FAULTS.get(question["fault"], lambda form, path: (form, path))
        form, path = misread(question["given"], question["path"])
        config = peft_form(run, form)({"rank": 8, "type": "lora"}, path)
        hf_config = SimpleNamespace(hidden_size=8, rope_theta=10000.0)
        make(wrap_config, None, hf_config, bridge=object(), provider=_Provider(), peft_cls=_Peft(), peft_config=config)
        return {"loaded": loaded[-1] if loaded else None}

    converse(listen, lambda question: _attempt(answer, question))
    return {"ended": True}


FAULTS: Mapping[str, Callable[[str, str], tuple[str, str]]] = {
    "another path is loaded": lambda form, path: (form, f"{path}/"),
    "dicts are read by attribute": lambda form, path: ("object" if form == "dict" else form, path),
    "a section that is none is no error": lambda form, path: ("absent" if form == "none" else form, path),
}
"""What a reader that goes wrong makes of a section: a form, and a path."""


class _Provider:
    """Registers hooks, and calls them on a model that is none."""

    sequence_parallel, fp16, bf16 = False, False, True

    def __init__(self) -> None:
        self._hooks: list[Any] = []

    def register_pre_wrap_hook(self, hook: Any) -> None:
        self._hooks.append(hook)

    def provide_distributed_model(self, **_: Any) -> list[Any]:
        model = [SimpleNamespace(config=SimpleNamespace())]
        for hook in self._hooks:
            model = hook(model)
        return model


class _Peft:
    """Leaves a model as it is."""

    def __call__(self, model: Any, training: bool = True) -> Any:
        return model

    def set_params_to_save(self, model: Any) -> None:
        pass


def _attempt(answer: Any, question: Any) -> dict[str, Any]:
    try:
        return {**answer(question), "raised": None}
    except Exception as error:  # noqa: BLE001 - whatever upstream raises is the answer
        return {"raised": portable(f"{type(error).__name__}: {error}", {})}

"""Case ids are stable, short, and name one case each."""

from pathlib import Path

import pytest

from harness.cases import make_case
from harness.layouts import LAYOUTS, UnknownLayoutError
from harness.probes import ProbeError

FILE = '''
from harness.probes import probe

@probe(returns=("x",))
def shape(run, *, model="qwen3", peft="lora", rank=8, alpha="absent", dtype="absent"):
    """Shape."""

@probe(returns=("x",))
def needs(run, *, model: str):
    """Needs a model."""
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "probes.py"
    found.write_text(FILE)
    return found


@pytest.mark.parametrize(
    ("parameters", "layout", "expected"),
    [
        ({}, "single", "shape"),
        ({"model": "qwen3"}, "single", "shape"),
        ({"peft": "dora", "model": "llama"}, "tp2", "shape[llama,dora,tp2]"),
        ({"rank": 16}, "single", "shape[rank=16]"),
        ({"alpha": "none"}, "single", "shape[alpha=none]"),
        ({"dtype": "none"}, "single", "shape[dtype=none]"),
        ({"rank": True}, "single", "shape[rank=true]"),
    ],
)
def test_ids(file: Path, parameters: dict[str, object], layout: str, expected: str) -> None:
    assert make_case(f"{file}::shape", parameters, layout=layout).id == expected


def test_long_values_are_shortened_and_stay_distinct(file: Path) -> None:
    first, second = (make_case(f"{file}::shape", {"model": "/very" * 20 + end}) for end in ("/a", "/b"))
    assert first.id != second.id
    assert first.slug != second.slug
    assert len(first.id) < 60


@pytest.mark.parametrize(
    ("probe", "parameters", "told"),
    [
        ("shape", {"peff": "x"}, "takes no parameter 'peff'; it takes: model, peft"),
        ("needs", {}, "needs model="),
        ("nothing", {}, "declares no probe 'nothing'"),
    ],
)
def test_wrong_parameters_are_told(file: Path, probe: str, parameters: dict[str, object], told: str) -> None:
    with pytest.raises(ProbeError, match=told):
        make_case(f"{file}::{probe}", parameters)


def test_layouts_have_the_world_size_of_their_parallel_sizes() -> None:
    by_size: dict[int, list[str]] = {}
    for name, layout in LAYOUTS.items():
        by_size.setdefault(layout.world_size, []).append(name)
    assert by_size == {
        1: ["single"],
        2: ["dp2", "tp2", "tp2_sp", "pp2", "vpp2", "ep2", "cp2", "fsdp2", "tp2_etp1"],
        4: ["tp2_pp2", "tp2_dp2", "tp2_ep2", "tp2_sp_cp2", "pp2_ep2", "pp2_vpp2_dp2", "etp2", "ep4", "cp4", "fsdp4"],
        8: ["tp4_pp2_ep4", "pp4_dp2", "fsdp8", "tp2_pp2_vpp2_dp2", "tp2_cp2_ep2_dp2"],
    }
    with pytest.raises(UnknownLayoutError, match="known: single"):
        make_case("ddp_config", {}, layout="tp3")


def test_a_probe_must_declare_evidence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from harness.probes import probe\n\n@probe()\ndef blind(run):\n    return {}\n")
    with pytest.raises(ProbeError, match="evidence"):
        make_case(f"{bad}::blind", {})

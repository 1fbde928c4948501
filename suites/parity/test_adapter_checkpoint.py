"""Checkpoints of models with an adapter: files on disk, who can resume from whose, and the Hugging Face export."""

import pytest

from harness.pytest_plugin import Consistency, Parity

PEFT = ["lora", "dora", "canonical_lora"]
DEEP, MOE = "qwen3_deep", "qwen3_moe"
LAYOUTS = [("qwen3", "tp2"), ("qwen3", "pp2"), (DEEP, "vpp2"), (MOE, "ep2")]
EVERYTHING = "model,optimizer,extra"
FEWER = 'target_modules=["linear_qkv"]'
OTHER = f"alpha=16;{FEWER}"


@pytest.mark.regression("K17")
@pytest.mark.parametrize("peft", PEFT)
def test_files(parity: Parity, peft: str) -> None:
    parity("adapter_checkpoint", peft=peft)


@pytest.mark.regression("K17")
@pytest.mark.parametrize(("hf_config", "layout"), LAYOUTS)
def test_files_of_several_ranks(parity: Parity, hf_config: str, layout: str) -> None:
    parity("adapter_checkpoint", hf_config=hf_config, layout=layout)


def test_files_of_a_whole_checkpoint(parity: Parity) -> None:
    parity("adapter_checkpoint", contents=EVERYTHING)


@pytest.mark.parametrize("peft", PEFT)
def test_resume(parity: Parity, peft: str) -> None:
    parity("adapter_resume", peft=peft)


@pytest.mark.regression("K17")
@pytest.mark.parametrize(("hf_config", "layout"), LAYOUTS)
def test_resume_on_several_ranks(parity: Parity, hf_config: str, layout: str) -> None:
    parity("adapter_resume", hf_config=hf_config, layout=layout)


@pytest.mark.parametrize(("layout", "written_layout"), [("single", "tp2"), ("tp2", "single")])
def test_resume_in_another_layout(parity: Parity, layout: str, written_layout: str) -> None:
    parity("adapter_resume", layout=layout, written_layout=written_layout)


@pytest.mark.regression("K17", "K24")
@pytest.mark.parametrize("contents", ["model", EVERYTHING])
@pytest.mark.parametrize("written_by", ["old", "new"])
def test_resume_from_what_the_other_side_wrote(parity: Parity, written_by: str, contents: str) -> None:
    parity("adapter_resume", contents=contents, written_by=written_by)


@pytest.mark.regression("K17")
def test_resume_from_the_oldest_format(parity: Parity) -> None:
    parity("adapter_resume", written_by="verl-0.7.1")


def test_resume_with_the_optimizer(parity: Parity) -> None:
    parity("adapter_resume", contents=EVERYTHING)


@pytest.mark.regression("K17")
@pytest.mark.parametrize("written_by", ["own", "old", "new"])
def test_refusal_where_only_other_formats_are_left(parity: Parity, written_by: str) -> None:
    parity("adapter_resume", without="dist_ckpt", written_by=written_by)


@pytest.mark.parametrize("given", [{"fields": FEWER}, {"written_fields": FEWER}, {"fields": "rank=4"}])
def test_resume_with_another_adapter_than_was_written(parity: Parity, given: dict[str, str]) -> None:
    parity("adapter_resume", **given)


@pytest.mark.parametrize("peft", PEFT)
def test_export(parity: Parity, peft: str) -> None:
    parity("adapter_export", peft=peft)


@pytest.mark.parametrize(("hf_config", "layout"), [("qwen3", "tp2"), (DEEP, "vpp2"), (MOE, "ep2")])
def test_export_of_several_ranks(parity: Parity, hf_config: str, layout: str) -> None:
    parity("adapter_export", hf_config=hf_config, layout=layout)


def test_export_of_another_adapter(parity: Parity) -> None:
    parity("adapter_export", fields=OTHER)


@pytest.mark.self_consistency
@pytest.mark.parametrize("peft", PEFT)
def test_peft_library_makes_the_same_model(consistency: Consistency, peft: str) -> None:
    consistency("exported_adapter", peft=peft)


@pytest.mark.self_consistency
@pytest.mark.parametrize(("hf_config", "layout"), [("qwen3", "tp2"), (MOE, "single"), (MOE, "ep2")])
def test_peft_library_makes_the_same_model_of_shards(consistency: Consistency, hf_config: str, layout: str) -> None:
    consistency("exported_adapter", hf_config=hf_config, layout=layout)


@pytest.mark.self_consistency
def test_peft_library_makes_the_same_model_of_another_adapter(consistency: Consistency) -> None:
    consistency("exported_adapter", fields=OTHER)

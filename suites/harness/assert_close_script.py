"""Which pairs of safetensors files `torch.testing.assert_close` tells apart; runs where torch is, prints JSON."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def main(folder: Path) -> None:
    found = {}
    for right in folder.glob("*-right.safetensors"):
        dtype = right.name.partition("-")[0]
        for file in folder.glob(f"{dtype}-*.safetensors"):
            if file != right:
                found[file.stem] = _raises(right, file)
    sys.stdout.write(json.dumps(found))


def _raises(old: Path, new: Path) -> bool:
    try:
        torch.testing.assert_close(load_file(new), load_file(old))
    except AssertionError:
        return True
    return False


main(Path(sys.argv[1]))

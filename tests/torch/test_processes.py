"""What consumers do to tensors of a file kills no process and does not reach the file."""

import subprocess
import sys

import numpy as np
import pytest

import embmap
from tests.required import require

require("torch")

pytestmark = pytest.mark.slow

BEFORE = """
import os, sys, shutil
import torch
import embmap
from embmap.torch import load_file, tensor

path, spare = sys.argv[1:]
file = embmap.open(path)

def replace():
    shutil.copy(spare, path + ".new")
    os.replace(path + ".new", path)

def refused(call, error, words):
    try:
        call()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError("it was not refused")
"""
AFTER = """
print("alive")
"""
PROGRAMS = {
    "in place": """
for give in (torch.from_dlpack, torch.as_tensor, tensor):
    found = give(file.vectors)
    found.add_(1)
    found[3] = 7
    found.t().sigmoid_()
    torch.nn.functional.normalize(found, out=found)
load_file(path)["wte.weight"].mul_(2)
""",
    "training": """
for options in ({}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}):
    layer = torch.nn.Embedding.from_pretrained(
        torch.from_dlpack(file.vectors), freeze=False, **options
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.tensor([1, 5, 5])).sum().backward()
        optimizer.step()
""",
    "closed": """
found, loaded = torch.from_dlpack(file.vectors), load_file(path)["wte.weight"]
rows = file.vectors
file.close()
del file
for each in (found, loaded, torch.from_dlpack(rows)):
    each.add_(1)
    assert each.sum().isfinite()
""",
    "replaced": """
found = tensor(file)
replace()
found.add_(1)
for call in (lambda: torch.from_dlpack(file.vectors), lambda: tensor(file)):
    refused(call, embmap.FormatError, "replaced or removed")
assert torch.equal(tensor(file, [3]).add_(1), found[[3]])
torch.from_dlpack(file.vectors, copy=True).add_(1)
""",
    "removed": """
found = tensor(file)
os.remove(path)
found.add_(1)
refused(lambda: torch.from_dlpack(file.vectors), embmap.FormatError, "replaced or removed")
replace()
""",
    "truncated": """
os.truncate(path, 200)
for call in (
    lambda: torch.from_dlpack(file.vectors),
    lambda: torch.from_dlpack(file.vectors, copy=True),
    lambda: tensor(file),
    lambda: tensor(file, [3]),
    lambda: load_file(path),
):
    refused(call, embmap.EmbmapError, "")
replace()
""",
    "forked": """
found = tensor(file)
child = os.fork()
if not child:
    found.add_(1)
    tensor(file).add_(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(found, tensor(file))
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_process_lives_and_the_file_stays(tmp_path, name):
    path, spare = tmp_path / "a.weights", tmp_path / "spare"
    rows = np.random.default_rng(2).standard_normal((500, 64)).astype(np.float32)
    embmap.embd.write(path, {"wte.weight": rows}, vocab=[f"w{i}" for i in range(500)])
    before = path.read_bytes()
    spare.write_bytes(before)
    program = BEFORE + PROGRAMS[name] + AFTER
    ran = subprocess.run(
        [sys.executable, "-c", program, path, spare], capture_output=True, text=True, timeout=300
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("alive\n", "", 0)
    assert path.read_bytes() == before


def test_embmap_loads_torch_only_when_it_is_asked_for(path):
    program = """
import sys
import embmap
embmap.cvc.load
embmap.open(sys.argv[1]).vectors.__dlpack__()
assert "torch" not in sys.modules
import embmap.torch
assert "torch" in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)

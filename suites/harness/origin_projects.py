"""Small projects on repositories made for the test, in whose history a search finds something."""

from pathlib import Path

from stacks_support import commit, git
from toy_project import PROBES, Project, make_project

History = tuple[Project, Path, list[str]]
"""A project, the clone of its package toy, and the hashes of that clone's commits."""

CLONES = """
[tool.parity.clones]
toy = "{toy}"
part = "{part}"
"""
PROJECT = """
[tool.parity]
old = "toy-old"
new = "toy-new"
base = "current"

[tool.parity.stacks.toy-old.pins]
toy = {{ git = "{toy}", rev = "{first}" }}
part = {{ git = "{part}", rev = "{part_first}" }}

[tool.parity.stacks.toy-new.pins]
toy = {{ git = "{toy}", rev = "main" }}
part = {{ git = "{part}", rev = "main" }}
"""
GOOD = """
def build(size=1):
    return {"size": size}
"""
BAD = GOOD.replace('"size": size', '"size": size + 1')
MORE_PROBES = """

@probe(enters=("toy:build",), returns=("config.size",))
def size(run):
    \"\"\"What toy makes of one.\"\"\"
    return {"config": run.upstream("toy:build")(1)}


@probe(enters=("toy:both",), returns=("total",))
def both(run):
    \"\"\"What toy and part make together.\"\"\"
    config = run.upstream("toy:configured")()
    run.resolve("config", config)
    return {"total": run.upstream("toy:both")(config)}


@probe(enters=("toy.layers:scaled",), tensors=("out",))
def traced(run):
    \"\"\"What two layers make of four numbers.\"\"\"
    import numpy
    from harness.observe.trace import Step, TracedTensor

    value = numpy.arange(4.0)
    for name in ("first", "second"):
        if name == run.watched:
            run.sources.start()
        before, value = value, run.upstream(f"toy:{name}")(value)
        if name == run.watched:
            run.sources.stop()
        seen = [TracedTensor("float64", each.shape, each.tobytes().hex()) for each in (before, value)]
        run.trace.append(Step(name, "forward", (seen[0],), (seen[1],)))
    return {"out": value}


@probe(enters=("toy:build",), returns=("config.size",))
def slow(run, *, begun: str):
    \"\"\"What toy makes of one, a minute after it made a file.\"\"\"
    import pathlib
    import time

    pathlib.Path(begun).touch()
    time.sleep(60)
    return {"config": run.upstream("toy:build")(1)}
"""
METADATA = '[project]\nname = "{name}"\nversion = "1.0"\n'


def repository(folder: Path, name: str, texts: list[str]) -> tuple[Path, list[str]]:
    """A repository of one module, a commit for each text."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    hashes = []
    for number, text in enumerate(texts):
        files = {f"{name}/__init__.py": f"# {number}\n{text}", "pyproject.toml": METADATA.format(name=name)}
        hashes.append(commit(folder, files))
    return folder, hashes


def project_of(tmp_path: Path, toy: list[str], part: list[str], *, clones: bool = True) -> History:
    """A project whose packages toy and part have a commit for each text."""
    project = make_project(tmp_path / "project")
    clone, hashes = repository(tmp_path / "toy", "toy", toy)
    other, others = repository(tmp_path / "part", "part", part)
    text = (PROJECT + (CLONES if clones else "")).format(toy=clone, part=other, first=hashes[0], part_first=others[0])
    project.write("pyproject.toml", text)
    project.write("probes.py", PROBES + MORE_PROBES)
    return project, clone, hashes


FLAKY = """
from pathlib import Path


def build(size=1):
    count = Path({file!r})
    with count.open("a") as file:
        file.write("x")
    return {{"size": size + (count.stat().st_size % 3 != {good})}}
"""


def ends(hashes: list[str]) -> list[str]:
    """What a bisection over all commits of toy is given."""
    return ["--axis", "toy", "--good", hashes[0], "--bad", "main"]

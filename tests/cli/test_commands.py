"""Every command is found in the module that is named for it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import embmap

pytest.importorskip("typer", reason="typer is not installed")
pytest.importorskip("rich", reason="rich is not installed")

from embmap.cli import COMMANDS, run


@pytest.mark.parametrize(("module", "names"), COMMANDS.items())
def test_a_module_is_named_for_its_commands(module, names):
    commands = import_module(f"embmap.cli.{module}")
    for name in names:
        assert name in module.split("_")
        assert name in commands.__all__


def test_no_other_module_of_the_package_has_the_name_of_a_module_of_the_command_line():
    root = Path(embmap.__file__).parent
    others = {path.stem for path in root.rglob("*.py") if path.parent.name != "cli"}
    assert not others & {path.stem for path in (root / "cli").glob("[!_]*.py")}


def test_a_command_imports_only_its_module():
    code = (
        "import sys; from embmap.cli import run; run(['info', 'nowhere']); "
        "print('embmap.conversion' in sys.modules, 'embmap.cli.info_ls_verify' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_every_command_explains_itself(capsys):
    for name in [name for names in COMMANDS.values() for name in names]:
        assert run([name, "--help"]) == 0
        assert f"Usage: embmap {name}" in capsys.readouterr().out

"""Showing source and showing errors, in a script and in the cells of a real kernel."""

import inspect
import math
from types import FunctionType

import nbclient
import nbformat
import pytest

import ddp_src.errors
from ddp_src import show_source, shows
from ddp_src.errors import ConfigError, DataError

FROM_TEXT = FunctionType(compile("0", "<text>", "eval"), {}, "from_text")
CELLS = [
    "from ddp_src import show_source, shows\nfrom ddp_src.errors import DataError",
    "def double(x):\n    return 2 * x\n\n\nclass Point:\n    x = 1",
    "show_source(double)\nshow_source(Point)",
    "class Point:\n    x = 2\nshow_source(Point)",
    'def fail():\n    raise ValueError("too small")',
    "with shows(ValueError):\n    fail()\nprint('goes on')",
    "with shows(KeyError):\n    pass",
    "with shows(KeyError):\n    fail()",
]


@pytest.fixture(scope="module")
def outputs() -> list[list]:
    """The outputs of each of CELLS."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=60, allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells]


def test_source_of_functions_and_classes_of_cells(outputs):
    function, cls = outputs[2]
    assert function.data["text/markdown"] == (
        "**`Cell In[2]:1`**\n\n```python\ndef double(x):\n    return 2 * x\n```"
    )
    assert function.data["text/plain"] == "Cell In[2]:1\n\ndef double(x):\n    return 2 * x"
    assert cls.data["text/plain"] == "Cell In[2]:5\n\nclass Point:\n    x = 1"


def test_source_of_a_class_defined_twice_is_the_last(outputs):
    assert outputs[3][0].data["text/plain"] == "Cell In[4]:1\n\nclass Point:\n    x = 2"


def test_source_of_a_module_function_names_the_file_from_the_root(capsys):
    lines, first = inspect.getsourcelines(DataError)
    show_source(DataError, ddp_src.errors)
    said = capsys.readouterr().out
    assert said.startswith(f"ddp_src/errors.py:{first}\n\n{''.join(lines)}")
    assert f"\nddp_src/errors.py:1\n\n{inspect.getsource(ddp_src.errors)}" in said


def test_source_of_a_method_is_not_indented(capsys):
    show_source(ConfigError.__str__)
    assert capsys.readouterr().out.splitlines()[2] == "def __str__(self) -> str:"


def test_source_that_holds_a_fence_is_fenced_by_a_longer_one():
    shown = ddp_src.notebook.Source("x.py:1", 'text = """\n```python\n```\n"""')._repr_markdown_()
    assert shown.splitlines()[2] == "````python" and shown.splitlines()[-1] == "````"


@pytest.mark.parametrize(
    ("thing", "name"), [(math.sqrt, "sqrt"), (int, "int"), (3, "3"), (FROM_TEXT, "from_text")]
)
def test_what_has_no_source_says_so(capsys, thing, name):
    show_source(thing)
    assert capsys.readouterr().out == (
        f"{name} has no Python source to show; it is built in, compiled, or not a definition.\n"
        f"{name} 没有可以显示的 Python 源码：它是内建或编译好的，或者不是一个定义。\n"
    )


def test_shows_prints_frames_from_the_cell_on_and_goes_on(outputs):
    assert outputs[5][0].text == (
        "Traceback (most recent call last):\n"
        "  Cell In[6], line 2, in <module>\n"
        "    fail()\n"
        "  Cell In[5], line 2, in fail\n"
        '    raise ValueError("too small")\n'
        "ValueError: too small\n"
        "goes on\n"
    )


def test_shows_fails_when_the_error_does_not_come(outputs):
    (error,) = outputs[6]
    assert (error.ename, error.evalue) == (
        "AssertionError",
        "KeyError was expected here, but nothing was raised.\n这里应当出现 KeyError，却没有任何报错。",
    )


def test_shows_lets_another_error_through(outputs):
    (error,) = outputs[7]
    assert (error.ename, error.evalue) == ("ValueError", "too small")


def test_shows_an_error_written_for_the_reader_without_frames(capsys):
    with shows(DataError):
        raise DataError("no file x.pth; give another.", "没有文件 x.pth；请换一个。")
    assert capsys.readouterr().out == "DataError: no file x.pth; give another.\n没有文件 x.pth；请换一个。\n"


def test_shows_an_error_as_it_renders_itself(capsys):
    class Rendered(RuntimeError):
        def _render_traceback_(self):
            return ["one line", "another"]

    with shows(RuntimeError):
        raise Rendered("long")
    assert capsys.readouterr().out == "one line\nanother\n"


def test_shows_counts_the_frames_of_libraries(capsys):
    import json

    with shows(json.JSONDecodeError):
        json.loads("{")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith("in test_shows_counts_the_frames_of_libraries")
    assert lines[2:4] == ['    json.loads("{")', "  … 2 more"]
    assert lines[4].startswith("  json/decoder.py, line ") and lines[4].endswith(", in raw_decode")
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")

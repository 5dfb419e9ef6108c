"""GoNB's own test notebooks, as its module has them, give here what GoNB's tests expect of them.

SOARBOOK_TEST_GONB is the folder of the module github.com/janpfeifer/gonb. Lines that start with !* are left out: they rewrite the
go.mod or go.work of the module, which is a throw-away in GoNB and this repository here.
"""

import os
import pathlib
import tempfile
import unittest

import nbformat
from nbclient import NotebookClient

KERNEL = os.environ.get("SOARBOOK_TEST_KERNELSPEC", "soarbook")
EXAMPLES = pathlib.Path(os.environ["SOARBOOK_TEST_GONB"]) / "examples" / "tests"

# For each notebook: code cell (from 1) -> what its output contains.
EXPECTED = {
    "hello": {2: "Hello World!\n", 3: "Works with //gonb:\n", 4: "Got x=17\n", 5: "Got x=13\n"},
    "functions": {3: "incr: x=2, y=4.14\n"},
    "gonbui": {4: "html displayed", 5: "markdown displayed"},
    "script": {1: "1 : a\n2 : b\n3 : c\n", 2: "18\n", 3: "19\n", 4: "can only appear at the start"},
    "vartuple": {1: "a=3, c=7\n", 3: "c=1.5\n", 4: ". removed a"},
    "writefile": {1: "Cell contents written to", 2: "Cell contents appended to"},
    "capture": {2: "Ping\n", 4: "Ping\nPong\n", 6: "Ping\nPong\n", 8: "# Ping\n# Pong\n"},
    "init": {4: "init: v0\n", 5: "init: v1\n", 7: "Done\n"},
    "bash_script": {1: "hello\n"},
    "errors": {1: "Hello World\n", 2: "CompileError", 3: "Stuck in Switzerland"},
}


def text(cell):
    out = ""
    for o in cell.outputs:
        if o.output_type == "stream":
            out += o.text
        elif o.output_type == "error":
            out += o.ename + ": " + o.evalue
        else:
            out += o.data.get("text/html", o.data.get("text/markdown", o.data.get("text/plain", "")))
    return out


class GoNB(unittest.TestCase):
    def test_notebooks(self):
        for name, expected in EXPECTED.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as work:
                nb = nbformat.read(EXAMPLES / (name + ".ipynb"), 4)
                nb.cells = [c for c in nb.cells if c.cell_type == "code"]
                for c in nb.cells:
                    c.outputs = []
                    c.source = "\n".join(line for line in c.source.split("\n") if not line.startswith("!*"))
                env = dict(os.environ, TEST_DIR=work + "/")
                client = NotebookClient(nb, timeout=120, kernel_name=KERNEL, allow_errors=True, resources={"metadata": {"path": work}})
                with client.setup_kernel(env=env):
                    for i, c in enumerate(nb.cells):
                        client.execute_cell(c, i)
                for i, want in expected.items():
                    self.assertIn(want, text(nb.cells[i - 1]), f"cell {i}: {nb.cells[i - 1].source}")


if __name__ == "__main__":
    unittest.main()

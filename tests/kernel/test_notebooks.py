"""Headless runs fail where a cell fails, and say where: nbclient, nbconvert --execute and papermill.

Run by kernel_test.go, or by hand with JUPYTER_PATH set to a folder that holds the kernelspec.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

KERNEL = os.environ.get("SOARBOOK_TEST_KERNELSPEC", "soarbook")

# The cell before one that fails.
FINE = 'fmt.Println("fine")\nfunc crash(i int) int {\n\tvar s []int\n\treturn s[i]\n}'

# What stops where it reached the time-out.
ENDLESS = ("for {\n}", "time.Sleep(time.Hour)", "<-make(chan int)", "!sleep 3600")

# What fails, after a cell that does not: the source, and what a person must be told.
FAILURES = {
    "panic": ('fmt.Println("before")\nvar s []int\n_ = s[3]', ["index out of range [3] with length 0", "Cell [2] line 3"]),
    "panic in an earlier cell": ("crash(3)", ["index out of range [3] with length 0", "Cell [1] line 4", "Cell [2] line 1"]),
    "exit": ('fmt.Println("before")\nos.Exit(3)', ["Cell [2] line 2", "exit status 3"]),
    "log.Fatal": ('x := 1\n\nlog.Fatal("it is over ", x)', ["Cell [2] line 3", "exit status 1"]),
    "compile error": ('x := 1\nvar y string = x', ["Cell [2] line 2", "string"]),
    "undefined": ("x := 1\n\tnosuch(x)", ["Cell [2] line 2", "undefined: nosuch"]),
    "syntax": ("x := 1\nfunc broken( {", ["Cell [2] line 2"]),
    "goroutine": ('go func() {\n\tpanic("in a goroutine")\n}()\ntime.Sleep(5 * time.Second)', ["Cell [2] line 2", "in a goroutine"]),
    "stack": ("func deep(n int) int { return deep(n+1) + 1 }\ndeep(0)", ["Cell [2] line 1", "stack overflow"]),
    "memory": ("n := 1 << 46\nb := make([]byte, n)\nlen(b)", ["Cell [2] line 2", "out of memory"]),
    "shell": ("!echo before\n!exit 7", ["Cell [2] line 2", "exit status 7"]),
    "magic": ("\n%no_such_magic", ["Cell [2] line 2", "%help"]),
}


def notebook(*sources, tags=()):
    nb = nbformat.v4.new_notebook()
    nb.metadata["kernelspec"] = {"name": KERNEL, "display_name": "Go (soarbook)", "language": "go"}
    nb.metadata["language_info"] = {"name": "go"}
    for i, s in enumerate(sources):
        cell = nbformat.v4.new_code_cell(s)
        if i in tags:
            cell.metadata["tags"] = ["parameters"]
        nb.cells.append(cell)
    return nb


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, nb, name="nb.ipynb"):
        path = self.dir / name
        nbformat.write(nb, path)
        return path


class Notebooks(Case):
    def test_nbclient(self):
        nb = notebook('fmt.Println("hello")', "x := 3", "x + 1")
        NotebookClient(nb, timeout=120).execute()
        self.assertEqual(nb.cells[0].outputs[0]["text"], "hello\n")
        self.assertEqual(nb.cells[2].outputs[0]["data"]["text/plain"], "4")

    def test_nbclient_failures(self):
        for name, (source, want) in FAILURES.items():
            with self.subTest(name):
                nb = notebook(FINE, source, 'fmt.Println("never")')
                with self.assertRaises(CellExecutionError) as raised:
                    NotebookClient(nb, timeout=120).execute()
                for w in want:
                    self.assertIn(w, str(raised.exception))
                self.assertEqual(nb.cells[0].outputs[0]["text"], "fine\n")
                self.assertEqual(nb.cells[2].outputs, [])

    def test_nbclient_goes_on_where_errors_are_allowed(self):
        nb = notebook("x := 3", 'panic("no")', "x")
        NotebookClient(nb, timeout=120, allow_errors=True).execute()
        self.assertEqual(nb.cells[1].outputs[0]["ename"], "Panic")
        self.assertEqual(nb.cells[2].outputs[0]["data"]["text/plain"], "3")

    def test_nbclient_timeout(self):
        for source in ENDLESS:
            with self.subTest(source):
                nb = notebook('fmt.Println("warm")', source)
                client = NotebookClient(nb, timeout=60)
                with client.setup_kernel():
                    client.execute_cell(nb.cells[0], 0)
                    client.timeout = 3
                    with self.assertRaises(CellTimeoutError) as raised:
                        client.execute_cell(nb.cells[1], 1)
                    self.assertIn(source.split("\n")[0], str(raised.exception))  # nbclient quotes the cell

    def test_nbclient_timeout_interrupts(self):
        nb = notebook('fmt.Println("warm")', "for {\n}", "1 + 1")
        client = NotebookClient(nb, timeout=60, interrupt_on_timeout=True, allow_errors=True)
        with client.setup_kernel():
            client.execute_cell(nb.cells[0], 0)
            client.timeout = 3
            client.execute_cell(nb.cells[1], 1)
            client.timeout = 60
            client.execute_cell(nb.cells[2], 2)
        self.assertEqual(nb.cells[1].outputs[0]["ename"], "Interrupted")
        self.assertEqual(nb.cells[2].outputs[0]["data"]["text/plain"], "2")

    def run_tool(self, *args):
        return subprocess.run([sys.executable, "-m", *args], cwd=self.dir, capture_output=True, text=True, timeout=300)

    def test_nbconvert(self):
        self.write(notebook('fmt.Println("hello")', "gonbui.DisplaySvg(`<svg width=\"5\"></svg>`)"))
        done = self.run_tool("nbconvert", "--to", "html", "--execute", "nb.ipynb")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.dir / "nb.html").read_text()
        self.assertIn("hello", page)
        self.assertIn('<svg width="5">', page)

    def test_nbconvert_failures(self):
        for name, (source, want) in FAILURES.items():
            with self.subTest(name):
                self.write(notebook(FINE, source))
                done = self.run_tool("nbconvert", "--to", "notebook", "--execute", "nb.ipynb")
                self.assertNotEqual(done.returncode, 0)
                for w in want:
                    self.assertIn(w, done.stderr)

    def test_nbconvert_timeout(self):
        # The first cell of a kernel may have to wait for its worker; the limit holds for that cell too.
        self.write(notebook('fmt.Println("warm")', "for {\n}", 'fmt.Println("never")'))
        done = self.run_tool("nbconvert", "--to", "notebook", "--execute", "--ExecutePreprocessor.timeout=20", "nb.ipynb")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CellTimeoutError", done.stderr)
        self.assertIn("for {", done.stderr)


class Papermill(Case):
    def test_papermill(self):
        # Papermill knows Go only through the plug-in, which its engines' entry points load.
        import papermill
        from papermill.translators import papermill_translators

        self.assertTrue(papermill_translators.find_translator("soarbook", "go"), "run `soarbook kernel install --prefix` on this environment")
        path = self.write(notebook("n := 1\nname := \"a\"\nrates := []float64{0.1}", 'fmt.Println(n, name, rates)\nfmt.Printf("%T %T %T\\n", n, name, rates)', tags=[0]))
        out = papermill.execute_notebook(path, self.dir / "out.ipynb", parameters={"n": 5, "name": 'q"\\é\n', "rates": [1, 2.5]}, progress_bar=False)
        found = papermill.inspect_notebook(self.write(notebook('a := 1 // how many\nvar b string = "x//y"\nc := `z`\nfmt.Println(a)', tags=[0]), "p.ipynb"))
        self.assertEqual({k: (v["default"], v["help"]) for k, v in found.items()}, {"a": ("1", "how many"), "b": ('"x//y"', ""), "c": ("`z`", "")})
        self.assertIn('5 q"\\é\n [1 2.5]', out.cells[-1].outputs[0]["text"])
        self.assertIn("int string []float64", out.cells[-1].outputs[0]["text"])
        for name, (source, want) in FAILURES.items():
            with self.subTest(name):
                path = self.write(notebook(FINE, source))
                with self.assertRaises(papermill.PapermillExecutionError) as raised:
                    papermill.execute_notebook(path, self.dir / "out.ipynb", progress_bar=False)
                for w in want:
                    self.assertIn(w, str(raised.exception))

    def test_timeout(self):
        import papermill

        for source in ENDLESS[:2]:
            with self.subTest(source):
                path = self.write(notebook('fmt.Println("warm")', source, 'fmt.Println("never")'))
                with self.assertRaises(CellTimeoutError) as raised:
                    papermill.execute_notebook(path, self.dir / "out.ipynb", progress_bar=False, execution_timeout=20)
                self.assertIn(source.split("\n")[0], str(raised.exception))
                written = nbformat.read(self.dir / "out.ipynb", 4)
                self.assertEqual([o["text"] for o in written.cells[0].outputs], ["warm\n"])


if __name__ == "__main__":
    unittest.main()

"""Runs one notebook headless; soarbook starts it in its private Python environment.

usage: driver.py CONFIG.json. Writes the executed notebook, also after a failure, and one JSON object per event to stdout:
{"event": "cell", "cell": N, "of": N, "seconds": S}, then one of
{"event": "done"} or
{"event": "failed", "kind": "cell|timeout|kernel|stopped|setup", "cell": N, "line": N, "source": TEXT, "error": TEXT}.
Cells are counted from 1 over all cells of the notebook, Markdown included; lines from 1. Lines beginning with # in
this file explain what GoNB v0.11.4 does.
"""

import asyncio
import glob
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback

import nbformat
import psutil
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# "[[ Cell [6] Line 2 ]]" in the stack of a panic, "Cell[10]: Line 2" above a compile error: execution counts; or a line
# of the compiled file that GoNB did not map. The soarbook kernel says "Cell [6] line 2".
FRAME = re.compile(r"Cell ?\[(\d+)\]:? [Ll]ine (\d+)|\b(main(?:_test)?\.go):(\d+)")


def emit(**event):
    print(json.dumps(event), flush=True)


class Failed(Exception):
    def __init__(self, kind, error, cell=0, line=0, source=""):
        super().__init__(error)
        self.event = dict(event="failed", kind=kind, error=error, cell=cell, line=line, source=source)


class Shell:
    """The exit statuses of a cell's shell commands, which GoNB shows but does not count as failures.

    GoNB runs `!command` as `/bin/bash -c command`. BASH_ENV makes that bash read the hook below first, which runs the
    command in a second bash and appends its status to a file. Only a bash whose parent is the kernel is meant. The
    cells %%bash, %%sh and %%script are sent as `%%script runner …`, and the runner does the same.
    """

    def __init__(self, folder):
        self.status = os.path.join(folder, "shell.status")
        self.pid = os.path.join(folder, "kernel.pid")
        self.hook = os.path.join(folder, "hook.bash")
        self.runner = os.path.join(folder, "run")
        with open(self.hook, "w") as f:
            f.write(f"""if [ -n "${{BASH_EXECUTION_STRING+x}}" ] && [ "$PPID" = "$(cat {self.pid} 2>/dev/null)" ]; then
  if [ -n "$SOARBOOK_BASH_ENV" ]; then export BASH_ENV="$SOARBOOK_BASH_ENV"; else unset BASH_ENV; fi
  /bin/bash -c "$BASH_EXECUTION_STRING"
  soarbook_status=$?
  echo "$soarbook_status" >> {self.status}
  exit $soarbook_status
elif [ -n "$SOARBOOK_BASH_ENV" ]; then
  . "$SOARBOOK_BASH_ENV"
fi
""")
        with open(self.runner, "w") as f:
            f.write(f"""#!/bin/sh
"$@"
status=$?
echo "$status" >> {self.status}
exit $status
""")
        os.chmod(self.runner, 0o755)

    def environ(self):
        env = dict(os.environ)
        if "BASH_ENV" in env:
            env["SOARBOOK_BASH_ENV"] = env["BASH_ENV"]
        env["BASH_ENV"] = self.hook
        return env

    def code(self, source):
        """The source as it is sent to the kernel."""
        first, newline, rest = source.partition("\n")
        word, space, args = first.removeprefix("//gonb:").partition(" ")
        if word in ("%%bash", "%%sh") and not args.strip():
            return f"%%script {self.runner} {word[2:]}{newline}{rest}"
        if word == "%%script" and args.strip():
            return f"%%script {self.runner} {args}{newline}{rest}"
        return source

    def commands(self, source):
        """Lines, from 1, of the cell's shell commands, in the order in which they run."""
        lines = source.split("\n")
        if self.code(source) != source:
            return [1]
        found, joined = [], False
        for number, line in enumerate(lines, 1):
            line = line.removeprefix("//gonb:")
            if not joined and line.startswith("!"):
                found.append(number)
            joined = line.endswith("\\") and (joined or line[:1] in "!%")
        return found

    def begin(self, pid):
        with open(self.pid, "w") as f:
            f.write(str(pid))
        if os.path.exists(self.status):
            os.remove(self.status)

    def failure(self, source):
        """The line and status of the first command that failed, else None."""
        lines = self.commands(source)
        statuses = []
        if os.path.exists(self.status):
            with open(self.status) as f:
                statuses = f.read().split()
        for i, status in enumerate(statuses):
            if status != "0":
                return (lines[i] if i < len(lines) else 1), int(status)
        if len(statuses) < len(lines):
            return lines[len(statuses)], None
        return None


def sweep():
    """Kills what the kernel left behind: a cell's process and what that started, gopls, daemons of a cell.

    Jupyter kills the kernel alone, and GoNB's gopls has a session of its own. All of them have the temporary folder of
    this run, which is its own, in their environment.
    """
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == os.environ["TMPDIR"]:
                process.kill()
        except psutil.Error:
            pass  # it has ended, or belongs to somebody else


class Client(NotebookClient):
    """Sends a cell's shell code through the runner without changing the notebook."""

    shell = None

    def watch_shell(self):
        execute = self.kc.execute

        def send(code, *args, **kwargs):
            return execute(self.shell.code(code), *args, **kwargs)

        self.kc.execute = send


def unknown_magic(cell):
    """GoNB passes over a %command that it does not know, with a remark."""
    for number, line in enumerate(cell.source.split("\n"), 1):
        name = line.removeprefix("//gonb:")[1:].split(" ")[0]
        if not line.removeprefix("//gonb:").startswith("%") or not name:
            continue
        remark = f'"%{name}" unknown or not implemented yet.'
        if any(o.get("output_type") == "stream" and remark in o.get("text", "") for o in cell.outputs):
            return number, f"unknown command %{name}"
    return None


def text_of(cell, error):
    """What a person should read of a failed cell: the error, and above it what stderr said last."""
    text = ANSI.sub("", "\n".join(error.get("traceback") or []) or error.get("evalue", "")).strip()
    if error.get("ename") == "ExitError":  # the soarbook kernel: os.Exit, log.Fatal, a shell command; what it said last is why
        said = ANSI.sub("", "".join(o.get("text", "") for o in cell.outputs if o.get("output_type") == "stream")).strip()
        return "\n".join([*said.split("\n")[-15:], text]).strip()
    said = ANSI.sub("", "".join(o.get("text", "") for o in cell.outputs if o.get("output_type") == "stream" and o.get("name") == "stderr")).strip()
    if re.fullmatch(r"exit status \d+|signal: .*", text) and said:
        if said == text:  # a test's failures stand in stdout
            out = "".join(o.get("text", "") for o in cell.outputs if o.get("output_type") == "stream" and o.get("name") == "stdout")
            said = ANSI.sub("", out + text).strip()
        lines = said.split("\n")
        if len(lines) > 30:
            lines = lines[:15] + [f"... {len(lines) - 30} lines are left out, the executed notebook has them ..."] + lines[-15:]
        return "\n".join(lines)
    return text


def place(nb, index, counts, text):
    """The cell, line and source line that an error names; the failing cell's first line where it names none."""
    fallback = None
    for match in FRAME.finditer(text):
        if match[1]:
            found, line = counts.get(int(match[1])), int(match[2])
        else:
            found, line = compiled(nb, index, match[3], int(match[4]))
        if found is None:
            continue
        lines = nb.cells[found].source.split("\n")
        if not 1 <= line <= len(lines):
            continue
        if found == index:
            return found, line, lines[line - 1]
        fallback = fallback or (found, line, lines[line - 1])
    if fallback:
        return fallback
    # Python: "Cell In[3], line 2".
    match = re.search(r"Cell In\[\d+\], line (\d+)", text)
    lines = nb.cells[index].source.split("\n")
    if match and 1 <= int(match[1]) <= len(lines):
        return index, int(match[1]), lines[int(match[1]) - 1]
    # No place: os.Exit, log.Fatal, a killed process.
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    return index, 0, lines[first]


def compiled(nb, index, name, number):
    """The cell and line of a line of the Go file that GoNB compiled, found by its text, where only one line has it.

    GoNB maps a stack's lines by itself, but not those of a path that a program wrote in two pieces, nor a test's.
    """
    paths = glob.glob(os.path.join(glob.escape(os.environ["TMPDIR"]), "gonb_*", name))
    if len(paths) != 1:
        return None, 0
    with open(paths[0], encoding="utf-8") as f:
        lines = f.read().split("\n")
    if not 1 <= number <= len(lines) or not lines[number - 1].strip():
        return None, 0
    want = lines[number - 1].strip()
    for found in range(index, -1, -1):
        if nb.cells[found].cell_type != "code":
            continue
        same = [n for n, line in enumerate(nb.cells[found].source.split("\n"), 1) if line.strip() == want]
        if same:
            return (found, same[0]) if len(same) == 1 else (None, 0)
    return None, 0


async def execute(config, nb, folder):
    name = nb.metadata.get("kernelspec", {}).get("name")
    if not name:
        raise Failed("setup", "the notebook names no kernel: choose one in JupyterLab and save it")
    shell = Shell(folder)
    gonb = name == config["gonb"]
    client = Client(nb, kernel_name=name, timeout=config["timeout"] or None, coalesce_streams=True, record_timing=True,
                    resources={"metadata": {"path": config["cwd"]}}, shutdown_kernel="immediate",
                    extra_arguments=config["flags"] if gonb else [])
    client.shell = shell
    counts = {}
    log = open(config["log"], "w")
    try:
        setup = client.async_setup_kernel(stderr=log, stdout=log, env=shell.environ() if gonb else dict(os.environ))
        async with setup:
            stop_on_signals()
            if gonb:
                client.watch_shell()
            await run_cells(config, nb, client, shell if gonb else None, client.km.provisioner.pid, counts)
    except NoSuchKernel as err:
        raise Failed("setup", f'no kernel named "{err.name}"; `soarbook setup` installs "{config["gonb"]}"') from err
    finally:
        log.close()
        sweep()


async def run_cells(config, nb, client, shell, pid, counts):
    total = len(nb.cells)
    for index, cell in enumerate(nb.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if shell:
            shell.begin(pid)
        begun = time.monotonic()
        error = None
        # nbclient counts what it has sent, as the kernel does.
        counts[client.code_cells_executed + 1] = index
        try:
            await client.async_execute_cell(cell, index)
        except CellExecutionError as err:
            outputs = [o for o in cell.outputs if o.get("output_type") == "error"]
            error = outputs[-1] if outputs else dict(ename=err.ename, evalue=err.evalue, traceback=[])
            text = text_of(cell, error)
            # GoNB writes a panic's stack to stderr; the soarbook kernel's error has it, and what a cell prints is its own business.
            streams = [ANSI.sub("", o.get("text", "")) for o in cell.outputs if o.get("output_type") == "stream"] if shell else []
            everything = "\n".join([*streams, "\n".join(error.get("traceback") or []) if not shell else text, text])
            where, line, source = place(nb, index, counts, everything)
            if where != index:
                text = f"(called from cell {index + 1})\n{text}"
            raise Failed("cell", text, where + 1, line, source) from err
        except CellTimeoutError as err:
            cell.outputs.append(new_output("error", ename="Timeout", evalue="", traceback=[f"timed out after {config['timeout']} s"]))
            first = next((s for s in cell.source.split("\n") if s.strip()), "")
            raise Failed("timeout", f"timed out after {config['timeout']} s", index + 1, 0, first) from err
        except DeadKernelError as err:
            first = next((s for s in cell.source.split("\n") if s.strip()), "")
            raise Failed("kernel", "the kernel died", index + 1, 0, first) from err
        if shell:
            bad = None
            failure = shell.failure(cell.source)
            if failure:
                line, status = failure
                bad = line, f"exit status {status}" if status is not None else "the command did not end"
            bad = bad or unknown_magic(cell)
            if bad and "raises-exception" not in cell.metadata.get("tags", []):
                line, text = bad
                cell.outputs.append(new_output("error", ename="ERROR", evalue=text, traceback=[text]))
                said = "".join(o.get("text", "") for o in cell.outputs if o.get("output_type") == "stream").strip()
                said = said.removesuffix(text).strip()
                raise Failed("cell", "\n".join([*said.split("\n")[-15:], text]).strip(), index + 1, line, cell.source.split("\n")[line - 1])
        emit(event="cell", cell=index + 1, of=total, seconds=round(time.monotonic() - begun, 2))


def replace(path, text):
    """Writes a file under its name only once it is whole."""
    fd, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".soarbook-")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def formula(latex, block):
    """A formula as MathML, which browsers show by themselves. One that is not understood stays LaTeX, marked as such."""
    from html import escape

    from latex2mathml.converter import convert

    text = latex.strip()
    try:
        mathml = convert(text, display="block" if block else "inline")
    except Exception:  # the converter has no common base of its errors, and passes on an IndexError of its own
        mathml = ""
    if not mathml or "\\" in mathml or "<mi>&</mi>" in mathml:  # a command or an environment that it does not know stays as it is
        return f'<code class="soarbook-formula">{escape(text)}</code>'
    return mathml.replace("<math ", f'<math alttext="{escape(text)}" ', 1)


def html(nb, title):
    from copy import deepcopy

    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer

    IPythonRenderer.block_math = lambda self, body: formula(body, True)
    IPythonRenderer.inline_math = lambda self, body: formula(body, False)
    IPythonRenderer.latex_environment = lambda self, name, body: formula(f"\\begin{{{name}}}{body}\\end{{{name}}}", True)
    nb = deepcopy(nb)
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/latex" in data and "text/html" not in data:
                data["text/html"] = formula(data["text/latex"].strip().strip("$"), True)
    exporter = HTMLExporter(embed_images=True)
    # The page is to be read without a network: nothing comes from elsewhere but what only diagrams need.
    exporter.require_js_url = exporter.jquery_url = exporter.mathjax_url = ""
    prose = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    if "```mermaid" not in prose:
        exporter.mermaid_js_url = exporter.mermaid_layout_elk_js_url = ""
    heading = next((line for line in prose.split("\n") if line.startswith("# ")), "")
    body, _ = exporter.from_notebook_node(nb, resources={"metadata": {"name": heading.removeprefix("# ").strip() or title}})
    # Lines of code wrap instead of ending at the page's edge, and text keeps its distance from a block of code.
    style = ("<style>.jp-InputArea .highlight pre { white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; } "
             ".jp-RenderedHTMLCommon .highlight { margin-bottom: 1em; }</style>\n</head>")
    return re.sub(r'<script src="">\s*</script>', "", body).replace("</head>", style, 1)


def stop_on_signals():
    """Makes a signal cancel the task. nbclient's own handler kills the kernel under the cell that runs."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)


async def main(config):
    stop_on_signals()
    with open(config["input"], encoding="utf-8") as f:
        nb = nbformat.read(f, as_version=4)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    result = dict(event="done")
    try:
        with tempfile.TemporaryDirectory(prefix="soarbook-") as folder:
            await execute(config, nb, folder)
    except Failed as err:
        result = err.event
    except asyncio.CancelledError:
        result = dict(event="failed", kind="stopped", error="stopped", cell=0, line=0, source="")
    except RuntimeError as err:  # nbclient: the kernel ended before it replied to kernel_info
        result = dict(event="failed", kind="kernel", error=str(err), cell=0, line=0, source="")
    except Exception:
        result = dict(event="failed", kind="driver", error=traceback.format_exc(), cell=0, line=0, source="")
    replace(config["output"], nbformat.writes(nb) + "\n")
    if config["html"]:
        replace(config["html"], html(nb, config["title"]))
    emit(**result)
    return 0 if result["event"] == "done" else 1


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        sys.exit(asyncio.run(main(json.load(f))))

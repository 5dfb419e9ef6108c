"""What Jupyter's own test suite asks of a kernel (jupyter_kernel_test 0.7.0), with nothing skipped that ipykernel runs.

Run by kernel_test.go, or by hand: JUPYTER_PATH=... python -m pytest tests/kernel/test_kernel.py
"""

import os

import jupyter_kernel_test

KERNEL = os.environ.get("SOARBOOK_TEST_KERNELSPEC", "soarbook")


class SoarbookTests(jupyter_kernel_test.KernelTests):
    kernel_name = KERNEL
    language_name = "go"
    file_extension = ".go"
    code_hello_world = 'fmt.Println("hello, world")'
    code_stderr = 'fmt.Fprintln(os.Stderr, "oops")'
    completion_samples = [
        {"text": "strings.TrimSuff", "matches": {"TrimSuffix"}},
        {"text": "zażółć := 1; strings.TrimSuff", "matches": {"TrimSuffix"}},
    ]
    complete_code_samples = ["1", "x := 3", "func f(a int) int {\n\treturn a\n}", "type T struct{ A int }", "import \"fmt\"", "!ls", "%%\nx := 1"]
    incomplete_code_samples = ["func f(a int) int {", "x := []int{1,", "f(", "s := `abc", "!ls \\"]
    invalid_code_samples = ["x := := 3", "func }", "%no_such_magic"]
    code_page_something = "strings.TrimSuffix?"
    code_generate_error = 'panic("boom")'
    code_execute_result = [
        {"code": "1 + 2 + 3", "result": "6"},
        {"code": '"a" + "b"', "result": "ab"},
        {"code": "[]int{1, 2, 3}", "result": "[1 2 3]"},
        {"code": "y := 7; y * 2", "result": "14"},
        {"code": "40 + 2", "result": "42"},
    ]
    code_display_data = [
        {"code": 'import "github.com/janpfeifer/gonb/gonbui"\ngonbui.DisplayHTML("<b>x</b>")', "mime": "text/html"},
        {"code": 'gonbui.DisplayPng([]byte{1, 2, 3})', "mime": "image/png"},
        {"code": 'gonbui.DisplayMarkdown("*x*")', "mime": "text/markdown"},
    ]
    code_history_pattern = "1 + 2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "strings.TrimSuffix"
    code_clear_output = 'import "github.com/soarbook/soarbook/kernel/display"\ndisplay.Clear(true)'


class WelcomeTests(jupyter_kernel_test.IopubWelcomeTests):
    kernel_name = KERNEL
    support_iopub_welcome = True

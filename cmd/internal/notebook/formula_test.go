package notebook

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data/asset"
)

// TestFormula: what latex2mathml understands becomes MathML with the LaTeX as its text; what it does not stays LaTeX and is marked.
func TestFormula(t *testing.T) {
	dir, err := asset.Dir()
	if err != nil {
		t.Fatal(err)
	}
	python := (&asset.Cache{Dir: dir}).PythonBin()
	if exec.Command(python, "-c", "import nbformat, latex2mathml").Run() != nil {
		t.Skipf("%s lacks what renders formulas; run `soarbook setup`", python)
	}
	cases := []struct{ latex, want string }{
		{`R_\text{ans} < \frac{1}{2}`, `<math alttext="R_\text{ans} &lt; \frac{1}{2}"`},
		{`\left[ x \right]`, "<mo"},
		{`\unknown{x}`, `<code class="soarbook-formula">\unknown{x}</code>`},
		{`{`, `<code class="soarbook-formula">{</code>`},
		{`\begin{aligned}a&=b\end{aligned}`, `<code class="soarbook-formula">`},
		{`<script>`, "&lt;"},
	}
	args := []string{"-c", "import json, sys, driver; print(json.dumps([driver.formula(f, True) for f in sys.argv[1:]]))"}
	for _, tc := range cases {
		args = append(args, tc.latex)
	}
	cmd := exec.Command(python, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal(out, &got); err != nil || len(got) != len(cases) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, tc := range cases {
		if !strings.Contains(got[i], tc.want) || strings.Contains(got[i], "<script>") {
			t.Errorf("%s: got %s, want %s", tc.latex, got[i], tc.want)
		}
	}
}

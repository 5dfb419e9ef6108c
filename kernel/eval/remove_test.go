package eval

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRemove(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	ctx := context.Background()
	mustRun(t, e, 1, "x, y := 3, 4\nconst c = 5\nfunc f() int { return x }\nfunc g() int { return f() + 1 }\nfunc h() int { return y }\ntype T struct{}\nfunc (T) M() int { return 1 }")
	mustRun(t, e, 2, "import str \"strings\"\nbig := make([]byte, 256<<20)\nfor i := range big { big[i] = 1 }\n_ = str.ToUpper")
	before, err := e.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason           string
		names            []string
		removed, unknown []string
		gone, stays      string
	}{
		{"a variable takes the functions that use it, and those that use them", []string{"x", "nothing"}, []string{"f", "g", "x"}, []string{"nothing"}, "g()", "h() + y"},
		{"a type takes its methods", []string{"T"}, []string{"T", "T.M"}, nil, "T{}", "c"},
		{"a constant and an import", []string{"c", "str"}, []string{"c", "str"}, nil, "str.ToUpper(\"a\")", "y"},
		{"a large variable", []string{"big"}, []string{"big"}, nil, "len(big)", "y"},
		{"again", []string{"big"}, nil, []string{"big"}, "len(big)", "y"},
	} {
		removed, unknown, err := e.Remove(ctx, c.names)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([][]string{c.removed, c.unknown}, [][]string{removed, unknown}); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, d)
		}
		if ce := runErr(e, 3, c.gone, &recorder{}); ce == nil || !strings.Contains(ce.Value, "undefined") {
			t.Errorf("%s: %s gives %v, want undefined", c.reason, c.gone, ce)
		}
		mustRun(t, e, 4, c.stays)
	}
	if got := mustRun(t, e, 5, "x := \"new\"\nx"); got != "new" {
		t.Errorf("x again: %q", got)
	}
	mustRun(t, e, 6, "import \"runtime/debug\"\ndebug.FreeOSMemory()")
	after, err := e.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if before.WorkerBytes-after.WorkerBytes < 200<<20 {
		t.Errorf("the worker has %d MiB, before %d MiB: the variable of 256 MiB is still there", after.WorkerBytes>>20, before.WorkerBytes>>20)
	}
}

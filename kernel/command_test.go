package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/soarbook/soarbook/kernel/wire/wiretest"
)

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	k := start(t, func(c *Config) { c.WorkDir = dir; c.Eval.Dir = "." })
	module, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code           string
		status         string // ok where empty
		stdout, stderr string // what they contain
		value          string // of the error
		reason         string
	}{
		{code: "!echo hello; echo oops >&2", stdout: "hello\n", stderr: "oops\n", reason: "both streams"},
		{code: "!echo a \\\n  b", stdout: "a b\n", reason: "a line that goes on"},
		{code: "\n!exit 3", status: "ExitError", value: "Cell [3] line 2: !exit 3: exit status 3", reason: "another exit code is an error"},
		{code: "!echo out\n!false\n!echo never", status: "ExitError", stdout: "out\n", value: "line 2: !false", reason: "the first error ends the cell"},
		{code: "!kill -9 $$", status: "ExitError", value: "signal: killed", reason: "a signal is an error"},
		{code: "!no-such-command-xyz", status: "ExitError", stderr: "not found", value: "exit status 127", reason: "bash says so"},
		{code: `!printf 'a\377b\303'; printf '\251\n'`, stdout: "a\uFFFDbé\n", reason: "invalid bytes are replaced; a character in two pieces is one"},
		{code: "!cat", reason: "standard input is empty: nothing hangs"},
		{code: "!pwd", stdout: dir + "\n", reason: "the cells' folder"},
		{code: "!*pwd", stdout: module + "\n", reason: "the module's folder"},
		{code: "!echo $GONB_DIR $GONB_TMP_DIR", stdout: dir + " " + module + "\n", reason: "what GoNB promises"},
		{code: "%cd sub\n!pwd", stdout: dir + "/sub\n", reason: "%cd holds for the next line"},
		{code: "%cd", stdout: "sub", reason: "%cd alone says where"},
		{code: "%cd nowhere", status: "MagicError", value: "line 1: %cd: stat " + dir + "/sub/nowhere", reason: "no such folder"},
		{code: "%cd ..", stdout: "Changed directory to", reason: "relative"},
		{code: "%env ABC \"x y\"\n!echo [$ABC]", stdout: "Set: ABC=\"x y\"\n[x y]\n", reason: "%env"},
		{code: "%env DEF=1=2\n!echo $DEF", stdout: "1=2\n", reason: "%env with an equals sign"},
		{code: "%env ABC", status: "MagicError", value: "NAME=VALUE", reason: "%env with nothing to set"},
		{code: "%time f()", status: "MagicError", value: "%time is not a special command; %help", reason: "unknown"},
		{code: "%test", status: "MagicError", value: "go test", reason: "what cannot be says so"},
		{code: "%goflags --cover\nout x", stdout: "x\n", stderr: "%goflags has no effect in this kernel", reason: "what can be left out says so"},
		{code: "%goflags", stdout: "%goflags=[]", reason: "there are none"},
		{code: "%track foo", stderr: "completion knows the whole module", reason: "GoNB's %track"},
		{code: "%with_inputs\n!echo quick", stdout: "quick", reason: "a quick program is not asked for"},
		{code: "%%bash\nx=1\necho $((x+1))", stdout: "2\n", reason: "a script"},
		{code: "%%script cat -n\nabc", stdout: "1\tabc\n", reason: "a script with arguments"},
		{code: "%%script", status: "MagicError", value: "which command", reason: "no program"},
		{code: "%%bash -x\n", status: "MagicError", value: "takes no arguments", reason: "GoNB refuses them"},
		{code: "%%script no-such-program\n", status: "MagicError", value: "executable file not found", reason: "no such program"},
		{code: "%%writefile ${ABC}.txt\none\ntwo", stderr: "written to", reason: "variables in file names"},
		{code: "%%writefile -a \"x y.txt\"\nthree", stderr: "appended to", reason: "append"},
		{code: "!cat 'x y.txt'", stdout: "one\ntwo\nthree\n", reason: "what was written"},
		{code: "%%writefile no/such/folder\nx", status: "MagicError", value: "no such file", reason: "cannot be written"},
		{code: "%capture cap.txt\nout captured\nhtml <b>h</b>", stdout: "captured\n", reason: "%capture shows and copies"},
		{code: "!cat cap.txt", stdout: "captured\n<b>h</b>", reason: "what was captured"},
		{code: "%rm x y", stdout: ". removed x\n", stderr: `"y" not found`, reason: "%rm"},
		{code: "%reset", stdout: "State reset", reason: "%reset"},
		{code: "%reset go.mod", status: "MagicError", value: "takes no argument", reason: "the module is the user's"},
		{code: "%noautoget", reason: "nothing to do"},
		{code: "%widgets_hb", status: "MagicError", value: "browser", reason: "no browser"},
	} {
		r, out := k.Execute(c.code)
		want := "ok"
		if c.status != "" {
			want = "error"
		}
		if r.Str("status") != want || r.Str("ename") != c.status || !strings.Contains(r.Str("evalue"), c.value) {
			t.Errorf("%q: %v, want %s %q: %s", c.code, r.Content, c.status, c.value, c.reason)
		}
		for name, text := range map[string]string{"stdout": c.stdout, "stderr": c.stderr} {
			if got := wiretest.Text(out, name); !strings.Contains(got, text) || text == "" && got != "" && c.status == "" {
				t.Errorf("%q: %s %q, want %q: %s", c.code, name, got, text, c.reason)
			}
		}
	}
	for _, c := range []struct{ code, want string }{
		{"%help", "%%writefile [-a] FILE"}, {"%version", "soarbook test"}, {"%session", "worker 7, 3.0 MiB in memory, 2 cells loaded"},
		{"%session", "map[string]&lt;int&gt;"}, {"%session", "changed on disk"}, {"%ls", "2.0 KiB"},
	} {
		_, out := k.Execute(c.code)
		if len(out) != 2 || out[1].Type != "display_data" || !strings.Contains(fmt.Sprint(out[1].Content["data"]), c.want) {
			t.Errorf("%s: %v, want %q", c.code, out, c.want)
		}
	}
	if r, out := k.Execute("%reload"); r.Str("status") != "ok" || types(out) != "execute_input stream execute_result" {
		t.Errorf("%%reload: %v, %s", r.Content, types(out))
	}
	if r, _ := k.Execute("x?"); fmt.Sprint(r.Content["payload"]) != "[map[data:map[text/plain:about x at 1, detail 0] source:page start:0]]" {
		t.Errorf("help on a name: %v", r.Content)
	}
	if r, _ := k.Execute("nothing?"); r.Str("status") != "error" {
		t.Errorf("help on nothing: %v", r.Content)
	}
	f := <-k.made
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := f.env["ABC"]; got != "x y" {
		t.Errorf("the worker's ABC is %q", got)
	}
	if f.dir != dir {
		t.Errorf("the worker's folder is %s, want %s", f.dir, dir)
	}
}

// Arguments reach the program, and flags are parsed where GoNB parses them.
func TestArguments(t *testing.T) {
	k := start(t, nil)
	f := <-k.made
	const set = "os.Args = append(os.Args[:1:1]"
	for _, c := range []struct{ code, want, reason string }{
		{"%%\n", "", "no arguments before and after: nothing to set"},
		{"%% -a \"b c\"\nout x", "func() { " + set + `, "-a", "b c"); flag.CommandLine.Init(os.Args[0], flag.PanicOnError); flag.Parse(); ` + "\nout x\n}()", "%% with arguments"},
		{"%%\nout x", "func() { " + set + `); flag.CommandLine.Init(os.Args[0], flag.PanicOnError); flag.Parse(); ` + "\nout x\n}()", "%% alone resets them"},
		{"%%\nout x", "func() {\nout x\n}()", "and then there is nothing to do"},
		{"%args -z\nout x", set + `, "-z")` + "\nout x", "%args"},
		{"out x\n%exec f -q", "out x\n\nfunc() { " + set + `, "-q"); flag.CommandLine.Init(os.Args[0], flag.PanicOnError); flag.Parse(); f() }()`, "%exec"},
	} {
		k.Execute(c.code)
		got := f.lastCode()
		if got != c.want {
			t.Errorf("%q: Go code\n%s\nwant\n%s\n(%s)", c.code, got, c.want, c.reason)
		}
	}
}

func TestShellInterrupt(t *testing.T) {
	k := start(t, nil)
	for _, code := range []string{"!echo started; sleep 60", "!trap '' INT; echo started; while true; do sleep 1; done", "%%bash\necho started\nsleep 60 &\nwait"} {
		id := k.Send("shell", "execute_request", map[string]any{"code": code})
		for m := k.Next("iopub"); m.Type != "stream"; m = k.Next("iopub") {
		}
		begin := time.Now()
		k.Send("control", "interrupt_request", nil)
		r := k.Reply("shell", id)
		if r.Str("ename") != "Interrupted" {
			t.Errorf("%q: %v", code, r.Content)
		}
		if d := time.Since(begin); d > 700*time.Millisecond {
			t.Errorf("%q: the interrupt took %v", code, d)
		}
		k.Outputs(id)
	}
}

func TestShellInput(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "%with_inputs\n!read a; echo \"a=$a\"\n%with_password\n!read b; echo \"b=$b\"", "allow_stdin": true})
	for i := range 2 {
		q := k.Next("stdin")
		if q.Content["password"] != (i == 1) {
			t.Errorf("question %d: %v", i, q.Content)
		}
		k.SendFrames("stdin", k.Frames("input_reply", wiretest.ID(), q.Raw["header"], map[string]any{"value": fmt.Sprint("v", i)}))
	}
	r := k.Reply("shell", id)
	if got := wiretest.Text(k.Outputs(id), "stdout"); r.Str("status") != "ok" || got != "a=v0\nb=v1\n" {
		t.Errorf("%v, stdout %q", r.Content, got)
	}
	r, _ = k.Call("execute_request", map[string]any{"code": "%with_inputs\n!read a", "allow_stdin": false})
	if r.Str("status") != "error" || !strings.Contains(r.Str("evalue"), "allow_stdin is false") {
		t.Errorf("without a person: %v", r.Content)
	}
}

func TestShellStreams(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "!echo first; sleep 1; echo second"})
	begin := time.Now()
	for m := k.Next("iopub"); m.Type != "stream"; m = k.Next("iopub") {
	}
	if d := time.Since(begin); d > 800*time.Millisecond {
		t.Errorf("the first line came after %v", d)
	}
	k.Reply("shell", id)
	_, out := k.Execute("!head -c 3000000 /dev/zero | tr '\\0' x")
	if n := len(wiretest.Text(out, "stdout")); n != 3_000_000 {
		t.Errorf("%d bytes of 3,000,000", n)
	}
}

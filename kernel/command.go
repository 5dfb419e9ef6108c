package kernel

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/magic"
)

// commandRun runs the special commands of one cell.
type commandRun struct {
	k      *kernel
	n      int
	out    *output
	ask    string // "with_inputs" or "with_password", for the next shell line
	file   *os.File
	result eval.Result // what %reload and the like return as the cell's value
}

// close ends what lasts for one cell.
func (c *commandRun) close() {
	if c.file == nil {
		return
	}
	c.k.drain(c.out)
	c.out.mu.Lock()
	c.out.tee = nil
	if err := c.file.Close(); err != nil && c.out.teeErr == nil {
		c.out.teeErr = err
	}
	c.out.mu.Unlock()
}

// do runs one command.
func (c *commandRun) do(ctx context.Context, cmd magic.Command) error {
	if cmd.Name == "!" || cmd.Name == "!*" {
		dir := c.k.workDir()
		if cmd.Name == "!*" {
			dir = c.k.module
		}
		ask := c.ask
		c.ask = ""
		return c.shell(ctx, cmd, []string{"bash", "-c", cmd.Text}, dir, nil, ask)
	}
	m, ok := magic.Lookup(cmd.Name)
	if !ok {
		return fmt.Errorf("not a special command; %%help lists those that there are")
	}
	if m.Missing != "" {
		if m.Fatal {
			return fmt.Errorf("this kernel does not have it: %s", m.Missing)
		}
		if cmd.Name == "goflags" && strings.Join(cmd.Args, "") == "" {
			c.print("%%goflags=[]\n")
			return nil
		}
		c.out.Stream("stderr", fmt.Sprintf("%s has no effect in this kernel: %s\n", cmd, m.Missing))
		return nil
	}
	switch cmd.Name {
	case "env":
		return c.setEnv(ctx, cmd.Args)
	case "cd":
		return c.chdir(ctx, cmd.Args)
	case "help":
		c.out.Display(eval.Display{Data: map[string]any{"text/markdown": magic.Help(), "text/plain": magic.Help()}})
		return nil
	case "version":
		text := fmt.Sprintf("soarbook %s, %s %s/%s, cell dialect and display protocol of GoNB %s", c.k.cfg.Version, runtime.Version(),
			runtime.GOOS, runtime.GOARCH, gonbVersion)
		c.out.Display(eval.Display{Data: map[string]any{"text/markdown": text, "text/plain": text}})
		return nil
	case "noautoget":
		return nil
	case "capture":
		return c.capture(cmd.Args)
	case "with_inputs", "with_password":
		if !c.out.allowStdin {
			return eval.ErrNoInput
		}
		c.ask = cmd.Name
		return nil
	case "writefile":
		return c.writeFile(cmd)
	case "script":
		if len(cmd.Args) == 0 {
			return errors.New("which command? %%script COMMAND [ARGS...]")
		}
		return c.shell(ctx, cmd, cmd.Args, c.k.workDir(), []byte(cmd.Body+"\n"), "")
	case "bash", "sh":
		if len(cmd.Args) > 0 {
			return fmt.Errorf("takes no arguments, got %q; %%%%script %s ARGS... does", cmd.Args, cmd.Name)
		}
		return c.shell(ctx, cmd, []string{cmd.Name}, c.k.workDir(), []byte(cmd.Body+"\n"), "")
	case "widgets":
		return c.k.comm.install(c.out)
	case "widgets_hb":
		ok, err := c.k.comm.heartbeat(c.out)
		if err != nil {
			return err
		}
		if !ok {
			return errors.New("the browser did not answer within a second; run %widgets, and reload the page if that does not help")
		}
		c.print("The browser answers.\n")
		return nil
	}
	ev, err := c.k.evaluator(ctx)
	if err != nil {
		return err
	}
	switch cmd.Name {
	case "session":
		s, err := ev.Session(ctx)
		if err != nil {
			return err
		}
		c.out.Display(eval.Display{Data: sessionBundle(s)})
	case "list", "ls":
		s, err := ev.Session(ctx)
		if err != nil {
			return err
		}
		c.out.Display(eval.Display{Data: variableBundle(s.Variables)})
	case "remove", "rm":
		return c.remove(ctx, ev, cmd.Args)
	case "reset":
		if len(cmd.Args) > 0 {
			return fmt.Errorf("takes no argument here, got %q: cells use the go.mod of the module, which only you change", cmd.Args)
		}
		if err := ev.Reset(ctx); err != nil {
			return err
		}
		c.print("* State reset: all memorized declarations discarded.\n")
	case "reload":
		res, err := ev.Reload(ctx, c.out)
		if err != nil {
			return err
		}
		c.result = res
	default:
		return fmt.Errorf("not a special command; %%help lists those that there are")
	}
	return nil
}

func (c *commandRun) print(format string, args ...any) {
	c.out.Stream("stdout", fmt.Sprintf(format, args...))
}

func (k *kernel) workDir() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cwd
}

// environ is the environment of shell lines: the kernel's own, what GoNB promises, and what %env set.
func (k *kernel) environ() []string {
	env := append(os.Environ(), k.gonbEnv()...)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.env)) {
		env = append(env, name+"="+k.env[name])
	}
	return env
}

func (k *kernel) getenv(name string) string {
	k.mu.Lock()
	v, ok := k.env[name]
	k.mu.Unlock()
	if ok {
		return v
	}
	for _, kv := range k.gonbEnv() {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			return v
		}
	}
	return os.Getenv(name)
}

func (c *commandRun) setEnv(ctx context.Context, args []string) error {
	if len(args) == 1 {
		if name, value, ok := strings.Cut(args[0], "="); ok && name != "" {
			args = []string{name, value}
		}
	}
	if len(args) != 2 || strings.ContainsAny(args[0], "=\x00") || args[0] == "" || strings.Contains(args[1], "\x00") {
		return fmt.Errorf("got %q, want %%env NAME VALUE or %%env NAME=VALUE; quote a value with spaces", args)
	}
	ev, err := c.k.evaluator(ctx)
	if err != nil {
		return err
	}
	if err := ev.SetEnv(ctx, args[0], args[1]); err != nil {
		return err
	}
	c.k.mu.Lock()
	c.k.env[args[0]] = args[1]
	c.k.mu.Unlock()
	c.print("Set: %s=%q\n", args[0], args[1])
	return nil
}

func (c *commandRun) chdir(ctx context.Context, args []string) error {
	switch len(args) {
	case 0:
		c.print("Current directory: %q\n", c.k.workDir())
		return nil
	case 1:
	default:
		return fmt.Errorf("takes one folder, got %q; quote a name with spaces", args)
	}
	dir, err := c.path(args[0])
	if err != nil {
		return err
	}
	if info, err := os.Stat(dir); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	ev, err := c.k.evaluator(ctx)
	if err != nil {
		return err
	}
	if err := ev.Chdir(ctx, dir); err != nil {
		return err
	}
	c.k.mu.Lock()
	c.k.cwd = dir
	c.k.mu.Unlock()
	if err := ev.SetEnv(ctx, "GONB_DIR", dir); err != nil {
		return err
	}
	c.print("Changed directory to %q\n", dir)
	return nil
}

// path expands ~ and environment variables and makes a path absolute, from the cells' working directory.
func (c *commandRun) path(p string) (string, error) {
	p = os.Expand(p, c.k.getenv)
	if p == "~" || strings.HasPrefix(p, "~/") {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		p = filepath.Join(home, p[1:])
	}
	if !filepath.IsAbs(p) {
		p = filepath.Join(c.k.workDir(), p)
	}
	return filepath.Clean(p), nil
}

// open opens a file for `[-a] FILE`.
func (c *commandRun) open(args []string) (*os.File, string, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	verb := "written"
	if len(args) == 2 && args[0] == "-a" {
		flags, verb, args = os.O_CREATE|os.O_WRONLY|os.O_APPEND, "appended", args[1:]
	}
	if len(args) != 1 {
		return nil, "", fmt.Errorf("got %q, want [-a] FILE", args)
	}
	path, err := c.path(args[0])
	if err != nil {
		return nil, "", err
	}
	f, err := os.OpenFile(path, flags, 0o644)
	return f, verb, err
}

func (c *commandRun) capture(args []string) error {
	if c.file != nil {
		return errors.New("a second %capture in one cell; keep one of them")
	}
	f, _, err := c.open(args)
	if err != nil {
		return err
	}
	c.file = f
	c.out.mu.Lock()
	c.out.tee = f
	c.out.mu.Unlock()
	return nil
}

func (c *commandRun) writeFile(cmd magic.Command) error {
	f, verb, err := c.open(cmd.Args)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, cmd.Body+"\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	c.out.Stream("stderr", fmt.Sprintf("Cell contents %s to %q.\n", verb, f.Name()))
	return nil
}

// remove forgets names.
func (c *commandRun) remove(ctx context.Context, ev eval.Interface, names []string) error {
	if len(names) == 0 {
		return errors.New("which names? %list shows them")
	}
	removed, unknown, err := ev.Remove(ctx, names)
	for _, name := range removed {
		c.print(". removed %s\n", name)
	}
	for _, name := range unknown {
		c.out.Stream("stderr", fmt.Sprintf(". key %q not found in any definition, not removed\n", name))
	}
	return err
}

// shellGrace is how long an interrupted shell line may take to end; an interrupt is promised to work within half a second.
const shellGrace = 300 * time.Millisecond

// inputDelay is how long a shell line may run before it is taken to wait for input, as in GoNB.
const inputDelay = 200 * time.Millisecond

// shell runs a program with its output in the cell.
func (c *commandRun) shell(ctx context.Context, cmd magic.Command, argv []string, dir string, stdin []byte, ask string) error {
	p := exec.CommandContext(ctx, argv[0], argv[1:]...)
	p.Dir, p.Env = dir, c.k.environ()
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that an interrupt reaches what the shell started
	p.Cancel = func() error { return syscall.Kill(-p.Process.Pid, syscall.SIGINT) }
	p.WaitDelay = shellGrace
	stdout, stderr := &stream{o: c.out, name: "stdout"}, &stream{o: c.out, name: "stderr"}
	p.Stdout, p.Stderr = stdout, stderr
	var input io.WriteCloser
	switch {
	case ask != "":
		var err error
		if input, err = p.StdinPipe(); err != nil {
			return err
		}
	case stdin != nil:
		p.Stdin = strings.NewReader(string(stdin))
	}
	if err := p.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	if ask != "" {
		go c.feed(ctx, input, ask == "with_password", done)
	}
	err := p.Wait()
	close(done)
	if ctx.Err() != nil {
		syscall.Kill(-p.Process.Pid, syscall.SIGKILL) // what did not heed SIGINT
	}
	stdout.close()
	stderr.close()
	if ctx.Err() != nil {
		return &eval.CellError{Name: "Interrupted", Value: fmt.Sprintf("Cell [%d] line %d: %s was interrupted", c.n, cmd.Line, short(cmd))}
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &eval.CellError{Name: "ExitError", Value: fmt.Sprintf("Cell [%d] line %d: %s: %v", c.n, cmd.Line, short(cmd), exit)}
	}
	return err
}

// short is a command as an error shows it: its first line.
func short(cmd magic.Command) string {
	s, _, more := strings.Cut(cmd.String(), "\n")
	if more {
		s += " ..."
	}
	return s
}

// feed asks for input while the program runs, and gives it what is answered.
func (c *commandRun) feed(ctx context.Context, w io.WriteCloser, password bool, done <-chan struct{}) {
	defer w.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-done
		cancel()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(inputDelay):
		}
		line, err := c.out.Input(ctx, " ", password)
		if err != nil {
			if ctx.Err() == nil {
				c.out.Stream("stderr", "soarbook: "+err.Error()+"\n")
			}
			return
		}
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			return // the program is gone, or does not read
		}
	}
}

// sessionBundle shows what lives.
func sessionBundle(s eval.Session) map[string]any {
	head := "no worker yet: the first cell starts it"
	if s.WorkerPID != 0 {
		head = fmt.Sprintf("worker %d, %s in memory, %d cells loaded", s.WorkerPID, size(s.WorkerBytes), s.CellsLoaded)
	}
	b := variableBundle(s.Variables)
	text, page := head+"\n", "<p>"+html.EscapeString(head)+"</p>\n"
	if len(s.Changed) > 0 {
		changed := "changed on disk since they were loaded: " + strings.Join(s.Changed, ", ") + "; %reload takes them"
		text += changed + "\n"
		page += "<p>" + html.EscapeString(changed) + "</p>\n"
	}
	return map[string]any{"text/plain": text + b["text/plain"].(string), "text/html": page + b["text/html"].(string)}
}

func variableBundle(vars []eval.Variable) map[string]any {
	if len(vars) == 0 {
		return map[string]any{"text/plain": "no variables", "text/html": "<p>no variables</p>"}
	}
	rows := [][]string{{"variable", "type", "size", "cell"}}
	for _, v := range vars {
		rows = append(rows, []string{v.Name, v.Type, size(v.Bytes), fmt.Sprintf("[%d]", v.Cell)})
	}
	width := make([]int, 4)
	for _, r := range rows {
		for i, s := range r {
			width[i] = max(width[i], len(s))
		}
	}
	var text, page strings.Builder
	page.WriteString("<table>")
	for i, r := range rows {
		tag := "td"
		if i == 0 {
			tag = "th"
		}
		page.WriteString("<tr>")
		line := ""
		for j, s := range r {
			line += fmt.Sprintf("%-*s  ", width[j], s)
			fmt.Fprintf(&page, "<%s style=\"text-align:left\">%s</%s>", tag, html.EscapeString(s), tag)
		}
		page.WriteString("</tr>")
		text.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	page.WriteString("</table>")
	return map[string]any{"text/plain": strings.TrimSuffix(text.String(), "\n"), "text/html": page.String()}
}

// size shows a number of bytes.
func size(n int64) string {
	switch {
	case n < 0:
		return "?"
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

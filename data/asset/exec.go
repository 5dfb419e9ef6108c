package asset

import (
	"os/exec"
	"syscall"
	"time"
)

var errNoSpace error = syscall.ENOSPC

// run runs a command whose children end with it: the context's end asks the whole process group to stop, and kills
// what is left after five seconds.
func run(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.Run()
}

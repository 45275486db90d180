package process

import "syscall"

// attributes give a child its own process group, so that Ctrl-C in the terminal reaches the sandbox alone, and
// end it with the thread that started it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

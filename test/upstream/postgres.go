package upstream

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// postgres is a PostgreSQL server with its data in a directory.
type postgres struct {
	binaries, directory, host, port string
	account                         *syscall.Credential // account of the server; nil: the account of this process
	server                          *exec.Cmd
}

// newPostgres returns a server that is not running yet. If this process runs as root, which PostgreSQL refuses, the
// server runs as the user postgres.
func newPostgres(binaries, directory string) (*postgres, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	p := &postgres{binaries: binaries, directory: directory, host: "127.0.0.1", port: strconv.Itoa(ports[0])}
	if os.Geteuid() != 0 {
		return p, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	p.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return p, os.Chown(directory, uid, gid)
}

func (p *postgres) command(name string, arguments ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(p.binaries, name), arguments...)
	c.SysProcAttr, c.Dir = endWithParent(), p.directory
	if p.account != nil {
		if c.SysProcAttr == nil {
			c.SysProcAttr = &syscall.SysProcAttr{}
		}
		c.SysProcAttr.Credential = p.account
	}
	return c
}

// start starts the server and returns when it accepts connections.
func (p *postgres) start(ctx context.Context) error {
	data := filepath.Join(p.directory, "data")
	if output, err := p.command(
		"initdb", "--auth=trust", "--username=kine", "--no-sync", data,
	).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, output)
	}
	p.server = p.command("postgres", "-D", data, "-h", p.host, "-p", p.port, "-k", p.directory, "-F",
		"-c", "max_connections=400") // kine opens a connection for each concurrent request
	if err := p.server.Start(); err != nil {
		return err
	}
	return poll(ctx, func(context.Context) bool {
		return p.command("pg_isready", "-h", p.host, "-p", p.port).Run() == nil
	})
}

func (p *postgres) stop() {
	_ = p.server.Process.Signal(syscall.SIGQUIT)
	_ = p.server.Wait()
}

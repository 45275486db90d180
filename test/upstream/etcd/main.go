// Command etcd is the genuine etcd of the module graph, for tests that need one as a process of its own.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
